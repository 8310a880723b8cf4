"""Choose the tokens of one call from logits."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tandem.engines.constraints import Bans, TokenMasks
from tandem.engines.errors import RequestError
from tandem.engines.noise import Purpose, key_of, uniform
from tandem.engines.request import EngineRequest
from tandem.engines.torch.noise import exponentials_of, keys_on
from tandem.engines.torch.processors import penalize, penalizes, warp
from tandem.engines.torch.scores import LazyRows, Row, Rows
from tandem.engines.torch.verification import (
    DeviceDrafts,
    draw,
    verify_ids,
    verify_probabilities,
    verify_probabilities_on_device,
)
from tandem.sampling.params import SamplingNumbers

# Upper bounds for the scores of 8 ids, indexed by their byte of a mask: [256, 8]. Much faster than
# a conditional fill.
_CEILINGS = torch.tensor(
    [[torch.inf if octet >> bit & 1 else -torch.inf for bit in range(8)] for octet in range(256)]
)


class TorchSampler:
    """Chooses a call's tokens: bias, penalties, bans and masks, then argmax or warped sampling.

    Rows are consecutive positions: row i sees the tokens before position `first + i`.
    """

    def __init__(self, request: EngineRequest, vocab_size: int, device: torch.device) -> None:
        sampling = request.sampling
        self._device = device
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

    def process(self, logits: torch.Tensor, tokens: NDArray[np.int64], first: int) -> Rows:
        """Return logits [rows, vocab_size] after bias, penalties, bans and masks.

        tokens: the text; row i sees tokens[: first + i]. Reading a row raises RequestError if every
        token of the row is banned.
        """
        if not self.looks_at_text:
            return logits
        return LazyRows(len(logits), lambda i: self._processed(logits[i], tokens[: first + i]))

    def choose(self, scores: Rows, first: int) -> list[int]:
        """Return a token per row of scores [rows, vocab_size]. first: position of row 0's token."""
        if self.greedy and isinstance(scores, torch.Tensor):
            tokens: list[int] = scores.argmax(-1).tolist()
            return tokens
        return [self._token(scores[i], first + i) for i in range(len(scores))]

    def choose_on_device(self, logits: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return a token per row of logits [rows, vocab_size], drawn with the noise keys [rows].

        Equivalent to `choose` if no processor depends on the text. Copies nothing to the host.
        """
        return (self._warped(logits) / exponentials_of(keys, self.vocab_size)).argmax(-1)

    def drafts_on_device(self, drafts: Sequence[int], first: int) -> DeviceDrafts:
        """Return the inputs of `verify_on_device`, which this copies to the device."""
        assert self._draft_logits is not None
        count, seed, constant = len(drafts), self.seed, self._threshold
        purposes = [Purpose.RESIDUAL] * count + [Purpose.SAMPLE]
        keys = [key_of(seed, first + i, purpose) for i, purpose in enumerate(purposes)]
        u = [
            uniform(seed, first + i, Purpose.ACCEPT) if constant is None else constant
            for i in range(count)
        ]
        return DeviceDrafts(
            torch.tensor(drafts, device=self._device),
            self._proposed(torch.from_numpy(self._draft_logits)),
            torch.tensor(u, dtype=torch.float64, device=self._device),
            keys_on(self._device, keys),
        )

    def verify_on_device(self, logits: torch.Tensor, drafts: DeviceDrafts) -> torch.Tensor:
        """Like `verify`, by logits. Return the emitted tokens [drafts + 1], padded with -1."""
        return verify_probabilities_on_device(self._warped(logits), drafts)

    def verify(self, scores: Rows, drafts: Sequence[int], first: int) -> list[int]:
        """Return the tokens that a verification emits. scores: [len(drafts) + 1, vocab_size]."""
        if not self.verifies_by_logits:
            if self.greedy and isinstance(scores, torch.Tensor):
                return verify_ids(drafts, self.choose(scores, first))
            own = (self._token(scores[i], first + i) for i in range(len(scores)))
            return verify_ids(drafts, own)
        assert self._draft_logits is not None
        draft_logits = torch.from_numpy(self._draft_logits)
        return verify_probabilities(
            drafts,
            LazyRows(len(scores), lambda i: self._probabilities(scores[i])),
            LazyRows(len(drafts), lambda i: self._proposed(draft_logits[i : i + 1])[0]),
            seed=self.seed,
            position=first,
            threshold=self._threshold,
        )

    def _token(self, row: Row, position: int) -> int:
        if self.greedy:
            return int(row.argmax())
        return draw(self._probabilities(row), self.seed, position, Purpose.SAMPLE)

    def _proposed(self, draft_logits: torch.Tensor) -> torch.Tensor:
        """Return the probabilities [rows, vocab_size] that draft tokens were drawn from."""
        return _at_width(self._warped(draft_logits.to(self._device)), self.vocab_size)

    def _probabilities(self, row: Row) -> Row:
        return self._warped(row[None])[0]

    def _warped(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the probabilities [rows, vocab_size] that tokens are drawn from."""
        return warp(scores.float(), self.numbers).softmax(-1)

    def _processed(self, row: Row, history: NDArray[np.int64]) -> Row:
        """Return the processed logits [vocab_size] for the token after `history`."""
        scores = row[None] if self._bias is None else row[None] + self._bias
        if self._penalizes:
            ids = torch.from_numpy(history).to(self._device)[None]
            scores = penalize(scores, ids, self._sampling)
        if self._bans:
            banned = torch.from_numpy(self._bans.after(history)).to(self._device)
            scores = scores.index_fill(-1, banned.long(), -torch.inf)
        if self._masks:
            ceilings = self._ceilings(len(history))
            scores = torch.minimum(scores, ceilings, out=ceilings)  # reuse the memory
        if not bool(scores.amax() > -torch.inf):
            masks = "token_masks, " if self._masks else ""
            raise RequestError(
                f"{masks}bad_words_list, embedding_bias and end_id together ban every token"
            )
        return scores[0]

    def _ceilings(self, position: int) -> torch.Tensor:
        """Return upper bounds for scores [1, vocab_size]: -inf for ids that the mask disallows."""
        octets = torch.from_numpy(self._masks.octets(position)).to(self._device)
        rows = _CEILINGS.to(self._device).index_select(0, octets.int())
        return rows.view(1, -1)[:, : self.vocab_size]


def _at_width(q: torch.Tensor, vocab_size: int) -> torch.Tensor:
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
