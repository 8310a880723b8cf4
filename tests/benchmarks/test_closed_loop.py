"""In virtual time, `auto` keeps up with the best of no drafts and every fixed length, anywhere."""

from dataclasses import dataclass, field, replace
from functools import cache

from benchmarks.closed_loop import (
    AcceptanceModel,
    PairTimes,
    run,
)
from scale import first_of

from tandem.bls.settings import AUTO

# The timings of emulated-70b-1b and emulated-405b-3b. The embedded pair's: expensive drafts and a
# loop that takes as long.
LARGE = PairTimes(target=0.019554, draft=0.00113)
LARGEST = PairTimes(target=0.029886, draft=0.0016)
SMALL = PairTimes(target=0.0037, draft=0.0008, verify_slope=0.09, hop=0.8e-3, processor=0.6e-3)

EVEN, WRONG, RIGHT = AcceptanceModel((0.81278,)), AcceptanceModel((0.0,)), AcceptanceModel((1.0,))
EASY, HARD = AcceptanceModel((0.95,)), AcceptanceModel((0.05,))
TWO_STATE = AcceptanceModel((0.95, 0.517), (0.92, 0.8))

# Experiments follow the machine's clock. What it shows at the beginning must not matter.
OFFSETS = first_of(0.0, 1003.7, 333.31, 86411.9)
# Steps of the target that a simulation lasts, by streams: thousands of rounds.
STEPS = {1: 1500, 2: 1500, 16: 300, 64: 160}
WARM_UP = {1: 0, 2: 0, 16: 200, 64: 200}


@dataclass(frozen=True)
class Cell:
    """Streams that decode the same kind of text for a while, and the choices to compare with."""

    pair: PairTimes
    languages: AcceptanceModel | tuple[AcceptanceModel, ...]
    streams: int
    lengths: tuple[int, ...] = ()
    steps: int | None = None
    warm_up: int | None = None
    drafters: tuple[tuple[str, int], ...] = ()
    options: tuple[tuple[str, object], ...] = field(default=())

    def rate(self, draft_len, **changes):
        """Tokens per second of all streams."""
        step = self.pair.target * (1 + self.pair.batch_slope * (self.streams - 1))
        steps = STEPS[self.streams] if self.steps is None else self.steps
        warm_up = WARM_UP[self.streams] if self.warm_up is None else self.warm_up
        return run(
            self.pair,
            self.languages,
            streams=self.streams,
            draft_len=draft_len,
            seconds=steps * step,
            warm_up=warm_up * step,
            **dict(self.options) | changes,
        ).tokens_per_second

    def over_best(self, offset):
        """Auto's tokens per second, relative to the best fixed choice."""
        return self.rate(AUTO, offset=offset) / best(self)


@cache
def best(cell):
    if cell.drafters:
        return max(cell.rate(length, drafter=drafter) for drafter, length in cell.drafters)
    return max(cell.rate(length) for length in (0, *cell.lengths))


def options(**values):
    return tuple(values.items())


CELLS = {
    f"{name}-{streams}": Cell(replace(LARGE, batch_slope=0.03), language, streams, lengths)
    for streams in (1, 64)
    for name, language, lengths in (
        ("even", EVEN, (8, 10)),
        ("two-state", TWO_STATE, (8, 10)),
        ("wrong", WRONG, ()),
        ("right", RIGHT, (32,)),
    )
}
CELLS |= {
    f"small-{alpha}-{streams}": Cell(SMALL, AcceptanceModel((alpha,)), streams, lengths)
    for streams in (1, 16)
    for alpha, lengths in ((0.6, (1, 2, 4)), (0.85, (2, 4, 6)), (0.2, (1, 2)))
}
CELLS |= {
    f"hybrid-{name}-{alpha}-{'edits' if edits else 'new'}": Cell(
        pair,
        AcceptanceModel((alpha,), edits=edits),
        1,
        drafters=(("draft_model", 0), ("draft_model", 4), ("hybrid", 4)),
        options=options(drafter="hybrid"),
    )
    for name, pair in (("large", LARGE), ("small", SMALL))
    for alpha in (0.6, 0.0)
    for edits in (True, False)
}
CELLS |= {
    "one-processor-64": Cell(replace(LARGE, processor=1.2e-3), EVEN, 64, (8, 10, 16), warm_up=600),
    "never-alone-64": Cell(LARGE, EVEN, 64, (8, 10), options=options(steps_alone=0)),
    "longer-64": Cell(
        replace(LARGEST, processor=0.8e-3), AcceptanceModel((0.86,)), 64, (10, 14, 24)
    ),
    "regular-16": Cell(
        replace(LARGE, processor=0.8e-3), EVEN, 16, (8,), options=options(streams_text=True)
    ),
    "streamed-wrong-16": Cell(LARGE, WRONG, 16, options=options(streams_text=True)),
    "streamed-even-16": Cell(LARGE, EVEN, 16, (8,), options=options(streams_text=True)),
    "unrated-16": Cell(LARGE, EVEN, 16, (8, 10), options=options(rated=False)),
    "mixed-2": Cell(LARGE, (EASY, HARD), 2, (1, 2, 4, 8, 16)),
    "mixed-16": Cell(replace(LARGE, batch_slope=0.01), (EASY, HARD), 16, (1, 2, 4, 8, 16)),
    "mixed-unrated-16": Cell(
        replace(LARGE, batch_slope=0.01), (EASY, HARD), 16, (1, 4, 8), options=options(rated=False)
    ),
    "tokens-cost-16": Cell(replace(LARGE, token_slope=0.005), EVEN, 16, (1, 2, 4, 8)),
    "tokens-cost-64": Cell(replace(LARGE, token_slope=0.003), EVEN, 64, (2, 4), steps=480),
    "two-loops-16": Cell(
        replace(LARGE, batch_slope=0.01), EVEN, 16, (8,), options=options(loops=2)
    ),
    "four-loops-16": Cell(SMALL, AcceptanceModel((0.6,)), 16, (1, 2, 4), options=options(loops=4)),
    "four-loops-wrong-64": Cell(
        replace(LARGE, batch_slope=0.03), WRONG, 64, options=options(loops=4)
    ),
}
HEAVY = {"one-processor-64", "longer-64", "never-alone-64"}
