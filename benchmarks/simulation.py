"""A bare sequential loop over two emulated engines, in virtual time: exact, and done at once.

It says what engines allow that draft and verify in turns: `published_rows` holds it against what
others measured, `orchestration` what the product takes beside it. `loop_simulation` runs the
product's own loop over the same engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandem.contract.model_parameters import decode
from tandem.engines.emulated.engine import MS, EmulatedEngine
from tandem.engines.emulated.settings import EmulatedSettings
from tandem.engines.emulated.timers import VirtualTimer
from tandem.engines.engine import Engine
from tandem.engines.load import of_its_kind
from tandem.engines.request import EngineRequest, EngineResponse
from tandem.tools.profiles import deployment
from tandem.tools.profiles.engines.base import EnginePlan

PROMPT_LEN = 64
ANSWER_LEN = 500


@dataclass(frozen=True)
class SimulatedRun:
    """What a loop did; the time is emulated."""

    tokens: int
    rounds: int
    drafted: int
    accepted: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Emulated throughput."""
        return self.tokens / self.seconds

    @property
    def tokens_per_round(self) -> float:
        """Emitted per propose + verify."""
        return self.tokens / self.rounds


class Loop:
    """Propose, verify, accept, and again; one request at a time.

    orchestration_ms: what a round costs besides its two engine calls.
    """

    def __init__(self, profile: Path, *, orchestration_ms: float) -> None:
        """Make the two engines of a profile, on one virtual clock."""
        planned = deployment.load(profile)
        assert planned.draft is not None
        self._timer = VirtualTimer()
        self._target = EmulatedEngine(engine_settings(planned.target), self._timer)
        self._draft = EmulatedEngine(engine_settings(planned.draft), self._timer)
        self._orchestration_ns = round(orchestration_ms * MS)

    def run(
        self, responses: int, *, draft_len: int = 0, stop_probability: float | None = None
    ) -> SimulatedRun:
        """Answer that many prompts with `ANSWER_LEN` tokens each; draft_len 0: the target alone."""
        begin_ns = self._timer.now_ns()
        rounds = drafted = accepted = 0
        for number in range(responses):
            text = np.random.default_rng(number).integers(1, 3000, PROMPT_LEN, np.int32)
            while (left := PROMPT_LEN + ANSWER_LEN - len(text)) > 0:
                drafts = self._propose(text, min(draft_len, left - 1), stop_probability)
                answer = self._verify(text, drafts)
                text = np.concatenate((text, np.array(answer.tokens, np.int32)))
                rounds += 1
                drafted += len(drafts)
                accepted += answer.usage.accepted_tokens
                self._timer.pass_ns(self._orchestration_ns)
        seconds = (self._timer.now_ns() - begin_ns) / 1e9
        return SimulatedRun(responses * ANSWER_LEN, rounds, drafted, accepted, seconds)

    def _propose(
        self, text: NDArray[np.int32], length: int, stop_probability: float | None
    ) -> NDArray[np.int32]:
        if not length:
            return np.empty(0, np.int32)
        request = EngineRequest("", text, length, draft_stop_probability=stop_probability)
        return np.array(self._call(self._draft, request).tokens, np.int32)

    def _verify(self, text: NDArray[np.int32], drafts: NDArray[np.int32]) -> EngineResponse:
        return self._call(self._target, EngineRequest("", text, len(drafts) + 1, draft_ids=drafts))

    def _call(self, engine: Engine, request: EngineRequest) -> EngineResponse:
        responses: list[EngineResponse] = []
        engine.submit(request, responses.append)
        while not responses:
            self._timer.advance()
        return responses[0]


def engine_settings(planned: EnginePlan) -> EmulatedSettings:
    """The settings of this engine's model."""
    given = {name: {"string_value": value} for name, value in planned.parameters.items()}
    return decode(EmulatedSettings, of_its_kind({"parameters": given}))
