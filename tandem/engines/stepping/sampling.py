"""The steps from logits to tokens and their log-probabilities, of one call and of all in a step."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tandem.engines.constraints import Bans, TokenMasks
from tandem.engines.engine import EngineRequest, Floats, LikeliestTokens
from tandem.engines.noise import Purpose, hash_key, uniform
from tandem.engines.stepping.verification import (
    REJECTED,
    Proposal,
    argmax,
    draw,
    keys_on,
    verify_probabilities,
)
from tandem.sampling.acceptance import verify_ids
from tandem.sampling.params import SamplingNumbers

_MIN_DIVISOR = torch.finfo(torch.float32).tiny  # some devices round smaller numbers to 0
# Upper bounds for the scores of 8 ids, indexed by their byte of a mask: [256, 8]. Much faster than
# a conditional fill.
_CEILINGS = torch.tensor(
    [[torch.inf if octet >> bit & 1 else -torch.inf for bit in range(8)] for octet in range(256)]
)
BANNED = -2  # in place of a token if its row bans every token
_ROWS_AT_ONCE = 64  # rows of a prompt's logits; each has the width of the vocabulary


class CallSampler:
    """One call's bias, penalties, bans and masks, its warping, and its random numbers.

    Rows are consecutive positions: row i sees the tokens before position `first + i`.
    """

    def __init__(self, request: EngineRequest, vocab_size: int, device: torch.device) -> None:
        sampling = request.sampling
        self.device = device
        self.vocab_size = vocab_size
        self._sampling = sampling
        self._penalizes = _penalizes(sampling)
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


def _penalizes(sampling: SamplingNumbers) -> bool:
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


class SamplingInput(NamedTuple):
    """What one call's tokens are sampled from, besides its last logits of a step.

    The call has one row of these logits per draft token, and one more.

    text: the call's tokens. first: position of the token that is sampled from the first row.
    wants_log_probs: whether the call needs log-probabilities of its tokens.
    """

    sampler: CallSampler
    text: NDArray[np.int64]
    first: int
    drafts: Sequence[int]
    wants_log_probs: bool

    @property
    def rows(self) -> int:
        return len(self.drafts) + 1


class StepOutput(NamedTuple):
    """One call's result of a step. Tensors are on the model's device.

    logits: [rows, vocab_size], of the model.

    The rest is only for calls with a `SamplingInput`:

    scores: [call.rows, vocab_size], the last logits after bias, penalties, bans and masks.
    tokens: the accepted draft tokens, then the model's own token or `BANNED`.
    log_probs: log-softmax of the logits at these tokens; empty if no call needs them.
    """

    logits: torch.Tensor
    scores: torch.Tensor | None = None
    tokens: Sequence[int] = ()
    log_probs: Sequence[float] = ()


class _Placed(NamedTuple):
    """A call and its range among the rows that tokens are sampled from."""

    call: SamplingInput
    start: int
    end: int


class _Draw(NamedTuple):
    """Rows with the same sampling parameters. rows: [n], their indices. keys: [n], noise keys."""

    sampler: CallSampler
    rows: torch.Tensor
    keys: torch.Tensor


class StepSampler:
    """Samples the tokens of all calls in a step, and verifies their drafts."""

    def __init__(
        self,
        calls: Sequence[SamplingInput | None],
        counts: Sequence[int],
        device: torch.device,
    ) -> None:
        """Copy the inputs to the device before the step; a later copy would wait for the step.

        calls: one input per call in the step; None: the call needs only its logits. counts: number
        of rows per call.
        """
        self._calls, self._counts = calls, counts
        self._placed: list[_Placed] = []
        used: list[int] = []
        for call, end in zip(calls, np.cumsum(counts).tolist(), strict=True):
            if call is not None:
                self._placed.append(_Placed(call, len(used), len(used) + call.rows))
                used += range(end - call.rows, end)
        self._used = torch.tensor(used, device=device)
        self._draws = self._group_draws(device)
        self._proposals = [
            (placed, placed.call.sampler.proposal(placed.call.drafts, placed.call.first))
            for placed in self._placed
            if placed.call.sampler.verifies_by_logits
        ]

    def sample(self, logits: torch.Tensor) -> list[StepOutput]:
        """Return each call's result. logits: [rows, vocab_size], of all calls."""
        parts = torch.split(logits, list(self._counts))
        if not self._placed:
            return [StepOutput(part) for part in parts]
        rows = logits if len(self._used) == len(logits) else logits[self._used]
        scores = self._process_logits(rows)
        tokens = self._sample(scores)
        copied = [tokens.int()]
        if any(placed.call.wants_log_probs for placed in self._placed):
            chosen = tokens.clamp(min=0)[:, None]
            copied.append(rows.float().log_softmax(-1).gather(1, chosen)[:, 0].view(torch.int32))
        host = torch.stack(copied).cpu().numpy()
        ids, log_probs = host[0].tolist(), host[1:].view(np.float32).ravel().tolist()
        results, placed = [], iter(self._placed)
        for call, part in zip(self._calls, parts, strict=True):
            if call is None:
                results.append(StepOutput(part))
                continue
            _, start, end = next(placed)
            emitted = _emitted_tokens(call, ids[start:end])
            results.append(
                StepOutput(
                    part, scores[start:end], emitted, log_probs[start : start + len(emitted)]
                )
            )
        return results

    def _process_logits(self, rows: torch.Tensor) -> torch.Tensor:
        looking = [placed for placed in self._placed if placed.call.sampler.looks_at_text]
        if not looking:
            return rows
        scores = rows.to(torch.float32, copy=True)
        for call, start, end in looking:
            scores[start:end] = call.sampler.process(rows[start:end], call.text, call.first)
        return scores

    def _sample(self, scores: torch.Tensor) -> torch.Tensor:
        """Return a token per row of scores [rows, vocab_size], or `REJECTED` or `BANNED`."""
        tokens = argmax(scores)
        for sampler, rows, keys in self._draws:
            tokens[rows] = draw(sampler.probabilities(scores[rows]), keys)
        for (call, start, end), proposal in self._proposals:
            p = call.sampler.probabilities(scores[start:end])
            tokens[start:end] = verify_probabilities(p, proposal)
        if any(placed.call.sampler.looks_at_text for placed in self._placed):
            banned = (scores.amax(-1) == -torch.inf) & (tokens != REJECTED)
            tokens = tokens.masked_fill(banned, BANNED)
        return tokens

    def _group_draws(self, device: torch.device) -> list[_Draw]:
        groups: dict[SamplingNumbers, list[_Placed]] = {}
        for placed in self._placed:
            sampler = placed.call.sampler
            if not (sampler.greedy or sampler.verifies_by_logits):
                groups.setdefault(sampler.numbers, []).append(placed)
        draws = []
        for members in groups.values():
            keys = [
                hash_key(call.sampler.seed, call.first + i, Purpose.SAMPLE)
                for call, start, end in members
                for i in range(end - start)
            ]
            rows = [row for _, start, end in members for row in range(start, end)]
            draws.append(
                _Draw(
                    members[0].call.sampler,
                    torch.tensor(rows, device=device),
                    keys_on(device, keys),
                )
            )
        return draws


