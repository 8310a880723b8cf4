"""A language whose sampled texts are independent draws: what comes next is known exactly.

Its words have two tokens. The first is drawn from one distribution; the second from one that
depends on the first. So every word of a text is a draw of "the next two tokens", and its first
token one of "the next token", wherever in a round it falls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from distributions import Warp
from scripted import decoding_of, play

from tandem.bls.effects import EngineAnswer, EngineCall
from tandem.bls.request import Request, Sampling
from tandem.engines.noise import Purpose, exponentials
from tandem.engines.request import EngineRequest, SamplingParams
from tandem.engines.torch.sampling import TorchSampler

VOCAB = 28
CPU = torch.device("cpu")
ANY = VOCAB  # row of the first token of a word; row t: of the second, behind a first token t

_random = np.random.default_rng(5)
TARGET = _random.normal(0, 1.5, (VOCAB + 1, VOCAB)).astype(np.float32)
DRAFT = (0.96 * TARGET + _random.normal(0, 0.28, TARGET.shape)).astype(np.float32)

PROMPT = np.array([3, 4], np.int32)  # one word
TEXTS = 20
DRAFT_LENS = (3, 2, 4, 1, 3)


def rows(first: int, before: list[int]) -> list[int]:
    """Which distributions the tokens from position `first` on are drawn from.

    before: the tokens that precede each of them.
    """
    return [token if (first + i) % 2 else ANY for i, token in enumerate(before)]


def exact(warp: Warp) -> np.ndarray:
    """Probabilities of the words, [first token, second token]."""
    p = warp.of(TARGET)
    return p[ANY][:, None] * p[:VOCAB]


class Target:
    """The torch engine's sampler over the language: logits in, verified tokens out."""

    def __init__(self, warp: Warp) -> None:
        self._warp = warp
        self._logits = torch.from_numpy(TARGET)

    def answers(self, call: EngineCall) -> Iterator[EngineAnswer]:
        request = EngineRequest(
            request_id="",
            input_ids=call.context,
            max_new_tokens=call.max_new_tokens,
            draft_ids=call.draft.tokens,
            draft_logits=call.draft.logits,
            sampling=SamplingParams(
                self._warp.temperature, self._warp.top_k, self._warp.top_p, seed=call.seed
            ),
        )
        sampler = TorchSampler(request, VOCAB, CPU)
        drafts, first = call.draft.tokens.tolist(), len(call.context)
        scores = self._logits[rows(first, [int(call.context[-1]), *drafts])]
        yield EngineAnswer(np.array(self.say(sampler, scores, drafts, first), np.int32))

    def say(
        self, sampler: TorchSampler, scores: torch.Tensor, drafts: list[int], first: int
    ) -> list[int]:
        return sampler.verify(scores, drafts, first) if drafts else sampler.choose(scores, first)


class Draft:
    """A model that expects something else; it draws from exact probabilities, by keyed noise."""

    def __init__(self, warp: Warp) -> None:
        self._probabilities = warp.of(DRAFT)

    def answers(self, call: EngineCall) -> Iterator[EngineAnswer]:
        first = len(call.context)
        text, used = [int(call.context[-1])], []
        for position in range(first, first + call.max_new_tokens):
            used += rows(position, text[-1:])
            noise = exponentials(call.seed, position, Purpose.SAMPLE, VOCAB)
            text.append(int((self._probabilities[used[-1]] / noise).argmax()))
        yield EngineAnswer(
            np.array(text[1:], np.int32), logits=DRAFT[used] if call.wants_logits else None
        )


@dataclass
class Spoken:
    """Words that were said, counted [first token, second token]; and the share of right drafts."""

    counts: np.ndarray
    acceptance: float


def speak(words: int, target: Target, draft: Draft, *, use_draft_logits: bool) -> Spoken:
    """Have the loop say so many words: texts with a seed and a draft length of their own."""
    counts = np.zeros((VOCAB, VOCAB))
    drafted = accepted = 0
    for seed in range(TEXTS):
        request = Request(
            prompt_ids=PROMPT,
            max_tokens=2 * words // TEXTS,
            sampling=Sampling(top_k=0, seed=seed),
            drafter="draft_model",
            draft_len=DRAFT_LENS[seed % len(DRAFT_LENS)],
            use_draft_logits=use_draft_logits,
        )
        decoding = decoding_of(request)
        play(decoding, target, draft)
        count(decoding.sequence.output, counts)
        drafted += decoding.statistics.num_draft_tokens
        accepted += decoding.statistics.num_accepted_draft_tokens
    return Spoken(counts, accepted / drafted)


def count(tokens, counts: np.ndarray) -> None:
    """Add a text's words to counts [first token, second token]."""
    np.add.at(counts, (tokens[0::2], tokens[1::2]), 1)
