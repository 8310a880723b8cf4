"""Checks that two TensorRT engines are compatible with each other."""

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
    """Raise ProfileError if the engines are incompatible, or don't support the decoding settings.

    Only TensorRT engines are checked.
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
            "must be true, because decoding.use_draft_logits needs the draft's logits",
        )
    fast = target.run.speculative_decoding_fast_logits
    if draft.run.speculative_decoding_fast_logits != fast:
        raise ProfileError((*DRAFT, "run", FAST), "must be on in both engines or in neither")
    if fast:
        _check_fast_logits(target, draft, use_draft_logits=use_draft_logits)
    else:
        _check_alone(target, TARGET)
        _check_alone(draft, DRAFT)
    # Two engines need orchestrator mode, which spawns all workers on one node. In leader mode each
    # engine takes every rank, and ranks above 0 never return from the first engine's constructor.
    for key_path, engine in ((TARGET, target), (DRAFT, draft)):
        if engine.num_nodes > 1:
            raise ProfileError(
                (*key_path, "num_nodes"),
                "must be 1 in both engines, because several nodes need leader mode, which loads "
                f"one engine; got {engine.num_nodes}; set 1, or use prompt_lookup without "
                "engines.draft",
            )
    if draft.engine_dir == target.engine_dir:
        raise ProfileError((*DRAFT, "engine_dir"), "must be different from the target's")


def _check_alone(engine: TensorRTLLMDraft, key_path: KeyPath) -> None:
    """Reject fast-logits settings if there is no second engine to exchange logits with."""
    if engine.run.speculative_decoding_fast_logits:
        raise ProfileError(
            (*key_path, "run", FAST),
            "needs a target and a draft of kind tensorrtllm; remove this key",
        )
    if engine.run.participant_ids is not None:
        raise ProfileError(
            (*key_path, "run", "participant_ids"),
            f"can be set only with {FAST}; remove this key or set {FAST}",
        )


def _check_fast_logits(
    target: TensorRTLLMTarget, draft: TensorRTLLMDraft, *, use_draft_logits: bool
) -> None:
    """Check the settings for fast logits: the logits' type and width, and the engines' ranks."""
    if not use_draft_logits:
        raise ProfileError((*TARGET, "run", FAST), "needs decoding.use_draft_logits to be true")
    for key_path, engine in ((TARGET, target), (DRAFT, draft)):
        if engine.build.logits_dtype != "float32":
            raise ProfileError((*key_path, "build", "logits_dtype"), f"must be float32 with {FAST}")
    if target.checkpoint.is_dir() and draft.checkpoint.is_dir():  # or on another machine
        own, wanted = (
            engine.padded(read_checkpoint(engine.checkpoint, with_weights=False).vocab_size)
            for engine in (draft, target)
        )
        if own != wanted:
            raise ProfileError(
                (*DRAFT, "run", FAST),
                f"its padded logits are {own} wide, but the target's {wanted}; remove {FAST} in "
                "both, or make vocab_size and tp_size equal",
            )
    first = draft.world_size + 1
    ranks = {TARGET: tuple(range(first, first + target.world_size)), DRAFT: tuple(range(1, first))}
    for key_path, engine in ((TARGET, target), (DRAFT, draft)):
        if engine.run.participant_ids != ranks[key_path]:
            raise ProfileError(
                (*key_path, "run", "participant_ids"),
                f"must be {list(ranks[key_path])} with {FAST}: rank 0 is Triton's, followed by the "
                "draft's and the target's",
            )