def _emitted_tokens(call: SamplingInput, sampled: list[int]) -> list[int]:
    """Return the tokens that a call emits.

    sampled: a token per row; in logits mode, the result of `verify_probabilities`.
    """
    if call.sampler.verifies_by_logits:
        return list(takewhile(lambda token: token != REJECTED, sampled))
    return verify_ids(call.drafts, sampled)


class LogProbRecorder:
    """Collects log-probabilities of tokens and of the k most likely tokens at each position.

    They are the log-softmax of the model's logits, before any processing.
    """

    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self._values: list[float] = []
        self._top_ids: list[torch.Tensor] = []  # [n, k] each
        self._top_values: list[torch.Tensor] = []

    def add(self, logits: torch.Tensor, tokens: Sequence[int]) -> None:
        """Add tokens [n] that were chosen from logits [n, vocab_size]."""
        for start in range(0, len(tokens), _ROWS_AT_ONCE):
            chosen = tokens[start : start + _ROWS_AT_ONCE]
            rows = logits[start : start + len(chosen)].float().log_softmax(-1)
            self._values += rows[range(len(chosen)), chosen].tolist()
            if self._num_top:
                values, ids = rows.topk(self._num_top, -1)
                self._top_values.append(values.cpu())
                self._top_ids.append(ids.int().cpu())

    def add_known(self, values: Sequence[float]) -> None:
        """Add tokens with known log-probabilities and no alternatives."""
        self._values += values

    def skip(self, count: int) -> None:
        """Add `count` tokens without predecessors. Their rows are zeros."""
        self._values += [0.0] * count
        if self._num_top:
            self._top_values.append(torch.zeros(count, self._num_top))
            self._top_ids.append(torch.zeros(count, self._num_top, dtype=torch.int32))

    def take(self) -> tuple[Floats, LikeliestTokens | None]:
        values, self._values = self._values, []
        if not self._num_top:
            return np.array(values, np.float32), None
        nothing = torch.empty(0, self._num_top)  # there may be no tokens
        top_ids = torch.cat((nothing.int(), *self._top_ids)).numpy()
        top_values = torch.cat((nothing, *self._top_values)).numpy()
        self._top_ids, self._top_values = [], []
        return np.array(values, np.float32), LikeliestTokens(top_ids, top_values)
