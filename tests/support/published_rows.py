"""Simulates engine pairs for which NVIDIA published throughputs.

A sequential loop runs over emulated engines in virtual time. The emulated profiles describe the
pairs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from model_configs import model_config
from numpy.typing import NDArray
from paths import ROOT
from virtual_timer import VirtualTimer

from tandem.contract.model_parameters import decode
from tandem.engines.emulated.engine import MS, EmulatedEngine
from tandem.engines.emulated.settings import EmulatedSettings
from tandem.engines.engine import Engine, EngineRequest, EngineResponse
from tandem.engines.kinds import without_common_parameters
from tandem.tools.profiles import deployment
from tandem.tools.profiles.engines.base import EnginePlan

PUBLISHED = json.loads((ROOT / "tests" / "data" / "published_rows.json").read_text())
PROMPT_LEN = 64
ANSWER_LEN = 500


class PublishedPair(NamedTuple):
    """A pair with published throughputs, and the profile that emulates it."""

    name: str
    profile: Path
    published: float  # tokens per second with speculation
    baseline: float  # tokens per second of the target alone


class SequentialLoop:
    """A loop over emulated engines that handles one request at a time.

    orchestration_ms: overhead per round in milliseconds, in addition to the two engine calls.
    """

    def __init__(self, profile: Path, *, orchestration_ms: float) -> None:
        planned = deployment.load(profile)
        assert planned.draft is not None
        self._timer = VirtualTimer()
        self._target = EmulatedEngine(_settings_of(planned.target), self._timer)
        self._draft = EmulatedEngine(_settings_of(planned.draft), self._timer)
        self._orchestration_ns = round(orchestration_ms * MS)

    def run(
        self, answers: int, *, draft_len: int = 0, stop_probability: float | None = None
    ) -> float:
        """Generate ``answers`` answers of `ANSWER_LEN` tokens each; return tokens per second.

        draft_len: draft tokens per round; 0 for the target alone. stop_probability: the draft
        engine ends a draft early if the probability of a token falls below this value.
        """
        begin_ns = self._timer.now_ns()
        for number in range(answers):
            text = np.random.default_rng(number).integers(1, 3000, PROMPT_LEN, np.int32)
            while (left := PROMPT_LEN + ANSWER_LEN - len(text)) > 0:
                drafts = np.empty(0, np.int32)
                if length := min(draft_len, left - 1):
                    drafts = self._call(
                        self._draft,
                        EngineRequest("", text, length, draft_stop_probability=stop_probability),
                    )
                tokens = self._call(
                    self._target, EngineRequest("", text, len(drafts) + 1, draft_ids=drafts)
                )
                text = np.concatenate((text, tokens))
                self._timer.pass_ns(self._orchestration_ns)
        seconds = (self._timer.now_ns() - begin_ns) / 1e9
        return answers * ANSWER_LEN / seconds

    def _call(self, engine: Engine, request: EngineRequest) -> NDArray[np.int32]:
        responses: list[EngineResponse] = []
        engine.submit(request, responses.append)
        while not responses:
            self._timer.advance()
        return np.array(responses[0].tokens, np.int32)


def rows() -> list[PublishedPair]:
    """Return the published throughputs, one row per pair and kind of text."""
    found = []
    for name, facts in PUBLISHED["profiles"].items():
        pair = name.removeprefix("llama-3.1-").partition("/")[0].replace("+", "-")
        kinds = ["", "-two-state"] if facts["hard_alpha"] is not None else [""]
        for kind in kinds:
            profile = ROOT / "tandem" / "profiles" / f"emulated-{pair}{kind}.yaml"
            found.append(
                PublishedPair(name, profile, facts["published_tok_s"], facts["baseline_tok_s"])
            )
    return found


def run(row: PublishedPair, answers: int) -> float:
    loop = SequentialLoop(row.profile, orchestration_ms=PUBLISHED["orchestration_ms_assumed"])
    return loop.run(answers, draft_len=PUBLISHED["draft_len"])


def _settings_of(planned: EnginePlan) -> EmulatedSettings:
    config = model_config(planned.parameters)
    return decode(EmulatedSettings, without_common_parameters(config))
