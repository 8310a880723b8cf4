"""The product's own loop over two emulated engines, in virtual time, with streams side by side.

    python -m benchmarks.loop_simulation
    python -m benchmarks.loop_simulation --profiles emulated-70b-1b --streams 1,8 --temperature 1

Loop, drafters and decisions are those that serve; engines are a profile's. What a call takes beside
its engine is given (`--hop-ms`), and so is what the loop itself takes for a round. Every figure is
emulated: it says what a setting is worth, and what a live server should come near. `closed_loop`
asks for less of each call, and so runs dozens of streams in seconds.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.ahead import PAIRS, PROFILES, Call, Loops, Run
from benchmarks.simulation import engine_settings
from tandem.bls.draft_ahead.ahead_planner import AheadPlanner
from tandem.bls.draft_length.planner import DraftPlanner
from tandem.bls.drafters.factory import drafter_of
from tandem.bls.effects import AwaitAhead, BranchDraft, EngineAnswer, EngineCall, StartAhead
from tandem.bls.errors import EngineCallError, EngineRefused
from tandem.bls.loop import Decoding
from tandem.bls.metrics.request_statistics import Statistics
from tandem.bls.request import GREEDY, Request, Sampling
from tandem.bls.settings import AUTO, MAX_AHEAD_THREADS, LoopSettings
from tandem.engines.emulated.settings import EmulatedSettings
from tandem.engines.request import EngineRequest, EngineResponse, SamplingParams
from tandem.tools.profiles import deployment


class Well:
    """A draft engine that always answers."""

    available = True

    def failed(self, error: EngineCallError) -> None:
        """It never does."""
        raise error

    def refused(self, error: EngineRefused) -> None:
        """It never does."""
        raise error


class SimulatedTask:
    """Steps carried out beside a call, until they return."""

    def __init__(self) -> None:
        self.done = False
        self.result: Any = None
        self.request_id = ""
        self.waiting: Call | None = None


@dataclass
class RealLoops(Loops):
    """Sequences of the real loop over one target and one draft.

    loop_ms: what the loop itself takes for a chunk, while nobody waits for the engines.
    """

    loop_ms: float = 0.3
    settings: LoopSettings = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.running = 0
        self.helpers = MAX_AHEAD_THREADS
        self.statistics: list[Statistics] = []
        longest = self.settings.target.max_draft_len
        self._draft_planner = DraftPlanner(
            longest, lambda: self.running, clock=lambda: self.timer.now_ns() / 1e9, rated=True
        )
        self._ahead_statistics = AheadPlanner(self.settings, lambda: self.running)
        self._ids = itertools.count()

    def real(self, number: int, answers: int, request: Request) -> Run:
        """Decode as a sequence of the product does."""
        self.running += 1
        for text in self._texts(number, answers):
            asked = replace(request, prompt_ids=np.array(text, np.int32))
            drafter = drafter_of(
                asked, self.settings, Well(), self._draft_planner, self._ahead_statistics
            )
            decoding = Decoding(
                asked, self.settings, drafter, clock=lambda: self.timer.now_ns() / 1e9
            )
            yield from self._decoded(decoding)
            self.statistics.append(decoding.statistics)
            self.rounds += decoding.statistics.num_rounds
            self.hits += decoding.statistics.ahead.num_hits
        self.running -= 1

    def _decoded(self, decoding: Decoding) -> Run:
        """Perform the effects of a sequence's steps, as the driver does."""
        steps, sampling = decoding.decode(), decoding.request.sampling
        beside, task, busy = None, None, None
        has_helper, answer = False, None
        while True:
            try:
                effect = steps.send(answer)
            except StopIteration:
                self.helpers += has_helper
                return
            answer = None
            if isinstance(effect, StartAhead):
                self._give_up(task)
                beside, task = effect.steps, None
            elif isinstance(effect, AwaitAhead):
                if task is not None:
                    yield from self._waited(task, effect.timeout)
                    answer = task.result if task.done else None
                    self._give_up(task)
                task = None
            elif isinstance(effect, EngineCall):
                if beside is not None and (busy is None or busy.done):
                    if not has_helper and self.helpers:
                        has_helper, self.helpers = True, self.helpers - 1
                    if has_helper:
                        task = busy = self._run_task(beside, sampling)
                beside = None
                answer = yield from self._answered(effect, sampling)
            else:
                yield from self._slept(self.loop_ms)

    def _answered(
        self, call: EngineCall, sampling: Sampling, request_id: str = ""
    ) -> Generator[Call, None, EngineAnswer]:
        engine = self._target if call.engine == "target" else self._draft
        began_ns = self.timer.now_ns()
        made = self._start(engine, engine_request(call, sampling, request_id))
        yield made
        assert made.answer
        return engine_answer(made.answer, self.timer.now_ns() - began_ns, self.hop_ms)

    def _run_task(self, steps: Any, sampling: Sampling) -> SimulatedTask:
        task = SimulatedTask()
        task.request_id = f"ahead-{next(self._ids)}"

        def carried_out() -> Run:
            answer = None
            while True:
                try:
                    call = steps.send(answer)
                except StopIteration as ended:
                    task.done, task.result = True, ended.value
                    if task.waiting is not None:
                        self._wake(task.waiting)
                    return
                answer = yield from self._answered(call, sampling, task.request_id)

        self._go_on(carried_out())
        return task

    def _waited(self, task: SimulatedTask, timeout: float) -> Run:
        if not task.done:
            task.waiting = Call()
            due_ns = self.timer.now_ns() + round(timeout * 1e9)
            self.timer.at(due_ns, partial(self._wake, task.waiting))
            yield task.waiting
            task.waiting = None

    def _slept(self, milliseconds: float) -> Run:
        call = Call()
        self.timer.at(self.timer.now_ns() + round(milliseconds * 1e6), partial(self._wake, call))
        yield call

    def _wake(self, call: Call) -> None:
        if call.answer is None:
            self._come_back(call, EngineResponse())

    def _give_up(self, task: SimulatedTask | None) -> None:
        if task is not None and not task.done:
            self._draft.stop(task.request_id)

    def tokens_per_second(self, runs: Sequence[Run]) -> float:
        """Run streams to their end; return what they said a second, all together.

        Tasks may outlive them.
        """
        began_ns, left = self.timer.now_ns(), 0

        def counted(run: Run) -> Run:
            nonlocal left
            left += 1
            yield from run
            left -= 1

        for run in runs:
            self._go_on(counted(run))
        while left:
            self.timer.advance()
            for run in self._awake():
                self._go_on(run)
        return self.tokens / (self.timer.now_ns() - began_ns) * 1e9


