"""Settings of engines that run one model in steps, and their bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tandem.engines.errors import LoadError


class StepSettings(Protocol):
    """The settings that every engine of this kind has. All lengths are in tokens."""

    @property
    def max_seq_len(self) -> int: ...
    @property
    def max_draft_len(self) -> int: ...
    @property
    def kv_cache_tokens(self) -> int: ...
    @property
    def kv_block_tokens(self) -> int: ...
    @property
    def max_batch_tokens(self) -> int: ...
    @property
    def draft_vocab_size(self) -> int | None: ...
    @property
    def lora_adapters(self) -> Sequence[str]: ...


def check_bounds(settings: StepSettings, threads: int) -> None:
    """Raise LoadError if a size is too small or two sizes contradict each other."""
    for name in ("max_seq_len", "kv_cache_tokens", "kv_block_tokens", "max_batch_tokens"):
        if getattr(settings, name) < 1:
            raise LoadError(f"{name} must be at least 1; got {getattr(settings, name)}")
    for name, number in (("threads", threads), ("max_draft_len", settings.max_draft_len)):
        if number < 0:
            raise LoadError(f"{name} must be at least 0; got {number}")
    if settings.max_batch_tokens <= settings.max_draft_len:
        raise LoadError(
            f"max_batch_tokens must be greater than max_draft_len ({settings.max_draft_len}); "
            f"got {settings.max_batch_tokens}"
        )
    if settings.kv_cache_tokens < settings.kv_block_tokens:
        raise LoadError(
            f"kv_cache_tokens must be at least kv_block_tokens ({settings.kv_block_tokens}); "
            f"got {settings.kv_cache_tokens}"
        )
