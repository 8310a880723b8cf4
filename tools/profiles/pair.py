"""Checks that two TensorRT engines are compatible with each other."""

from __future__ import annotations

from tandem.tools.profiles.engines.base import EngineSection, KeyPath, ProfileError
from tandem.tools.profiles.engines.tensorrtllm import TensorRTLLMDraft, TensorRTLLMTarget

DRAFT: KeyPath = ("engines", "draft")
TARGET: KeyPath = ("engines", "target")


def check_pair(
    target: EngineSection, draft: EngineSection | None, *, use_draft_logits: bool
) -> None:
    """Raise ProfileError if the engines are incompatible, or don't support the decoding settings.

    Only TensorRT engines are checked.
    """
    if not (isinstance(target, TensorRTLLMTarget) and isinstance(draft, TensorRTLLMDraft)):
        return
    if use_draft_logits and not draft.build.gather_generation_logits:
        raise ProfileError(
            (*DRAFT, "build", "gather_generation_logits"),
            "must be true, because decoding.use_draft_logits needs the draft's logits",
        )
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