def engine_request(call: EngineCall, sampling: Sampling, request_id: str) -> EngineRequest:
    """Return what an engine is asked, as it is told through Triton."""
    branching, draft = call.branching, call.draft
    verified = slice(draft.logits_row, draft.logits_row + len(draft))
    return EngineRequest(
        request_id,
        call.context,
        call.max_new_tokens,
        draft_ids=draft.tokens,
        draft_logits=None if branching or draft.logits is None else draft.logits[verified],
        return_generation_logits=call.wants_logits,
        draft_stop_probability=call.stop_probability or None,
        return_log_probs=call.wants_log_probs,
        sampling=SamplingParams(**vars(sampling.numbers), seed=call.seed),
        **(
            {}
            if branching is None
            else {
                "branch_counts": np.array(branching.counts, np.int32),
                "branch_output_len": np.array(branching.lengths, np.int32),
            }
        ),
    )


def engine_answer(response: EngineResponse, took_ns: int, hop_ms: float) -> EngineAnswer:
    """Return what the loop is told."""
    assert response.error is None, response.error
    branches: Iterator[BranchDraft] = iter(())
    if response.branches is not None:
        found = response.branches
        rows = np.cumsum(found.lengths) - found.lengths
        branches = (
            BranchDraft(int(accepted), int(token), ids[:length], int(row))
            for (accepted, token), ids, length, row in zip(
                found.outcomes, found.ids, found.lengths, rows, strict=True
            )
        )
    return EngineAnswer(
        np.array(response.tokens, np.int32),
        seconds=took_ns / 1e9,
        engine_seconds=took_ns / 1e9 - hop_ms / 1e3,
        log_probs=response.log_probs,
        logits=response.generation_logits,
        branches=tuple(branches),
    )


