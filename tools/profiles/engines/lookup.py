"""A profile's section for prompt lookup, in the loop or in an engine."""

from __future__ import annotations

from pydantic import PositiveInt

from tandem.bls.settings import LoopSettings
from tandem.tools.profiles.engines.base import ConfigSection


class LookupSection(ConfigSection):
    """Prompt lookup: copy the tokens that followed the same n-gram earlier.

    The names are TensorRT-LLM's.
    """

    prompt_lookup_num_tokens: PositiveInt = LoopSettings.prompt_lookup_num_tokens
    """Maximum draft tokens per round."""
    max_matching_ngram_size: PositiveInt = LoopSettings.max_matching_ngram_size
    """Longest n-gram to search for; shorter n-grams are tried next, down to 1 token."""
    is_keep_all: bool = LoopSettings.lookup_keeps_all
    """With `is_use_oldest: false`: copy from the newest occurrence with a whole draft after it."""
    is_use_oldest: bool = LoopSettings.lookup_uses_oldest
    """Copy from the oldest occurrence of the n-gram; false: from the newest."""
