"""A request's logits processors: transformers' where it has them."""

from __future__ import annotations

import torch
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engines.request import EngineRequest, SamplingParams


class CountPenaltyLogitsProcessor(LogitsProcessor):
    """OpenAI's presence and frequency penalties, over context and output alike."""

    def __init__(self, presence: float, frequency: float) -> None:
        self._presence = presence
        self._frequency = frequency

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Lower the scores [1, vocab] of the tokens in input_ids [1, n]."""
        counts = torch.bincount(input_ids[0], minlength=scores.shape[-1]).to(scores.dtype)
        return scores - self._frequency * counts - self._presence * (counts > 0)


def history_processors(request: EngineRequest, device: torch.device) -> list[LogitsProcessor]:
    """What must see the tokens before the one that is chosen, in order of application."""
    sampling = request.sampling
    found: list[LogitsProcessor] = []
    if sampling.repetition_penalty != 1.0:
        found.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.presence_penalty or sampling.frequency_penalty:
        found.append(
            CountPenaltyLogitsProcessor(sampling.presence_penalty, sampling.frequency_penalty)
        )
    if sampling.bad_words:
        found.append(NoBadWordsLogitsProcessor([list(word) for word in sampling.bad_words]))
    if sampling.min_tokens and request.end_id is not None:
        found.append(
            MinNewTokensLengthLogitsProcessor(
                len(request.input_ids), sampling.min_tokens, request.end_id, str(device)
            )
        )
    return found


def warpers(sampling: SamplingParams, vocab_size: int) -> list[LogitsProcessor]:
    """What shapes the distribution of a sampled token: temperature, top-k, top-p."""
    found: list[LogitsProcessor] = []
    if sampling.temperature not in {None, 1.0}:
        found.append(TemperatureLogitsWarper(sampling.temperature))
    if 0 < sampling.top_k < vocab_size:
        found.append(TopKLogitsWarper(sampling.top_k))
    if 0.0 < sampling.top_p < 1.0:
        found.append(TopPLogitsWarper(sampling.top_p))
    return found
