"""In virtual time, `auto` is as fast as the best fixed choice, and drafting ahead is faster."""

from dataclasses import dataclass, field, replace
from functools import cache

import pytest
from benchmarks.closed_loop import (
    ANSWER_LEN,
    SETTINGS,
    AcceptanceModel,
    PairTimes,
    Phase,
    World,
    run,
    run_phases,
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
        languages = self.languages
        if isinstance(languages, AcceptanceModel):
            languages = (languages,)
        return run(
            self.pair,
            languages,
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
# Experiments follow the machine's clock, so the result must not depend on the start time.
OFFSETS = (0.0, 1003.7)
# One cell of each kind.
LIGHT = {
    "even-1",
    "two-state-1",
    "wrong-1",
    "right-1",
    "small-0.6-1",
    "small-0.6-16",
    "hybrid-large-0.6-edits",
    "mixed-2",
}
LOSES_AT_MOST = 0.95


def everywhere():
    """Each cell at the first offset, and `LIGHT` at the others; `make test` uses `LIGHT` once."""
    for offset in OFFSETS:
        for name in CELLS if offset == OFFSETS[0] else sorted(LIGHT):
            marks = () if name in LIGHT and offset == OFFSETS[0] else pytest.mark.heavy
            yield pytest.param(name, offset, marks=marks, id=f"{name}-at-{offset}")


@pytest.mark.parametrize(("name", "offset"), [*everywhere()])
def test_auto_is_never_much_slower_than_the_best_fixed_length(name, offset):
    assert CELLS[name].over_best(offset) > LOSES_AT_MOST


@pytest.mark.parametrize("offset", first_of(*OFFSETS[:2]))
@pytest.mark.parametrize(
    ("name", "gain"),
    [
        ("two-state-1", 1.06),
        ("mixed-2", 1.03),
        pytest.param("mixed-unrated-16", 1.1, marks=pytest.mark.heavy),
    ],
)
def test_auto_beats_every_fixed_length_if_texts_differ(name, gain, offset):
    """No fixed length fits both easy and hard text."""
    assert CELLS[name].over_best(offset) > gain


BURST = replace(LARGE, batch_slope=0.03)
CHANGES = {
    # After a burst, a single stream must not decode without drafts for up to half a minute.
    "burst": (BURST, [(64, 6, EVEN), (1, 10, EVEN), (1, 10, EVEN)], (8,)),
    "loads-in-turn": (BURST, [(n, 5, EVEN) for n in (1, 64) * 2], (8,)),
    "harder": (LARGE, [(1, 20, EASY), (1, 10, HARD), (1, 20, HARD)], (1, 12)),
    "easier": (LARGE, [(1, 20, HARD), (1, 10, EASY), (1, 20, EASY)], (12,)),
    "useful-at-last": (
        replace(LARGE, batch_slope=0.01),
        [(16, 20, WRONG), (16, 16, EASY), (16, 10, EASY)],
        (12,),
    ),
}


LONG_CHANGES = ("loads-in-turn", "useful-at-last")


@pytest.mark.parametrize("offset", first_of(*OFFSETS))
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.heavy) if name in LONG_CHANGES else name
        for name in CHANGES
    ],
)
def test_auto_recovers_after_the_text_or_the_load_changes(name, offset):
    pair, changes, lengths = CHANGES[name]
    phases = [Phase(streams, seconds, (language,)) for streams, seconds, language in changes]
    fixed = [run_phases(pair, phases, draft_len=length)[-1] for length in (0, *lengths)]
    auto = run_phases(pair, phases, draft_len=AUTO, offset=offset)[-1]
    assert auto > 0.94 * max(fixed)


@pytest.mark.parametrize("offset", first_of(*OFFSETS[:2]))
def test_auto_recovers_from_a_draft_engine_that_gets_ten_times_slower(offset):
    phases = [Phase(1, 20, (EVEN,)), Phase(1, 10, (EVEN,), 10 * LARGE.draft), Phase(1, 10, (EVEN,))]
    fixed = [run_phases(LARGE, phases, draft_len=length)[-1] for length in (0, 2)]
    assert run_phases(LARGE, phases, draft_len=AUTO, offset=offset)[-1] > 0.85 * max(fixed)


@pytest.mark.parametrize("offset", first_of(*OFFSETS[:2]))
def test_hard_text_is_not_starved_by_streams_with_easy_text(offset):
    pair = replace(LARGE, batch_slope=0.01)
    world = World(pair, AUTO, offset=offset)
    world.enter(Phase(8, 20, (EASY, HARD)))
    world.pass_time(20)
    alone = World(pair, 0)
    alone.enter(Phase(8, 20, (EASY, HARD)))
    alone.pass_time(20)
    assert min(world.tokens_of(n) for n in range(8)) > 0.8 * alone.tokens_of(1)


def ahead_and_in_turns(streams, **options):
    """The same requests with drafting ahead if it pays, and without drafting ahead."""
    return [
        run(
            LARGE,
            (EVEN,),
            streams=streams,
            draft_len=10,
            seconds=20,
            warm_up=4,
            draft_ahead=ahead,
            **options,
        )
        for ahead in (None, False)
    ]


GAINS_AHEAD = {1: 1.33, 4: 1.2, 20: 0.99}


@pytest.mark.parametrize("streams", first_of(*GAINS_AHEAD))
def test_drafting_ahead_speeds_up_a_few_streams_and_never_slows_any_down(streams):
    ahead, in_turns = ahead_and_in_turns(streams)
    assert ahead.tokens_per_second > GAINS_AHEAD[streams] * in_turns.tokens_per_second
    assert ahead.hits > 0.7 * ahead.rounds or streams > 1


def test_engines_that_share_a_device_do_not_draft_ahead_by_default():
    ahead, in_turns = ahead_and_in_turns(1, settings=replace(SETTINGS, engines_share_device=True))
    assert ahead.tokens_per_second == in_turns.tokens_per_second
    assert ahead.hits == 0


def fixed_rate(pair, language, streams, draft_len):
    return Cell(pair, language, streams).rate(draft_len)


def test_the_target_alone_takes_one_call_per_32_tokens():
    a_token = LARGE.target + (LARGE.hop + LARGE.processor) / 32
    assert fixed_rate(LARGE, EVEN, 1, 0) == pytest.approx(1 / a_token, rel=0.02)


def test_a_fully_accepted_draft_yields_one_extra_token():
    length, rounds = 9, ANSWER_LEN // 10
    seconds = 2 * (LARGE.hop + LARGE.processor) + length * LARGE.draft
    seconds += LARGE.target * (1 + LARGE.verify_slope * length)
    assert fixed_rate(LARGE, RIGHT, 1, length) == pytest.approx(10 / seconds, rel=1 / rounds)


def test_each_concurrent_call_lengthens_a_step():
    slow = replace(LARGE, batch_slope=0.03)
    share = fixed_rate(LARGE, EVEN, 64, 0) / fixed_rate(slow, EVEN, 64, 0)
    assert share == pytest.approx(1 + 63 * 0.03, rel=0.03)


def test_a_slow_loop_limits_the_throughput_of_all_streams():
    busy = replace(LARGE, processor=0.01)  # a round needs twice this number
    assert fixed_rate(busy, RIGHT, 64, 9) == pytest.approx(10 / 0.02, rel=0.05)
