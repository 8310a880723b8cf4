"""Masked rounds have the target's masked distribution, even if drafts ignore the masks.

The language has words of two tokens (see `words`) and a grammar. The grammar limits the first token
of a word, and the first token determines the allowed second tokens. The exact distribution is
known. Further tests verify that the check detects a single wrong mask.
"""

from __future__ import annotations

import numpy as np
import pytest
from distributions import Warp, fits
from engine_harness import emitted
from masks import masks
from words import ANY, DRAFT, PROMPT, TARGET, VOCAB

from tandem.engines.engine import EngineRequest, SamplingParams
from tandem.engines.noise import Purpose, exponentials
from tandem.engines.stepping.sampling import CallSampler

DRAWS = 600  # a single illegal token fails a test
WARP = Warp(1.3, top_k=8, top_p=0.9)
FIRST = len(PROMPT)

_random = np.random.default_rng(8)
LEGAL = _random.random((VOCAB + 1, VOCAB)) < 0.5  # by previous token, as in TARGET


def exact(warp: Warp) -> np.ndarray:
    """Return the probability of each word, shape [first token, second token]."""
    p = warp.of(np.where(LEGAL, TARGET, -np.inf))
    return p[ANY][:, None] * p[:VOCAB]


class Round:
    """Draft and verify two tokens, then generate missing tokens of the word in another call."""

    def __init__(self, warp: Warp, *, use_draft_logits: bool) -> None:
        self._warp = warp
        self._q = warp.of(self.draft_logits())
        self._use_draft_logits = use_draft_logits

    def word(self, seed: int) -> tuple[int, int]:
        """Generate the two tokens of a word."""
        drafts = self.keep(self._proposed(seed + 10**6 * self._use_draft_logits))
        said = self._call([], drafts, seed)
        if len(said) < 2:
            said += self._call(said, [], seed + 10**7)
        return said[0], said[1]

    def draft_logits(self) -> np.ndarray:
        """Return the draft's logits before warping, in the layout of TARGET."""
        return DRAFT

    def keep(self, drafts: list[int]) -> list[int]:
        """Return the draft tokens that are sent to the target."""
        return drafts

    def masks(self, before: list[int]) -> list[np.ndarray]:
        """Return the allowed tokens after each previous token (ANY: a word begins)."""
        rows, possible = [], True
        for token, following in zip(before, [*before[1:], ANY], strict=True):
            rows.append(np.flatnonzero(LEGAL[token]) if possible else [])
            possible = possible and (following == ANY or bool(LEGAL[token][following]))
        return rows

    def _proposed(self, seed: int) -> list[int]:
        """Draft two tokens without masks."""
        row, tokens = ANY, []
        for position in (FIRST, FIRST + 1):
            noise = exponentials(seed, position, Purpose.SAMPLE, VOCAB)
            row = int((self._q[row] / noise).argmax())
            tokens.append(row)
        return tokens

    def _call(self, said: list[int], drafts: list[int], seed: int) -> list[int]:
        text = [ANY, *said, *drafts]
        before = [ANY if n % 2 == 0 else text[n] for n in range(len(said), len(text))]
        request = EngineRequest(
            "",
            np.array([*PROMPT, *said], np.int32),
            len(drafts) + 1,
            draft_ids=np.array(drafts, np.int32),
            draft_logits=self._logits_of(before[:-1]) if self._use_draft_logits else None,
            token_masks=masks(*self.masks(before), vocab_size=VOCAB),
            sampling=SamplingParams(**vars(self._warp), seed=seed),
        )
        sampler = CallSampler(request, VOCAB)
        return emitted(sampler, TARGET[before], [*PROMPT, *said, *drafts], drafts)

    def _logits_of(self, before: list[int]) -> np.ndarray | None:
        return self.draft_logits()[before] if before else None


def passes(round_of=Round, *, use_draft_logits=True) -> bool:
    """Return whether the generated words have the masked target's distribution."""
    speaker, counts = round_of(WARP, use_draft_logits=use_draft_logits), np.zeros((VOCAB, VOCAB))
    for seed in range(DRAWS):
        counts[speaker.word(seed)] += 1
    expected = exact(WARP)
    return fits(counts.sum(1), expected.sum(1)) and fits(counts, expected)


@pytest.mark.parametrize("use_draft_logits", [False, True], ids=["ids", "logits"])
def test_sampled_tokens_have_the_masked_targets_distribution(use_draft_logits):
    assert passes(use_draft_logits=use_draft_logits)


class DraftsWithMasks(Round):
    """Mask the draft logits like the target's logits."""

    def draft_logits(self):
        return np.where(LEGAL, DRAFT, -np.inf).astype(np.float32)


class CutsTheDraft(Round):
    """End each draft before its first illegal token."""

    def keep(self, drafts):
        kept = [t for t, row in zip(drafts, [ANY, drafts[0]], strict=True) if LEGAL[row][t]]
        return kept if kept == drafts[: len(kept)] else []


class MasksTheFirstRowOnly(Round):
    """Mask only the token after the context, which is wrong."""

    def masks(self, before):
        return [row if n == 0 else range(VOCAB) for n, row in enumerate(super().masks(before))]


def test_masked_drafts_with_logits_keep_the_masked_distribution():
    assert passes(DraftsWithMasks)


def test_cutting_drafts_without_logits_at_illegal_tokens_keeps_the_distribution():
    assert passes(CutsTheDraft, use_draft_logits=False)


@pytest.mark.heavy
@pytest.mark.parametrize("use_draft_logits", [False, True], ids=["ids", "logits"])
def test_the_distribution_test_detects_a_wrong_mask(use_draft_logits):
    assert not passes(MasksTheFirstRowOnly, use_draft_logits=use_draft_logits)
