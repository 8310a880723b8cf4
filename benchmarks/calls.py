"""Calls to engines in this process, and a minimal loop over two engines."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from tandem.engines.engine import Engine
from tandem.engines.request import EngineRequest, EngineResponse

_numbers = count()


@dataclass
class Speculated:
    """The output of a loop.

    target_seconds, computed_tokens: duration and computed tokens of each round's target call.
    """

    tokens: list[int] = field(default_factory=list)
    target_seconds: list[float] = field(default_factory=list)
    computed_tokens: list[int] = field(default_factory=list)


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
        )
        engine.submit(request, self._answers.put)

    def answer(self) -> EngineResponse:
        """Wait for the answer. Raises RuntimeError if the call failed."""
        answer = self._answers.get()
        if answer.error:
            raise RuntimeError(answer.error)
        return answer


def generate(engine: Engine, ids: Sequence[int], num_tokens: int) -> list[int]:
    """Generate `num_tokens` tokens after ids with one engine."""
    return list(GreedyCall(engine, ids, num_tokens).answer().tokens)


def speculate(
    target: Engine, draft: Engine, ids: Sequence[int], num_tokens: int, draft_len: int
) -> Speculated:
    """Generate `num_tokens` tokens after ids in rounds of a draft and a verification."""
    output = Speculated()
    while (left := num_tokens - len(output.tokens)) > 0:
        context = [*ids, *output.tokens]
        length = min(draft_len, left - 1)
        drafts = generate(draft, context, length) if length else []
        began = time.perf_counter()
        answer = GreedyCall(target, context, length + 1, drafts).answer()
        output.target_seconds.append(time.perf_counter() - began)
        output.computed_tokens.append(answer.usage.computed_tokens)
        output.tokens += answer.tokens
    return output
