"""A language of independent two-token words, whose exact distribution is known.

The first token of a word is drawn from one distribution, and the second token from a distribution
that depends on the first. So every word of a text is a sample of "the next two tokens", and every
first token is a sample of "the next token", regardless of its position in a round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from distributions import Warp
from engine_harness import emitted
from scripted import SETTINGS, decoding_of, play, with_engines

from tandem.bls.ports import BranchDraft, EngineCall, EngineResult
from tandem.bls.request import Request, Sampling
from tandem.engines.engine import EngineRequest, SamplingParams
from tandem.engines.noise import Purpose, exponentials
from tandem.engines.stepping.sampling import CallSampler

VOCAB = 28
ANY = VOCAB  # row for the first token of a word; row t is for the second token after token t

_random = np.random.default_rng(5)
TARGET = _random.normal(0, 1.5, (VOCAB + 1, VOCAB)).astype(np.float32)
DRAFT = (0.96 * TARGET + _random.normal(0, 0.28, TARGET.shape)).astype(np.float32)

PROMPT = np.array([3, 4], np.int32)  # one word
TEXTS = 20
DRAFT_LENS = (3, 2, 4, 1, 3)
AHEAD = with_engines(
    SETTINGS, target={"vocab_size": VOCAB}, draft={"branches": True, "vocab_size": VOCAB}
)
IN_TIME = ("in time", "in time", "late")  # results of drafting ahead, repeated in order


def rows(first: int, before: list[int]) -> list[int]:
    """Return the row of the distribution for each token, starting at position `first`.

    before: for each token, the token that precedes it.
    """
    return [token if (first + i) % 2 else ANY for i, token in enumerate(before)]


def exact(warp: Warp) -> np.ndarray:
    """Return the probabilities of all words, [first token, second token]."""
    p = warp.of(TARGET)
    return p[ANY][:, None] * p[:VOCAB]


class Target:
    """A target that applies an engine's sampler to the language's logits."""

    sampler = CallSampler

    def __init__(self, warp: Warp) -> None:
        self._warp = warp

    def answers(self, call: EngineCall) -> Iterator[EngineResult]:
        draft = call.draft
        logits = draft.logits
        request = EngineRequest(
            request_id="",
            input_ids=call.context,
            max_new_tokens=call.max_new_tokens,
            draft_ids=draft.tokens,
            draft_logits=None if logits is None else logits[: len(draft)],
            sampling=SamplingParams(**vars(self._warp), seed=call.seed),
        )
        sampler = self.sampler(request, VOCAB)
        drafts, text = call.draft.tokens.tolist(), call.context.tolist()
        tokens = self.say(sampler, text, drafts)
        while not drafts and len(tokens) < call.max_new_tokens:
            tokens += self.say(sampler, text + tokens, [])
        yield EngineResult(np.array(tokens, np.int32))

    def say(self, sampler: CallSampler, text: list[int], drafts: list[int]) -> list[int]:
        logits = TARGET[rows(len(text), [text[-1], *drafts])]
        return emitted(sampler, logits, text + drafts, drafts)


class Draft:
    """A draft model with a different distribution, which samples with keyed noise."""

    def __init__(self, warp: Warp) -> None:
        self._probabilities = warp.of(DRAFT)

    def answers(self, call: EngineCall) -> Iterator[EngineResult]:
        first, last = len(call.context), int(call.context[-1])
        if call.branching is None:
            tokens, used = self._drafted(call.seed, first, last, call.max_new_tokens)
            logits = DRAFT[used] if call.wants_logits else None
            yield EngineResult(np.array(tokens, np.int32), draft_logits=logits)
            return
        branches: tuple[BranchDraft, ...] = ()
        for accepted, token, length in self._outcomes(call):
            tokens, _ = self._drafted(call.seed, first + accepted + 1, token, length)
            branches += (BranchDraft(accepted, token, np.array(tokens, np.int32)),)
        yield EngineResult(np.array([], np.int32), branches=branches)

    def _drafted(
        self, seed: int, first: int, last: int, length: int
    ) -> tuple[list[int], list[int]]:
        """Return `length` tokens, starting at position `first`, and the row used for each token.

        last: the token before the first one.
        """
        text, used = [last], []
        for position in range(first, first + length):
            used += rows(position, text[-1:])
            noise = exponentials(seed, position, Purpose.SAMPLE, VOCAB)
            text.append(int((self._probabilities[used[-1]] / noise).argmax()))
        return text[1:], used

    def _outcomes(self, call: EngineCall) -> Iterator[tuple[int, int, int]]:
        """Yield the most likely outcomes: (accepted tokens, next token, length of the branch)."""
        assert call.branching is not None
        text = [int(call.context[-1]), *call.draft.tokens.tolist()]
        places = rows(len(call.context), text)
        for accepted, (count, length) in enumerate(zip(*call.branching, strict=True)):
            likely = self._probabilities[places[accepted]].argsort()[::-1].tolist()
            others = [token for token in likely if [token] != text[accepted + 1 : accepted + 2]]
            yield from ((accepted, token, length) for token in others[:count])


@dataclass
class Spoken:
    """The generated words.

    counts: [first token, second token]. acceptance: share of accepted draft tokens. hits: number of
    rounds that used a draft from drafting ahead.
    """

    counts: np.ndarray
    acceptance: float
    hits: int


def speak(
    words: int, target: Target, draft: Draft, *, use_draft_logits: bool, ahead: bool = False
) -> Spoken:
    """Generate a number of words with the loop, in texts with different seeds and draft lengths."""
    counts = np.zeros((VOCAB, VOCAB))
    drafted = accepted = hits = 0
    for seed in range(TEXTS):
        request = Request(
            prompt_ids=PROMPT,
            max_tokens=2 * words // TEXTS,
            sampling=Sampling(top_k=0, seed=seed),
            drafter="draft_model",
            draft_len=DRAFT_LENS[seed % len(DRAFT_LENS)],
            use_draft_logits=use_draft_logits,
            draft_ahead=ahead,
        )
        decoding = decoding_of(request, AHEAD if ahead else SETTINGS)
        play(decoding, target, draft, IN_TIME)
        count(decoding.sequence.output, counts)
        drafted += decoding.statistics.num_draft_tokens
        accepted += decoding.statistics.num_accepted_draft_tokens
        hits += decoding.statistics.ahead.num_hits
    return Spoken(counts, accepted / drafted, hits)


def count(tokens, counts: np.ndarray) -> None:
    """Add the words of a text to counts [first token, second token]."""
    np.add.at(counts, (tokens[0::2], tokens[1::2]), 1)
