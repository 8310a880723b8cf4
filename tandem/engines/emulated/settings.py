"""The settings of an emulated engine, read from the model's parameters."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from tandem.engines.errors import LoadError

CANDIDATES = 16  # number of tokens that may follow a text, in either engine


@dataclass(frozen=True)
class EmulatedSettings:
    """Settings of one emulated engine. All lengths are in tokens.

    role: `target` speaks the language; `draft` guesses it.
    vocab_size: width of the logits. low_id, high_id: the engine emits ids from low_id up to
        high_id - 1.
    max_seq_len: maximum total length of a context and its answer.
    max_draft_len: maximum number of draft tokens that the engine verifies; 0: none.
    kv_cache_tokens: capacity for past text, in blocks of `kv_block_tokens` tokens.
    alpha: probability that a draft's best guess is the target's own token. With `hard_alpha`, the
        text has easy and hard stretches, a Markov chain over its tokens. Then alpha applies to easy
        tokens, and a token is of the same kind as the previous one with probability `stay_easy` or
        `stay_hard`.
    alternatives_exponent: r. If the best guess is wrong, the target's token is among the draft's
        next F guesses with probability 1 - (F + 1)^-r; 0: never.
    mean_answer_len: mean number of tokens until `end_id`; 0: never.
    step_ms: duration of one step, which makes one new token.
    verify_slope: each draft token that a step verifies makes it longer by this fraction.
    batch_slope: each call after the first one in a step makes it longer by this fraction.
    branch_slope: each branch after the first one of a call makes a step longer by this fraction.
    prefill_ms_per_token: time that a context token that isn't cached adds to a step.
    """

    role: Literal["draft", "target"]
    vocab_size: int
    low_id: int
    high_id: int
    max_seq_len: int
    kv_cache_tokens: int
    max_draft_len: int = 0
    kv_block_tokens: int = 32
    alpha: float = 0.8
    hard_alpha: float | None = None
    stay_easy: float = 0.92
    stay_hard: float = 0.8
    alternatives_exponent: float = 0.67
    mean_answer_len: float = 0.0
    end_id: int | None = None
    step_ms: float = 0.0
    verify_slope: float = 0.0
    batch_slope: float = 0.0
    branch_slope: float = 0.0
    prefill_ms_per_token: float = 0.0

    def __post_init__(self) -> None:
        for names, low, high in _BOUNDS:
            for name in names:
                value = getattr(self, name)
                if value is not None and not low <= value <= high:
                    wanted = f"at least {low}" if high == inf else f"between {low} and {high}"
                    raise LoadError(f"{name} must be {wanted}; got {value}")
        if self.high_id > self.vocab_size or self.high_id - self.low_id < 2 * CANDIDATES:
            raise LoadError(
                f"low_id and high_id must span at least {2 * CANDIDATES} ids below vocab_size "
                f"{self.vocab_size}; got {self.low_id} and {self.high_id}"
            )
        if self.end_id is not None and self.low_id <= self.end_id < self.high_id:
            raise LoadError(f"end_id must not be between low_id and high_id; got {self.end_id}")
        if self.stay_easy == self.stay_hard == 1:
            raise LoadError("stay_easy and stay_hard must not both be 1")
        if self.mean_answer_len and self.end_id is None:
            raise LoadError("mean_answer_len requires end_id, the token that ends an answer")


_BOUNDS = (
    (("max_seq_len", "kv_block_tokens"), 1, inf),
    (("low_id", "max_draft_len", "mean_answer_len", "alternatives_exponent"), 0, inf),
    (("step_ms", "verify_slope", "batch_slope", "branch_slope", "prefill_ms_per_token"), 0, inf),
    (("alpha", "hard_alpha", "stay_easy", "stay_hard"), 0, 1),
)
