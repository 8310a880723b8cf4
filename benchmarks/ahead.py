"""What drafting ahead gains: drafts made while the target verifies, in virtual time.

    python -m benchmarks.ahead
    python -m benchmarks.ahead --profiles emulated-70b-1b --branches 16,64 --streams 1,8

Bare loops over a profile's emulated engines, on devices of their own: the target alone, the best
length of drafting and verifying in turns, and the best of ahead. Greedy, over an even text. There
are as many branches, up to a limit, as are ready when the verification is. All figures are emulated
and say what the order of the calls is worth, not what a loop takes: for this there is
`loop_simulation`, with the product's own loop over the same engines.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.simulation import PROMPT_LEN, engine_settings
from tandem.engines.emulated.engine import MS, EmulatedEngine
from tandem.engines.emulated.settings import EmulatedSettings
from tandem.engines.emulated.timers import VirtualTimer
from tandem.engines.request import EngineRequest, EngineResponse
from tandem.tools.profiles import deployment

PROFILES = Path(__file__).resolve().parents[1] / "profiles"
PAIRS = ("emulated-70b-1b", "emulated-70b-3b", "emulated-405b-3b")
PIECE = 32  # tokens of a call of the target alone
SEQUENTIAL_LENGTHS = range(3, 15)


@dataclass(frozen=True, order=True)
class Ahead:
    """How to draft ahead: so many tokens a branch, so many on a miss, and so many branches.

    even: as many next tokens at every accepted length; otherwise as is likeliest to pay.
    """

    length: int
    on_miss: int
    branches: int
    even: bool = False


class Call:
    """An engine call; whoever waits for it goes on when its answer has come back."""

    def __init__(self) -> None:
        self.answer: EngineResponse | None = None
        self.waiting: Run | None = None


Run: TypeAlias = Generator[Call, None, None]


@dataclass
class Loops:
    """Streams side by side over one target and one draft.

    hop_ms: what an engine call takes besides the engine's own time.
    """

    target: EmulatedSettings
    draft: EmulatedSettings
    hop_ms: float
    answer_len: int
    timer: VirtualTimer = field(default_factory=VirtualTimer)
    rounds: int = 0
    hits: int = 0
    tokens: int = 0

    def __post_init__(self) -> None:
        self._target = EmulatedEngine(self.target, self.timer)
        self._draft = EmulatedEngine(self.draft, self.timer)

    def tokens_per_second(self, runs: Sequence[Run]) -> float:
        """Run streams to their end; return what they said a second, all together."""
        began_ns = self.timer.now_ns()
        running = len(runs)
        for run in runs:
            running -= self._go_on(run)
        while running:
            self.timer.advance()
            for run in self._awake():
                running -= self._go_on(run)
        return self.tokens / (self.timer.now_ns() - began_ns) * 1e9

    def alone(self, number: int, answers: int) -> Run:
        """The target, a few tokens a call."""
        for text in self._texts(number, answers):
            while left := self._left(text):
                yield from self._verified(text, np.empty(0, np.int32), min(left, PIECE))

    def sequential(self, number: int, answers: int, draft_len: int) -> Run:
        """Draft, verify, and again."""
        for text in self._texts(number, answers):
            while left := self._left(text):
                drafts = yield from self._drafted(text, min(draft_len, left - 1))
                yield from self._verified(text, drafts)

    def ahead(self, number: int, answers: int, how: Ahead) -> Run:
        """Draft behind the likely outcomes of each verification while it runs."""
        for text in self._texts(number, answers):
            branch = None
            while left := self._left(text):
                if branch is None:
                    branch = yield from self._drafted(text, min(how.on_miss, left - 1))
                drafts = branch[: left - 1]
                call = self._branch(text, drafts, left, how)
                accepted = yield from self._verified(text, drafts)
                branch = None
                if call:
                    if call.answer is None:
                        yield call
                    branch = _branch_behind(call.answer, accepted, int(text[-1]))
                self.hits += branch is not None

    def _texts(self, number: int, answers: int) -> Iterator[list[int]]:
        for answer in range(answers):
            seed = 1000 * number + answer
            yield np.random.default_rng(seed).integers(1, 3000, PROMPT_LEN, np.int32).tolist()
            self.tokens += self.answer_len

    def _left(self, text: list[int]) -> int:
        return PROMPT_LEN + self.answer_len - len(text)

    def _drafted(self, text: list[int], length: int) -> Generator[Call, None, NDArray[np.int32]]:
        if not length:
            return np.empty(0, np.int32)
        call = self._start(self._draft, EngineRequest("", np.array(text, np.int32), length))
        yield call
        assert call.answer
        return np.array(call.answer.tokens, np.int32)

    def _verified(
        self, text: list[int], drafts: NDArray[np.int32], new: int = 0
    ) -> Generator[Call, None, int]:
        """Verify, or say `new` tokens; lengthen the text; return how many drafts were accepted."""
        most = len(drafts) + 1 if len(drafts) else max(1, new)
        request = EngineRequest("", np.array(text, np.int32), most, draft_ids=drafts)
        call = self._start(self._target, request)
        yield call
        assert call.answer
        text += call.answer.tokens
        self.rounds += 1
        return len(call.answer.tokens) - 1

    def _branch(
        self, text: list[int], drafts: NDArray[np.int32], left: int, how: Ahead
    ) -> Call | None:
        """Start drafting behind the outcomes of verifying `drafts`, where a round may follow."""
        reach = left - 2 - np.arange(len(drafts) + 1)  # behind the next token, all but the last one
        if not how.branches or reach[0] < 1:
            return None
        request = EngineRequest(
            "",
            np.array(text, np.int32),
            1,
            draft_ids=drafts,
            branch_counts=np.array(self._counts(len(drafts), how), np.int32),
            branch_output_len=np.clip(reach, 0, how.length).astype(np.int32),
        )
        return self._start(self._draft, request)

    def _counts(self, num_drafts: int, how: Ahead) -> list[int]:
        if how.even:
            return [how.branches // (num_drafts + 1)] * (num_drafts + 1)
        settings = self.draft
        return split(num_drafts, how.branches, settings.alpha, settings.alternatives_exponent)

    def _start(self, engine: EmulatedEngine, request: EngineRequest) -> Call:
        call = Call()
        hop_ns = round(self.hop_ms * MS)

        def respond(answer: EngineResponse) -> None:
            self.timer.at(self.timer.now_ns() + hop_ns, partial(self._come_back, call, answer))

        engine.submit(request, respond)
        return call

    def _come_back(self, call: Call, answer: EngineResponse) -> None:
        call.answer = answer
        if call.waiting:
            self._ready.append(call.waiting)

    _ready: list[Run] = field(default_factory=list)

    def _awake(self) -> list[Run]:
        ready, self._ready = self._ready, []
        return ready

    @staticmethod
    def _go_on(run: Run) -> bool:
        """Let a stream go on until it waits; say whether it has ended instead."""
        call = next(run, None)
        while call is not None and call.answer is not None:
            call = next(run, None)
        if call is not None:
            call.waiting = run
        return call is None


def split(num_drafts: int, branches: int, alpha: float, exponent: float) -> list[int]:
    """Share branches out among the accepted lengths, each where it is likeliest to be hit.

    Accepted length j comes with probability alpha^j * (1 - alpha), the last with alpha^k. Behind
    the last, the first guess is right with probability alpha; the F-th next one, anywhere, adds
    F^-r - (F + 1)^-r of what is left.
    """
    reached = [alpha**j * (1 - alpha) for j in range(num_drafts + 1)]

    def gain(accepted: int, place: int) -> float:
        if accepted == num_drafts:
            if place == 1:
                return alpha ** (num_drafts + 1)
            place -= 1
        return reached[accepted] * (place**-exponent - (place + 1) ** -exponent)

    counts = [0] * (num_drafts + 1)
    offers = [(-gain(j, 1), j) for j in range(num_drafts + 1)]
    heapq.heapify(offers)
    for _ in range(branches):
        _, accepted = heapq.heappop(offers)
        counts[accepted] += 1
        heapq.heappush(offers, (-gain(accepted, counts[accepted] + 1), accepted))
    return counts


def _branch_behind(
    answer: EngineResponse | None, accepted: int, token: int
) -> NDArray[np.int32] | None:
    """What was drafted behind an outcome: the key is both of it; a length alone says nothing."""
    assert answer
    assert answer.branches
    found = answer.branches
    hit = np.flatnonzero((found.outcomes == (accepted, token)).all(1))
    return found.ids[hit[0], : found.lengths[hit[0]]] if len(hit) else None


class AheadBench:
    """Measures one pair."""

    def __init__(self, profile: str, options: argparse.Namespace) -> None:
        path = PROFILES / f"{profile}.yaml"
        planned = deployment.load(path)
        assert planned.draft
        self._target = engine_settings(planned.target)
        self._draft = replace(
            engine_settings(planned.draft),
            branch_slope=options.branch_slope,
            alternatives_exponent=options.alternatives_exponent,
        )
        self._options = options

    def alone(self, streams: int) -> float:
        """Tokens a second of the target alone."""
        return self._run(streams, lambda loops, n: loops.alone(n, self._options.answers))[0]

    def sequential(self, streams: int) -> tuple[float, int]:
        """Tokens a second of the best length, and that length."""

        def measured(length: int) -> float:
            answers = self._options.answers
            return self._run(streams, lambda loops, n: loops.sequential(n, answers, length))[0]

        return max((measured(length), length) for length in SEQUENTIAL_LENGTHS)

    def fitting(self, streams: int, length: int, most: int) -> Ahead:
        """Return as many branches of that length as are drafted while the target verifies."""
        verify_ms = self._target.step_ms * (1 + self._target.verify_slope * length)
        longer = verify_ms / (self._draft.step_ms * (length + 1)) - 1
        rows = longer / self._draft.branch_slope / streams if self._draft.branch_slope else most
        count = min(most, 1 + math.floor(rows)) if longer >= 0 else 0
        return Ahead(length, self._options.on_miss, count, self._options.even)

    def ahead(self, streams: int, how: Ahead) -> tuple[float, float]:
        """Tokens a second, and the share of rounds whose outcome had a branch."""
        answers = self._options.answers
        speed, loops = self._run(streams, lambda loops, n: loops.ahead(n, answers, how))
        return speed, loops.hits / loops.rounds

    def _run(self, streams: int, run: Callable[[Loops, int], Run]) -> tuple[float, Loops]:
        options = self._options
        loops = Loops(self._target, self._draft, options.hop_ms, options.answer_len)
        return loops.tokens_per_second([run(loops, n) for n in range(streams)]), loops


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--profiles", default=",".join(PAIRS), help="of emulated pairs, separated by commas"
    )
    parser.add_argument(
        "--lengths", type=_numbers, default=[6, 7, 8, 9, 10, 12], help="of branches"
    )
    parser.add_argument("--on-miss", type=int, default=5, help="draft tokens on a miss")
    parser.add_argument("--branches", type=_numbers, default=[128], help="at most")
    parser.add_argument("--even", action="store_true", help="as many at each accepted length")
    parser.add_argument("--streams", type=_numbers, default=[1], help="that run side by side")
    parser.add_argument(
        "--hop-ms",
        type=float,
        default=1.2,
        help="of a call besides the engine (default: %(default)s)",
    )
    parser.add_argument(
        "--branch-slope",
        type=float,
        default=0.003,
        help="by which each branch makes a step of the draft longer (default: %(default)s)",
    )
    parser.add_argument(
        "--alternatives-exponent",
        type=float,
        default=0.67,
        help="r of the emulated text (docs/emulated.md) (default: %(default)s)",
    )
    parser.add_argument("--answers", type=int, default=10, help="of each stream")
    parser.add_argument("--answer-len", type=int, default=500, help="tokens of an answer")
    options = parser.parse_args()
    table = Table(
        title=f"virtual time, hop {options.hop_ms} ms, branch slope {options.branch_slope}"
    )
    columns = (
        "profile",
        "streams",
        "alone",
        "best in turns",
        "length, on a miss",
        "branches",
        "ahead",
    )
    for heading in (*columns, "of alone", "of in turns", "hits"):
        table.add_column(heading, justify="left" if heading == "profile" else "right")
    for name, streams in itertools.product(options.profiles.split(","), options.streams):
        bench = AheadBench(name, options)
        alone, (turns, best) = bench.alone(streams), bench.sequential(streams)
        for most in options.branches:
            plans = [bench.fitting(streams, length, most) for length in options.lengths]
            if not any(how.branches for how in plans):
                raise SystemExit(f"{name}: no time for branches of any length of --lengths")
            (ahead, hits), how = max(
                (bench.ahead(streams, how), how) for how in plans if how.branches
            )
            table.add_row(
                name,
                str(streams),
                f"{alone:.1f}",
                f"{turns:.1f} ({best})",
                f"{how.length}, {how.on_miss}",
                str(how.branches),
                f"{ahead:.1f}",
                f"{ahead / alone:.2f}x",
                f"{ahead / turns:.2f}x",
                f"{hits:.0%}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