class Bench:
    """Measures one pair."""

    def __init__(self, profile: str, options: argparse.Namespace) -> None:
        planned = deployment.load(PROFILES / f"{profile}.yaml")
        assert planned.draft
        self._target = engine_settings(planned.target)
        self._draft: EmulatedSettings = replace(
            engine_settings(planned.draft), branch_slope=options.branch_slope
        )
        self._settings = planned.loop_settings()
        self._options = options

    def measured(
        self, streams: int, draft_len: int, draft_ahead: bool | None
    ) -> tuple[float, RealLoops]:
        """Tokens a second; draft_len 0: the target alone."""
        options = self._options
        sampling = Sampling(options.temperature, seed=1) if options.temperature else GREEDY
        request = Request(
            np.empty(0, np.int32),
            options.answer_len,
            sampling=sampling,
            drafter="draft_model" if draft_len else "none",
            draft_len=draft_len,
            draft_ahead=draft_ahead,
            use_draft_logits=options.use_draft_logits,
            max_draft_len=self._settings.target.max_draft_len,
            streams_text=True,
        )
        loops = RealLoops(
            self._target,
            self._draft,
            options.hop_ms,
            options.answer_len,
            loop_ms=options.loop_ms,
            settings=self._settings,
        )
        runs = [loops.real(number, options.answers, request) for number in range(streams)]
        return loops.tokens_per_second(runs), loops


def _numbers(text: str) -> list[int]:
    return [AUTO if part == "auto" else int(part) for part in text.split(",")]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--profiles", default=",".join(PAIRS), help="of emulated pairs, separated by commas"
    )
    parser.add_argument("--draft-len", type=_numbers, default=[10, 12], help="draft tokens a round")
    parser.add_argument("--streams", type=_numbers, default=[1], help="that run side by side")
    parser.add_argument(
        "--hop-ms",
        type=float,
        default=1.2,
        help="of a call besides the engine (default: %(default)s)",
    )
    parser.add_argument(
        "--loop-ms", type=float, default=0.3, help="of the loop in a round (default: %(default)s)"
    )
    parser.add_argument(
        "--branch-slope",
        type=float,
        default=0.003,
        help="by which each branch makes a step of the draft longer (default: %(default)s)",
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument(
        "--use-draft-logits", action="store_true", help="verify by probabilities, not by ids"
    )
    parser.add_argument("--answers", type=int, default=10, help="of each stream")
    parser.add_argument("--answer-len", type=int, default=500, help="tokens of an answer")
    options = parser.parse_args()
    table = Table(title=f"virtual time, hop {options.hop_ms} ms, loop {options.loop_ms} ms a round")
    columns = "profile", "streams", "alone", "draft_len", "in turns", "auto", "ahead", "of alone"
    for heading in (*columns, "of in turns", "hits", "branches a call"):
        table.add_column(heading, justify="left" if heading == "profile" else "right")
    for name, streams in itertools.product(options.profiles.split(","), options.streams):
        bench = Bench(name, options)
        alone = bench.measured(streams, 0, draft_ahead=False)[0]
        for draft_len in options.draft_len:
            turns = bench.measured(streams, draft_len, draft_ahead=False)[0]
            auto = bench.measured(streams, draft_len, draft_ahead=None)[0]
            ahead, loops = bench.measured(streams, draft_len, draft_ahead=True)
            calls = sum(statistics.ahead.num_calls for statistics in loops.statistics)
            branches = sum(statistics.ahead.num_branches for statistics in loops.statistics)
            table.add_row(
                name,
                str(streams),
                f"{alone:.1f}",
                "auto" if draft_len == AUTO else str(draft_len),
                f"{turns:.1f}",
                f"{auto:.1f}",
                f"{ahead:.1f}",
                f"{ahead / alone:.2f}x",
                f"{ahead / turns:.2f}x",
                f"{loops.hits / max(1, loops.rounds):.0%}",
                f"{branches / max(1, calls):.0f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
