"""Requests of the soak test, each with its one right answer: the baseline's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from benchmarks.soak.asking import CONTROL, SoakRequest, ask
from tandem.contract import entry as tensors
from tandem.demo.prompts import SHOWN

MOST_TOKENS = 24
BATCH = 3
WORDS = ("self", "return", " = ")

# Everything that decides a text. Sampled ones have a seed, so that they can be repeated.
MANNERS: tuple[Mapping[str, Any], ...] = (
    {},
    {tensors.TEMPERATURE: 0.9, tensors.SEED: 7},
    {tensors.TOP_K: 20, tensors.TEMPERATURE: 1.2, tensors.SEED: 2**40},
    {tensors.TOP_P: 0.9, tensors.RANDOM_SEED: 11},
    {tensors.REPETITION_PENALTY: 1.3},
    {tensors.PRESENCE_PENALTY: 0.6, tensors.FREQUENCY_PENALTY: 0.3},
    {tensors.STOP_WORDS: WORDS},
    {tensors.BAD_WORDS: WORDS[:2]},
    {tensors.EMBEDDING_BIAS_WORDS: WORDS[:1], tensors.EMBEDDING_BIAS_WEIGHTS: (4.0,)},
    {tensors.MIN_TOKENS: MOST_TOKENS // 2},
)


@dataclass(frozen=True)
class Question:
    """Prompts and how to continue them; ``answers`` are the baseline's, one per prompt."""

    prompts: tuple[str, ...]
    manner: Mapping[str, Any]
    answers: tuple[str, ...] = field(default=())

    @property
    def greedy(self) -> bool:
        """Whether it is decoded greedily."""
        return not self.manner

    @property
    def values(self) -> dict[str, Any]:
        """Inputs besides the prompts."""
        return {tensors.MAX_TOKENS: MOST_TOKENS, **self.manner}


def answered(url: str) -> list[Question]:
    """Return all questions with the baseline's answers. The server must be idle."""
    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(lambda question: _answered(url, question), _questions()))


def _questions() -> Iterator[Question]:
    for number, prompt in enumerate(SHOWN):
        for manner in MANNERS:
            yield Question((prompt,), manner)
        batch = tuple(SHOWN[(number + at) % len(SHOWN)] for at in range(BATCH))
        yield Question(batch, MANNERS[number % len(MANNERS)])


def _answered(url: str, question: Question) -> Question:
    outcome = ask(url, SoakRequest(CONTROL, question.prompts, question.values))
    if outcome.error:
        raise RuntimeError(f"the baseline does not answer: {outcome.error}")
    return Question(question.prompts, question.manner, outcome.texts)
