"""Calls to engines in this process, and a minimal loop over two engines."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from tandem.engines.engine import Engine
from tandem.engines.request import EngineRequest, EngineResponse, SamplingParams

GREEDY = SamplingParams(top_k=1)
_numbers = count()


@dataclass
class SaidText:
    """The output of a loop, and its counts of rounds and of drafted and accepted tokens."""

    tokens: list[int] = field(default_factory=list)
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0


class GreedyCall:
    """A running greedy call for `num_tokens` tokens, which ignores the end of sequence."""

    def __init__(
        self, engine: Engine, ids: Sequence[int], num_tokens: int, drafts: Sequence[int] = ()
    ) -> None:
        self._answers: queue.SimpleQueue[EngineResponse] = queue.SimpleQueue()
        request = EngineRequest(
            request_id=f"benchmark-{next(_numbers)}",
            input_ids=np.array(ids, np.int32),
            max_new_tokens=num_tokens,
            draft_ids=np.array(drafts, np.int32),
            sampling=GREEDY,
        )
        engine.submit(request, self._answers.put)

    def answer(self) -> EngineResponse:
        """Wait for the answer. Raises RuntimeError if the call failed."""
        answer = self._answers.get()
        if answer.error:
            raise RuntimeError(answer.error)
        return answer


def say(engine: Engine, ids: Sequence[int], num_tokens: int) -> list[int]:
    """Generate `num_tokens` tokens after ids with one engine."""
    return list(GreedyCall(engine, ids, num_tokens).answer().tokens)


def speculate(
    target: Engine, draft: Engine, ids: Sequence[int], num_tokens: int, draft_len: int
) -> SaidText:
    """Generate `num_tokens` tokens after ids in rounds of a draft and a verification.

    draft_len: draft tokens per round; 0 for the target alone.
    """
    if not draft_len:
        return SaidText(say(target, ids, num_tokens))
    text = SaidText()
    while (left := num_tokens - len(text.tokens)) > 0:
        context = [*ids, *text.tokens]
        length = min(draft_len, left - 1)
        drafts = say(draft, context, length) if length else []
        tokens = GreedyCall(target, context, length + 1, drafts).answer().tokens
        text.tokens += tokens
        text.rounds += 1
        text.drafted += length
        text.accepted += len(tokens) - 1
    return text
