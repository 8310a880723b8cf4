"""The steps from logits to the tokens of one call."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tandem.engines.constraints import Bans, TokenMasks
from tandem.engines.noise import Purpose, hash_key, uniform
from tandem.engines.request import EngineRequest
from tandem.engines.torch.noise import keys_on
from tandem.engines.torch.verification import Proposal
from tandem.engines.torch.warping import penalize, penalizes, warp
from tandem.sampling.params import SamplingNumbers

# Upper bounds for the scores of 8 ids, indexed by their byte of a mask: [256, 8]. Much faster than
# a conditional fill.
_CEILINGS = torch.tensor(
    [[torch.inf if octet >> bit & 1 else -torch.inf for bit in range(8)] for octet in range(256)]
)


class TorchSampler:
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
