"""Penalizes and warps logits, with transformers' own processors if possible."""

from __future__ import annotations

import math

import numpy as np
import torch
from transformers.generation.logits_process import (
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
)

from tandem.sampling.params import SamplingNumbers

_MIN_DIVISOR = torch.finfo(torch.float32).tiny  # some devices round smaller numbers to 0


def penalizes(sampling: SamplingNumbers) -> bool:
    """Whether `penalize` would change anything."""
    return sampling.repetition_penalty != 1 or bool(
        sampling.presence_penalty or sampling.frequency_penalty
    )


def penalize(
    scores: torch.Tensor, history: torch.Tensor, sampling: SamplingNumbers
) -> torch.Tensor:
    """Penalize the tokens of `history` [1, n] (context and output) in scores [1, vocab_size]."""
    if sampling.repetition_penalty != 1:
        scores = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(history, scores)
    if sampling.presence_penalty or sampling.frequency_penalty:  # as defined by OpenAI
        counts = torch.bincount(history[0], minlength=scores.shape[-1]).to(scores.dtype)
        scores = scores - sampling.frequency_penalty * counts
        scores = scores - sampling.presence_penalty * (counts > 0)
    return scores


def warp(scores: torch.Tensor, sampling: SamplingNumbers) -> torch.Tensor:
    """Return the scores [rows, n] of the distribution to draw from; -inf: never drawn.

    The steps follow transformers' order. `sampling.warping` does the same with numpy arrays.
    """
    if sampling.temperature != 1:
        # Subtract the best score first, so that no score overflows. transformers' own warper
        # computes inf - inf, which is NaN, at low temperatures.
        temperature = max(sampling.temperature, _MIN_DIVISOR)
        scores = (scores - scores.amax(-1, keepdim=True)) / temperature
    if 0 < sampling.top_k < scores.shape[-1]:
        scores = TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p < 1:
        scores = _top_p(scores, sampling.top_p)
    if sampling.min_p > 0:  # transformers' own warper would sort
        threshold = scores.amax(-1, keepdim=True) + math.log(sampling.min_p)
        scores = scores.masked_fill(scores < threshold, -torch.inf)
    return scores


def _top_p(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Exclude the least likely tokens with a total probability of at most 1 - top_p."""
    if scores.device.type == "cpu":  # NumPy is faster: PyTorch also sorts the indices
        ranked = torch.from_numpy(np.sort(scores.numpy(), -1))
    else:
        ranked = scores.sort(-1).values
    excluded = ranked.softmax(-1).cumsum(-1)[..., :-1] <= 1 - top_p
    threshold = ranked.gather(-1, excluded.sum(-1, keepdim=True))
    return scores.masked_fill(scores < threshold, -torch.inf)
