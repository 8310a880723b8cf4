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
    """If the newest is used: skip occurrences that are too recent for a whole draft after them."""
    is_use_oldest: bool = LoopSettings.lookup_uses_oldest
    """Copy what follows the n-gram's oldest occurrence; false: its newest occurrence."""
