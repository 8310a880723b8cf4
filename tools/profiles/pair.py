"""Checks that two TensorRT engines are compatible."""

from __future__ import annotations

from tandem.tools.profiles.checkpoint import read_checkpoint
from tandem.tools.profiles.engines.base import EngineSection, KeyPath, ProfileError
from tandem.tools.profiles.engines.tensorrtllm import TensorRTLLMDraft, TensorRTLLMTarget

DRAFT: KeyPath = ("engines", "draft")
TARGET: KeyPath = ("engines", "target")
FAST = "speculative_decoding_fast_logits"


def check_pair(
    target: EngineSection, draft: EngineSection | None, *, use_draft_logits: bool
) -> None:
    """Raise ProfileError if an engine can't do what the other one or the decoding needs.

    Engines of other kinds need nothing.
    """
    if isinstance(target, TensorRTLLMTarget) and isinstance(draft, TensorRTLLMDraft):
        _check_both(target, draft, use_draft_logits=use_draft_logits)
        return
    for key_path, engine in ((TARGET, target), (DRAFT, draft)):
        if isinstance(engine, TensorRTLLMDraft):
            _check_alone(engine, key_path)


def _check_both(
    target: TensorRTLLMTarget, draft: TensorRTLLMDraft, *, use_draft_logits: bool
) -> None:
    if use_draft_logits and not draft.build.gather_generation_logits:
        raise ProfileError(
            (*DRAFT, "build", "gather_generation_logits"),
            "off, but decoding.use_draft_logits wants the draft's logits; say true",
        )
    fast = target.run.speculative_decoding_fast_logits
    if draft.run.speculative_decoding_fast_logits != fast:
        raise ProfileError((*DRAFT, "run", FAST), "on in one engine only; both need it, or none")
    if fast:
        _check_fast_logits(target, draft, use_draft_logits=use_draft_logits)
    else:
        _check_alone(target, TARGET)
        _check_alone(draft, DRAFT)
    # Two engines need an orchestrator, which spawns its workers on its own node. In leader mode
    # each engine takes every rank, and ranks above 0 never get past the constructor of the first.
    for key_path, engine in ((TARGET, target), (DRAFT, draft)):
        if engine.num_nodes > 1:
            raise ProfileError(
                (*key_path, "num_nodes"),
                f"{engine.num_nodes} given, but several nodes mean leader mode, in which "
                "TensorRT-LLM's ranks load one engine only; say 1 in both, or leave out "
                "engines.draft and draft by prompt_lookup",
            )
    if draft.engine_dir == target.engine_dir:
        raise ProfileError((*DRAFT, "engine_dir"), "the target's too; give each engine its own")


def _check_alone(engine: TensorRTLLMDraft, key_path: KeyPath) -> None:
    """Reject settings of fast logits for an engine that doesn't exchange them."""
    if engine.run.speculative_decoding_fast_logits:
        raise ProfileError(
            (*key_path, "run", FAST), "needs a target and a draft of kind tensorrtllm; leave it out"
        )
    if engine.run.participant_ids is not None:
        raise ProfileError((*key_path, "run", "participant_ids"), f"leave it out without {FAST}")


def _check_fast_logits(
    target: TensorRTLLMTarget, draft: TensorRTLLMDraft, *, use_draft_logits: bool
) -> None:
    """Check logits that pass from GPU to GPU: their type, their width and the engines' ranks."""
    if not use_draft_logits:
        raise ProfileError((*TARGET, "run", FAST), "needs decoding.use_draft_logits; say true")
    for key_path, engine in ((TARGET, target), (DRAFT, draft)):
        if engine.build.logits_dtype != "float32":
            raise ProfileError(
                (*key_path, "build", "logits_dtype"), f"{FAST} hands over float32; say float32"
            )
    if target.checkpoint.is_dir() and draft.checkpoint.is_dir():  # else a plan for another machine
        own, wanted = (
            engine.padded(read_checkpoint(engine.checkpoint, with_weights=False).vocab_size)
            for engine in (draft, target)
        )
        if own != wanted:
            raise ProfileError(
                (*DRAFT, "run", FAST),
                f"its logits are {own} wide with padding, the target's {wanted}; leave out {FAST} "
                "in both, or bring vocab_size and tp_size together",
            )
    first = draft.world_size + 1
    ranks = {TARGET: tuple(range(first, first + target.world_size)), DRAFT: tuple(range(1, first))}
    for key_path, engine in ((TARGET, target), (DRAFT, draft)):
        if engine.run.participant_ids != ranks[key_path]:
            raise ProfileError(
                (*key_path, "run", "participant_ids"),
                f"{FAST} needs {list(ranks[key_path])} here: rank 0 is Triton's, then come the "
                "draft's and the target's",
            )
