"""A request's logits processors: transformers' where it has them."""

from __future__ import annotations

import math

import torch
from transformers.generation.logits_process import (
    LogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tandem.engines.request import EngineRequest
from tandem.sampling.params import SamplingNumbers

_LEAST_DIVISOR = torch.finfo(torch.float32).tiny  # some devices take what is less for 0


class CountPenaltyLogitsProcessor(LogitsProcessor):
    """OpenAI's presence and frequency penalties, over context and output alike."""

    def __init__(self, presence: float, frequency: float) -> None:
        self._presence = presence
        self._frequency = frequency

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        counts = torch.bincount(input_ids[0], minlength=scores.shape[-1]).to(scores.dtype)
        return scores - self._frequency * counts - self._presence * (counts > 0)


class MinPLogitsWarper(LogitsProcessor):
    """Keeps what is at least min_p times as likely as the best; transformers' own sorts for it."""

    def __init__(self, min_p: float) -> None:
        self._log_min_p = math.log(min_p)

    def __call__(self, input_ids: torch.Tensor | None, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        least = scores.amax(-1, keepdim=True) + self._log_min_p
        return scores.masked_fill(scores < least, -torch.inf)


class TemperatureLogitsWarper(LogitsProcessor):
    """Divides scores by a temperature, counted from the best one.

    So none of them grows without bounds, and the lower the temperature, the nearer is the
    distribution to the best token alone, as it should be. transformers' own gives inf - inf, which
    is not a number.
    """

    def __init__(self, temperature: float) -> None:
        self._temperature = max(temperature, _LEAST_DIVISOR)

    def __call__(self, input_ids: torch.Tensor | None, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        return (scores - scores.amax(-1, keepdim=True)) / self._temperature


def history_processors(request: EngineRequest) -> list[LogitsProcessor]:
    """What must see the tokens before the one that is chosen, in order of application."""
    sampling = request.sampling
    found: list[LogitsProcessor] = []
    if sampling.repetition_penalty != 1.0:
        found.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.presence_penalty or sampling.frequency_penalty:
        found.append(
            CountPenaltyLogitsProcessor(sampling.presence_penalty, sampling.frequency_penalty)
        )
    return found


def warpers(sampling: SamplingNumbers, vocab_size: int) -> list[LogitsProcessor]:
    """What shapes the distribution of a sampled token, in transformers' order."""
    found: list[LogitsProcessor] = []
    if sampling.temperature != 1.0:
        found.append(TemperatureLogitsWarper(sampling.temperature))
    if 0 < sampling.top_k < vocab_size:
        found.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        found.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0:
        found.append(MinPLogitsWarper(sampling.min_p))
    return found
