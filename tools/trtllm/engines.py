"""Which engines of a profile are TensorRT's."""

from __future__ import annotations

from ..kinds.tensorrtllm import TensorRTLLMDraft
from ..profile import Profile


def trt_engines(profile: Profile) -> dict[str, TensorRTLLMDraft]:
    """Return them by name, the draft first: it is built in minutes, and may fail as well."""
    sections = {"draft": profile.engines.draft, "target": profile.engines.target}
    return {n: section for n, section in sections.items() if isinstance(section, TensorRTLLMDraft)}
