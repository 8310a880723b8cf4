"""Keeps the output distribution exact with engines whose own verification is inexact.

Engines differ in how they sample and verify. Tandem's own engines follow transformers. TensorRT-LLM
has these peculiarities (samplingTopPKernels.cu, samplingTopKKernels.cu,
externalDraftTokensKernels.cu):

- It compares ids and samples again if they differ. The second sample may be the rejected token,
  which makes that token too likely. So Tandem sends the ids as one-hot log-probabilities, which are
  verified exactly.
- It turns draft logits into probabilities without warping them, that is, without applying
  temperature, top-k and so on. So Tandem sends the warped log-probabilities that the draft engine
  sampled from, padded or cut to the width of the target's logits.
- If several tokens tie at the edge of top-k, it keeps an arbitrary one of them. It gives the last
  token of top-p only the missing probability. Its logits show neither, so with draft logits the
  draft is sampled with the temperature alone.
- Under top-p it verifies with the full probability of the last token, unlike its own sampling. So
  the target decodes alone.

If an engine takes no token masks, a guide is enforced by repair, which isn't exact under top-k or
top-p (``bls.guidance``). In that case, too, the target decodes alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.bls.drafters.registry import BASELINE
from tandem.bls.guidance import guide_method
from tandem.bls.ports import Draft
from tandem.bls.request import Request, Sampling, TokenIds
from tandem.bls.settings import LoopSettings
from tandem.sampling.params import SamplingNumbers
from tandem.sampling.warping import fit_width, probabilities

LOGITS_TYPES = {"FP32": np.float32, "FP16": np.float16}


def make_lossless(request: Request, settings: LoopSettings) -> Request:
    """Return the request, restricted to drafts that don't change its output distribution.

    A request with a draft_acceptance_threshold isn't restricted this way, because it accepts a
    changed distribution.
    """
    if not request.drafter_kind.drafts_in_loop:
        return request
    guided_by_token = request.guide and guide_method(request, settings) == "token_by_token"
    # Only a prefill returns the prompt's logits. Some engines don't compute log-probabilities when
    # they verify a draft.
    log_probs = not request.return_log_probs or settings.target.capabilities.log_probs_with_drafts
    if guided_by_token or request.return_context_logits or not log_probs:
        return _without_drafts(request)
    if request.draft_acceptance_threshold is not None:
        return request
    if request.sampling.greedy:
        # A greedy token is either right or wrong, so logits would only cost time.
        return replace(request, use_draft_logits=False)
    if request.sampling.top_p < 1.0 and not settings.target.capabilities.samples_exactly:
        return _without_drafts(request)
    return request


def draft_sampling(request: Request, settings: LoopSettings) -> Sampling:
    """Return sampling parameters with which the draft engine samples from its logits.

    A draft engine with a different vocabulary gets no parameters that contain the target's ids.
    """
    sampling = request.sampling
    if settings.draft_tokenizer:
        return replace(sampling, bad_words=None, embedding_bias=None)
    if settings.draft_samples_exactly or not request.use_draft_logits or sampling.greedy:
        return sampling
    return Sampling(temperature=sampling.temperature, seed=sampling.seed)


def draft_gets_bans(request: Request, settings: LoopSettings) -> bool:
    """Return whether the request's banned tokens are sent to the draft engine."""
    if settings.draft_tokenizer:
        return False
    return settings.draft_samples_exactly or not request.use_draft_logits


def verification_logits(
    draft: Draft, logits: NDArray[Any] | None, request: Request, settings: LoopSettings
) -> NDArray[Any] | None:
    """Return the draft logits [1, n, vocab_size] for verification, or None to compare ids only.

    logits: raw logits of the draft engine, [1, n, width].
    """
    target = settings.target
    if logits is not None:
        logits = logits[:, : len(draft)]
        if target.capabilities.samples_exactly:
            return logits
        scores = warped_log_probs(logits, draft_sampling(request, settings), target.vocab_size)
    elif request.sampling.greedy or target.capabilities.samples_exactly:
        return None
    else:
        scores = one_hot_log_probs(draft.tokens, target.vocab_size)
    with np.errstate(over="ignore"):  # values below the range of half precision become -inf
        return scores.astype(LOGITS_TYPES[target.logits_dtype])


def warped_log_probs(
    logits: NDArray[Any], sampling: SamplingNumbers, vocab_size: int
) -> NDArray[np.float32]:
    """Return warped log-probabilities [1, n, vocab_size] of a draft's raw logits [1, n, width].

    Tokens that can't be sampled are -inf, and so is padding that exists only in the target. Padding
    that exists only in the draft is cut off, and its probability is spread over the other tokens,
    because a draft is cut before such a token.
    """
    rows = [probabilities(row, sampling) for row in np.asarray(logits[0], np.float32)]
    with np.errstate(divide="ignore"):
        scores: NDArray[np.float32] = np.log(fit_width(np.stack(rows), vocab_size))[np.newaxis]
    return scores


def one_hot_log_probs(tokens: TokenIds, vocab_size: int) -> NDArray[np.float32]:
    """Return log-probabilities [1, n, vocab_size] that give each draft token [n] probability 1.

    The target accepts such a token with its own probability p, and otherwise samples another token
    from p. So the emitted tokens have distribution p, no matter how they were drafted.
    """
    scores = np.full((1, len(tokens), vocab_size), -np.inf, np.float32)
    scores[0, np.arange(len(tokens)), tokens] = 0.0
    return scores


def _without_drafts(request: Request) -> Request:
    return replace(
        request, drafter=BASELINE.name, use_draft_logits=False, draft_acceptance_threshold=None
    )
