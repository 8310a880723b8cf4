"""Connects torch engines to the loop without Triton."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from engine_harness import Harness

from tandem.bls.ports import EngineCall, EngineResult
from tandem.engines.engine import SamplingParams


class Played:
    """A torch engine that runs the loop's calls in `scripted.play`.

    sampling: sampling parameters for all calls.

    Attributes:
        calls: the loop's calls, each with the tokens of its answer.

    """

    def __init__(self, harness: Harness, sampling: SamplingParams) -> None:
        self._harness = harness
        self._sampling = sampling
        self.calls: list[tuple[EngineCall, list[int]]] = []

    def answers(self, call: EngineCall) -> Iterator[EngineResult]:
        outcome = self._harness.call(
            call.context,
            call.max_new_tokens,
            drafts=call.draft.tokens,
            draft_logits=call.draft.logits,
            return_generation_logits=call.wants_logits,
            sampling=replace(self._sampling, seed=call.seed),
        )
        self.calls.append((call, outcome.tokens))
        logits = outcome.last.generation_logits
        yield EngineResult(np.array(outcome.tokens, np.int32), draft_logits=logits)
