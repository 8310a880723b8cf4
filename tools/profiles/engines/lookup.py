"""A profile's part for prompt lookup, by the loop or by an engine."""

from __future__ import annotations

from typing import Any

from pydantic import PositiveInt

from tandem.bls.settings import LoopSettings
from tandem.tools.profiles.engines.base import ConfigSection


class LookupSection(ConfigSection):
    """Drafts copied from what followed the same n-gram earlier; names are TensorRT-LLM's.

    prompt_lookup_num_tokens: the longest draft. max_matching_ngram_size: the longest n-gram that is
    looked up, then shorter ones down to 1. is_keep_all: every continuation of an n-gram is kept,
    not only the newest. is_use_oldest: the oldest of them is drafted, not the newest.
    """

    prompt_lookup_num_tokens: PositiveInt = LoopSettings.prompt_lookup_num_tokens
    max_matching_ngram_size: PositiveInt = LoopSettings.max_matching_ngram_size
    is_keep_all: bool = LoopSettings.lookup_keeps_all
    is_use_oldest: bool = LoopSettings.lookup_uses_oldest

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "prompt_lookup_num_tokens": self.prompt_lookup_num_tokens,
            "max_matching_ngram_size": self.max_matching_ngram_size,
            "lookup_keeps_all": self.is_keep_all,
            "lookup_uses_oldest": self.is_use_oldest,
        }
