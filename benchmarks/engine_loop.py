"""The decoding loop with engines of this process, without Triton."""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from tandem.bls.drafters.drafter import DrafterContext
from tandem.bls.errors import EngineCallError
from tandem.bls.loop import Decoding
from tandem.bls.ports import Chunk, DecodedText, EngineCall, EngineResult, EngineRole
from tandem.bls.request import Request, TokenIds
from tandem.engines.engine import Engine, EngineRequest, EngineResponse

_numbers = count()


def ask(engine: Engine, request: EngineRequest) -> EngineResponse:
    """Make a call and wait for its answer. Raises EngineCallError."""
    answers: queue.SimpleQueue[EngineResponse] = queue.SimpleQueue()
    engine.submit(request, answers.put)
    answer = answers.get()
    if answer.error:
        raise EngineCallError(request.request_id, answer.error)
    return answer


@dataclass
class Loop:
    """The `LoopPorts` of one text.

    Attributes:
        tokens: the answer so far.
        computed: number of tokens that the target computed, per verification.

    """

    engines: Mapping[EngineRole, Engine]
    tokens: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    _text: str = field(default_factory=lambda: f"benchmark-{next(_numbers)}")

    def run(self, request: Request, context: DrafterContext) -> Decoding:
        """Generate the answer to a greedy request."""
        decoding = Decoding(request, context)
        decoding.run(self)
        return decoding

    def call(self, call: EngineCall) -> EngineResult:
        began, began_ns = time.monotonic(), time.time_ns()
        answer = ask(
            self.engines[call.engine],
            EngineRequest(
                request_id=f"{self._text}.{next(_numbers)}",
                input_ids=call.context,
                max_new_tokens=call.max_new_tokens,
                draft_ids=call.draft.tokens,
                draft_stop_probability=call.stop_probability or None,
                return_log_probs=call.wants_log_probs,
            ),
        )
        if len(call.draft):
            self.computed.append(answer.usage.computed_tokens)
        return EngineResult(
            tokens=np.array(answer.tokens, np.int32),
            seconds=time.monotonic() - began,
            engine_seconds=(answer.usage.last_token_time_ns - began_ns) / 1e9,
            log_probs=answer.log_probs,
        )

    def call_ahead(self, call: EngineCall) -> Future[EngineResult] | None:  # noqa: ARG002
        return None

    def stop_ahead(self) -> None: ...

    def reserve(self, num_output_tokens: int) -> bool:  # noqa: ARG002
        return True

    def decode(
        self,
        window: TokenIds,  # noqa: ARG002
        context_length: int | None,  # noqa: ARG002
        *,
        wants_lengths: bool = False,  # noqa: ARG002
    ) -> DecodedText:
        return DecodedText("")

    def send(self, chunk: Chunk) -> None:
        self.tokens += chunk.tokens.tolist()
