"""What the crowd asks, and what the control answers: each question has one right answer."""

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

# Everything that decides a text: greedy or sampled with a seed, so that it can be repeated.
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
    """Prompts and how they are to be continued; ``answers`` are the control's, a text a prompt."""

    prompts: tuple[str, ...]
    manner: Mapping[str, Any]
    answers: tuple[str, ...] = field(default=())

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return not self.manner

    @property
    def values(self) -> dict[str, Any]:
        """What is sent beside the prompts."""
        return {tensors.MAX_TOKENS: MOST_TOKENS, **self.manner}


def answered(url: str) -> list[Question]:
    """All questions, with the control's answers; nothing else may be asked meanwhile."""
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
        raise RuntimeError(f"the control does not answer: {outcome.error}")
    return Question(question.prompts, question.manner, outcome.texts)
