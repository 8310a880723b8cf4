"""The steps from logits to the tokens of one call."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tandem.engines.constraints import Bans, TokenMasks
from tandem.engines.engine import EngineRequest, Floats
from tandem.engines.noise import Purpose, hash_key, uniform
from tandem.engines.stepping.verification import Proposal, keys_on
from tandem.sampling.params import SamplingNumbers

_MIN_DIVISOR = torch.finfo(torch.float32).tiny  # some devices round smaller numbers to 0
# Upper bounds for the scores of 8 ids, indexed by their byte of a mask: [256, 8]. Much faster than
# a conditional fill.
_CEILINGS = torch.tensor(
    [[torch.inf if octet >> bit & 1 else -torch.inf for bit in range(8)] for octet in range(256)]
)


class CallSampler:
    """One call's bias, penalties, bans and masks, its warping, and its random numbers.

    Rows are consecutive positions: row i sees the tokens before position `first + i`.
    """

    def __init__(self, request: EngineRequest, vocab_size: int, device: torch.device) -> None:
        sampling = request.sampling
        self.device = device
        self.vocab_size = vocab_size
        self._sampling = sampling
        self._penalizes = penalizes(sampling)
        self._bans = Bans(request, vocab_size)
        self._masks = TokenMasks(request, vocab_size)
        bias = sampling.embedding_bias
        self._bias = None if bias is None else torch.from_numpy(bias).to(device)
        self.greedy = sampling.greedy
        self.numbers: SamplingNumbers = sampling.numbers  # hashable, unlike `sampling`
        self.seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        self._draft_logits = request.draft_logits
        self._threshold = request.draft_acceptance_threshold

    @property
    def looks_at_text(self) -> bool:
        return self._bias is not None or any((self._penalizes, self._bans, self._masks))

    @property
    def verifies_by_logits(self) -> bool:
        logits = self._draft_logits
        return logits is not None and len(logits) > 0 and not self.greedy

    @property
    def all_banned(self) -> str:
        """The error for a token that must be chosen from a row without finite scores."""
        masks = "token_masks, " if self._masks else ""
        return f"{masks}bad_words_list, embedding_bias and end_id together ban every token"

    def process(self, logits: torch.Tensor, tokens: NDArray[np.int64], first: int) -> torch.Tensor:
        """Return logits [rows, vocab_size] after bias, penalties, bans and masks.

        tokens: the text; row i sees tokens[: first + i].
        """
        if not self.looks_at_text:
            return logits
        rows = [self._process_logits(logits[i], tokens[: first + i]) for i in range(len(logits))]
        return torch.stack(rows)

    def probabilities(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the probabilities [rows, vocab_size] that tokens are drawn from."""
        return warp(scores.float(), self.numbers).softmax(-1)

    def proposal(self, drafts: Sequence[int], first: int) -> Proposal:
        """Return the draft to verify by its logits. Copies the logits to the device."""
        assert self._draft_logits is not None
        count, seed, constant = len(drafts), self.seed, self._threshold
        purposes = [Purpose.RESIDUAL] * count + [Purpose.SAMPLE]
        keys = [hash_key(seed, first + i, purpose) for i, purpose in enumerate(purposes)]
        u = [
            uniform(seed, first + i, Purpose.ACCEPT) if constant is None else constant
            for i in range(count)
        ]
        q = self.probabilities(torch.from_numpy(self._draft_logits).to(self.device))
        return Proposal(
            torch.tensor(drafts, device=self.device),
            _fit_width(q, self.vocab_size),
            torch.tensor(u, dtype=torch.float64, device=self.device),
            keys_on(self.device, keys),
        )

    def _process_logits(self, row: torch.Tensor, history: NDArray[np.int64]) -> torch.Tensor:
        """Return the processed logits [vocab_size] for the token after `history`."""
        scores = row[None] if self._bias is None else row[None] + self._bias
        if self._penalizes:
            ids = torch.from_numpy(history).to(self.device)[None]
            scores = penalize(scores, ids, self._sampling)
        if self._bans:
            banned = torch.from_numpy(self._bans.after(history)).to(self.device)
            scores = scores.index_fill(-1, banned.long(), -torch.inf)
        if self._masks:
            ceilings = self._ceilings(len(history))
            scores = torch.minimum(scores, ceilings, out=ceilings)  # reuse the memory
        return scores[0]

    def _ceilings(self, position: int) -> torch.Tensor:
        """Return upper bounds for scores [1, vocab_size]: -inf for ids that the mask disallows."""
        octets = torch.from_numpy(self._masks.allowed_bits(position)).to(self.device)
        rows = _CEILINGS.to(self.device).index_select(0, octets.int())
        return rows.view(1, -1)[:, : self.vocab_size]


def _fit_width(q: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Fit a draft's probabilities to the target's vocabulary, which has different padding.

    The probabilities were warped with the draft's padding, as in the draft engine. Both
    vocabularies contain the drawn tokens. The probability of additional padding is spread over the
    other tokens.
    """
    missing = vocab_size - q.shape[-1]
    if missing >= 0:
        return torch.nn.functional.pad(q, (0, missing)) if missing else q
    q = q[:, :vocab_size]
    return q / q.sum(-1, keepdim=True)


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
        seen = scores.gather(-1, history)
        factor = sampling.repetition_penalty
        scores = scores.scatter(-1, history, torch.where(seen < 0, seen * factor, seen / factor))
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
        threshold = scores.topk(sampling.top_k).values[..., -1:]
        scores = scores.masked_fill(scores < threshold, -torch.inf)
    if sampling.top_p < 1:
        scores = _top_p(scores, sampling.top_p)
    if sampling.min_p > 0:  # transformers' own warper would sort
        threshold = scores.amax(-1, keepdim=True) + math.log(sampling.min_p)
        scores = scores.masked_fill(scores < threshold, -torch.inf)
    return scores


def _top_p(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Exclude the least likely tokens with a total probability of at most 1 - top_p."""
    if scores.device.type == "cpu":
        rows = zip(scores.numpy(), scores.softmax(-1).numpy(), strict=True)
        thresholds = [_top_p_threshold(row, p, 1 - top_p) for row, p in rows]
        threshold = torch.tensor(thresholds, dtype=scores.dtype)[:, None]
    else:
        ranked = scores.sort(-1).values
        excluded = ranked.softmax(-1).cumsum(-1)[..., :-1] <= 1 - top_p
        threshold = ranked.gather(-1, excluded.sum(-1, keepdim=True))
    return scores.masked_fill(scores < threshold, -torch.inf)


def _top_p_threshold(scores: Floats, p: Floats, left_out: float) -> float:
    """Return the lowest score that is kept if `left_out` of the probability may be excluded.

    scores, p: [n]. Even all tokens together whose probability is at most left_out / n don't exceed
    it. So they are excluded, and only the few others are sorted.
    """
    likely = p > left_out / len(p)
    likely[p.argmax()] = True
    order = np.argsort(scores[likely])
    total = np.cumsum(p[likely][order], dtype=np.float64)
    excluded = (1 - total[-1]) + total[:-1] <= left_out
    return float(scores[likely][order][excluded.sum()])
