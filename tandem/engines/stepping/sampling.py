"""A call's steps from logits to tokens, and the log-probabilities of its tokens."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.engines.constraints import Bans, TokenMasks
from tandem.engines.engine import EngineRequest, Floats, LikeliestTokens
from tandem.engines.errors import RequestError
from tandem.engines.noise import Purpose, draw, hash_key, uniform
from tandem.engines.stepping.verification import Proposal, verify_probabilities
from tandem.sampling.acceptance import verify_ids
from tandem.sampling.params import SamplingNumbers
from tandem.sampling.warping import fit_width, likeliest, log_probs, probabilities

# Upper bounds for the scores of 8 ids, indexed by their byte of a mask: [256, 8]. Much faster than
# a conditional fill.
_ALLOWED = np.arange(256)[:, np.newaxis] >> np.arange(8) & 1
_CEILINGS = np.where(_ALLOWED, np.float32(np.inf), np.float32(-np.inf))


class Sampled(NamedTuple):
    """The accepted draft tokens and the model's own token after them.

    scores: the logits [vocab_size] of each token after bias, penalties, bans and masks. They may
        share the memory of the model's logits.
    """

    tokens: Sequence[int]
    scores: Sequence[Floats]


class CallSampler:
    """One call's bias, penalties, bans and masks, its warping, and its random numbers."""

    def __init__(self, request: EngineRequest, vocab_size: int) -> None:
        sampling = request.sampling
        self.vocab_size = vocab_size
        self._sampling = sampling
        self._penalizes = _penalizes(sampling)
        self._bans = Bans(request, vocab_size)
        self._masks = TokenMasks(request, vocab_size)
        self._bias = sampling.embedding_bias
        self._changes = self._bias is not None or any((self._penalizes, self._bans, self._masks))
        self.greedy = sampling.greedy
        self.seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        self._draft_logits = request.draft_logits
        self._threshold = request.draft_acceptance_threshold

    def sample(self, logits: Floats, text: NDArray[np.int64], drafts: Sequence[int]) -> Sampled:
        """Verify the drafts, and choose the token after the accepted ones.

        Logits after a rejected draft token aren't processed. Raises RequestError if a token must be
        chosen from a row without finite scores.

        logits: [len(drafts) + 1, vocab_size]. text: the call's tokens, the drafts included.
        """
        first = len(text) - len(drafts)
        scores: list[Floats] = []

        def rows() -> Iterator[Floats]:
            for length, row in enumerate(logits, first):
                scores.append(self.process(row, text[:length]))
                if self._changes and scores[-1].max() == -np.inf:
                    masks = "token_masks, " if self._masks else ""
                    raise RequestError(
                        f"{masks}bad_words_list, embedding_bias and end_id together ban every token"
                    )
                yield scores[-1]

        if self._draft_logits is not None and drafts and not self.greedy:
            p = map(self.probabilities, rows())
            tokens = verify_probabilities(p, self.proposal(drafts, first))
        else:
            own = (self._choose(row, position) for position, row in enumerate(rows(), first))
            tokens = verify_ids(drafts, own)
        return Sampled(tokens, scores)

    def process(self, logits: Floats, history: NDArray[np.int64]) -> Floats:
        """Return the scores of the token after `history`: logits [vocab_size] after all changes."""
        if not self._changes:
            return logits
        scores: Floats = logits.copy() if self._bias is None else logits + self._bias
        if self._penalizes:
            penalize(scores, history, self._sampling)
        if self._bans:
            scores[self._bans.after(history)] = -np.inf
        if self._masks:
            ceilings = _CEILINGS.take(self._masks.allowed_bits(len(history)), axis=0)
            ceilings = ceilings.ravel()[: len(scores)]
            np.minimum(scores, ceilings, out=scores)
        return scores

    def probabilities(self, scores: Floats) -> Floats:
        """Return the probabilities [vocab_size] that the token is drawn from."""
        return probabilities(scores, self._sampling)

    def proposal(self, drafts: Sequence[int], first: int) -> Proposal:
        """Return the draft to verify by its logits. first: position of its first token."""
        assert self._draft_logits is not None
        count, seed, constant = len(drafts), self.seed, self._threshold
        purposes = [Purpose.RESIDUAL] * count + [Purpose.SAMPLE]
        return Proposal(
            drafts,
            # The draft's logits are warped with its own padding, as in the draft engine.
            (fit_width(self.probabilities(row), self.vocab_size) for row in self._draft_logits),
            [
                uniform(seed, first + i, Purpose.ACCEPT) if constant is None else constant
                for i in range(count)
            ],
            [hash_key(seed, first + i, purpose) for i, purpose in enumerate(purposes)],
        )

    def _choose(self, scores: Floats, position: int) -> int:
        if self.greedy:
            return int(scores.argmax())
        return draw(self.probabilities(scores), hash_key(self.seed, position, Purpose.SAMPLE))


def _penalizes(sampling: SamplingNumbers) -> bool:
    """Whether `penalize` would change anything."""
    return sampling.repetition_penalty != 1 or bool(
        sampling.presence_penalty or sampling.frequency_penalty
    )


def penalize(scores: Floats, history: NDArray[np.int64], sampling: SamplingNumbers) -> None:
    """Penalize the tokens of `history` [n] (context and output) in scores [vocab_size]."""
    counts = np.bincount(history)
    seen = np.flatnonzero(counts)
    found: Floats = scores[seen]
    factor = sampling.repetition_penalty
    found = np.where(found < 0, found * factor, found / factor)
    # as defined by OpenAI
    found -= sampling.frequency_penalty * counts[seen].astype(np.float32)
    scores[seen] = found - sampling.presence_penalty


class LogProbRecorder:
    """Collects log-probabilities of tokens and of the k most likely tokens at each position.

    They are the log-softmax of the model's logits, before any processing.
    """

    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self._values: list[float] = []
        self._top_ids: list[list[int]] = []  # [k] each
        self._top_values: list[list[float]] = []

    def add(self, logits: Floats, tokens: Sequence[int]) -> list[float]:
        """Add tokens [n] that were chosen from logits [n or more rows, vocab_size].

        Returns their log-probabilities.
        """
        values: list[float] = []
        for row, token in zip(logits, tokens, strict=False):
            ids = [token]
            if self._num_top:
                ids += likeliest(row, self._num_top).tolist()
            first, *others = log_probs(row, ids).tolist()
            values.append(first)
            self._top_ids.append(ids[1:])
            self._top_values.append(others)
        self._values += values
        return values

    def skip(self, count: int) -> None:
        """Add `count` tokens without predecessors. Their rows are zeros."""
        self._values += [0.0] * count
        self._top_ids += [[0] * self._num_top] * count
        self._top_values += [[0.0] * self._num_top] * count

    def take(self) -> tuple[Floats, LikeliestTokens | None]:
        values = np.array(self._values, np.float32)
        shape = len(values), self._num_top
        ids = np.array(self._top_ids, np.int32).reshape(shape)
        top_values = np.array(self._top_values, np.float32).reshape(shape)
        self._values, self._top_ids, self._top_values = [], [], []
        return values, LikeliestTokens(ids, top_values) if self._num_top else None
