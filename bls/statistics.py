"""What a request's rounds earned, and the same summed over all requests."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Round:
    """One round's figures: a plain target step drafts nothing and emits one token."""

    num_draft_tokens: int
    num_accepted_tokens: int


@dataclass
class Statistics:
    """Figures of one request, under the names of vLLM's per-request statistics.

    ``acceptance_histogram[i]`` counts the rounds that accepted exactly i draft tokens.
    """

    num_rounds: int = 0
    num_spec_steps: int = 0  # rounds that had draft tokens
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    num_drafter_failures: int = 0
    num_recomputed_tokens: int = 0
    acceptance_histogram: list[int] = field(default_factory=list)

    def add(self, round_: Round) -> None:
        """Count one round."""
        self.num_rounds += 1
        if round_.num_draft_tokens == 0:
            return
        self.num_spec_steps += 1
        self.num_draft_tokens += round_.num_draft_tokens
        self.num_accepted_draft_tokens += round_.num_accepted_tokens
        missing = round_.num_accepted_tokens + 1 - len(self.acceptance_histogram)
        self.acceptance_histogram.extend([0] * missing)
        self.acceptance_histogram[round_.num_accepted_tokens] += 1

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted / drafted; 0 where nothing was drafted."""
        if not self.num_draft_tokens:
            return 0.0
        return self.num_accepted_draft_tokens / self.num_draft_tokens

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens that a round with drafts emitted on average; 1 where there was none."""
        if not self.num_spec_steps:
            return 1.0
        return 1 + self.num_accepted_draft_tokens / self.num_spec_steps
