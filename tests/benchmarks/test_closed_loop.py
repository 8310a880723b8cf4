"""In virtual time, `auto` is as fast as the best fixed choice, and drafting ahead is faster."""

from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pytest
from closed_loop import (
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

# Times in seconds. LARGE: emulated-70b-1b. SMALL: the embedded pair, whose drafts and loop take
# long compared with the target.
LARGE = PairTimes(target=0.019554, draft=0.00113)
SMALL = PairTimes(target=0.0037, draft=0.0008, verify_slope=0.09, hop=0.8e-3, processor=0.6e-3)

EVEN, WRONG, RIGHT = AcceptanceModel((0.81278,)), AcceptanceModel((0.0,)), AcceptanceModel((1.0,))
EASY, HARD = AcceptanceModel((0.95,)), AcceptanceModel((0.05,))
TWO_STATE = AcceptanceModel((0.95, 0.517), (0.92, 0.8))

# Length of a simulation in target steps, by number of streams. Each has thousands of rounds.
# Two models on two processor cores: other sequences' drafts slow down every step.
CORES = PairTimes(
    target=0.012,
    draft=0.004,
    verify_slope=0.1,
    batch_slope=0.155,
    hop=0.8e-3,
    processor=0.6e-3,
)
# A model on a laptop's processor: each token of a verification costs more than half a step.
LAPTOP = PairTimes(target=0.0085, draft=0.0, verify_slope=0.6, processor=0.5e-3)
STEPS = {1: 1500, 2: 1500, 16: 300, 64: 160}
WARM_UP = {1: 0, 2: 0, 16: 200, 64: 200}


@dataclass(frozen=True)
class Cell:
    """An experiment: concurrent streams, their text, and the fixed choices to compare with."""

    pair: PairTimes
    languages: AcceptanceModel | tuple[AcceptanceModel, ...]
    streams: int
    lengths: tuple[int, ...] = ()
    warm_up: int | None = None
    drafters: tuple[tuple[str, int], ...] = ()
    options: tuple[tuple[str, object], ...] = field(default=())

    def rate(self, draft_len, **changes):
        """Return the tokens per second of all streams together."""
        step = self.pair.target * (1 + self.pair.batch_slope * (self.streams - 1))
        warm_up = WARM_UP[self.streams] if self.warm_up is None else self.warm_up
        languages = self.languages
        if isinstance(languages, AcceptanceModel):
            languages = (languages,)
        return run(
            self.pair,
            languages,
            streams=self.streams,
            draft_len=draft_len,
            seconds=STEPS[self.streams] * step,
            warm_up=warm_up * step,
            **dict(self.options) | changes,
        ).tokens_per_second

    def over_best(self, seed):
        """Return the throughput of `auto` divided by the throughput of the best choice."""
        return self.rate(AUTO, seed=seed) / self.best(seed)

    def best(self, seed):
        if self.drafters:
            return max(self.rate(n, drafter=drafter, seed=seed) for drafter, n in self.drafters)
        return max(self.rate(length, seed=seed) for length in (0, *self.lengths))


def options(**values):
    return tuple(values.items())


CELLS = {
    f"{name}-{streams}": Cell(replace(LARGE, batch_slope=0.03), language, streams, lengths)
    for streams, name, language, lengths in (
        (1, "even", EVEN, (8, 10)),
        (1, "two-state", TWO_STATE, (8, 10)),
        (1, "wrong", WRONG, ()),
        (1, "right", RIGHT, (32,)),
        (64, "even", EVEN, (8, 10)),
        (64, "wrong", WRONG, ()),
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
        AcceptanceModel((alpha,), copy_len=20 * edits),
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
    "one-processor-streamed-64": Cell(
        replace(LARGE, processor=1.2e-3, batch_slope=0.01),
        EVEN,
        64,
        (8, 16),
        warm_up=600,
        options=options(streams_text=True),
    ),
    "regular-16": Cell(
        replace(LARGE, processor=0.8e-3), EVEN, 16, (8,), options=options(streams_text=True)
    ),
    "streamed-wrong-16": Cell(LARGE, WRONG, 16, options=options(streams_text=True)),
    "streamed-even-16": Cell(LARGE, EVEN, 16, (8,), options=options(streams_text=True)),
    "unrated-16": Cell(LARGE, EVEN, 16, (8, 10), options=options(stops_when_unsure=False)),
    "mixed-2": Cell(LARGE, (EASY, HARD), 2, (2, 4, 8)),
    "mixed-unrated-2": Cell(
        LARGE, (EASY, HARD), 2, (2, 4, 8), options=options(stops_when_unsure=False)
    ),
    "mixed-16": Cell(replace(LARGE, batch_slope=0.01), (EASY, HARD), 16, (2, 4, 8)),
    "mixed-unrated-16": Cell(
        replace(LARGE, batch_slope=0.01),
        (EASY, HARD),
        16,
        (2, 4, 8),
        options=options(stops_when_unsure=False),
    ),
    "full-steps-64": Cell(replace(LARGE, batch_slope=0.005), EVEN, 64, (2, 4, 8)),
    "two-state-64": Cell(replace(LARGE, batch_slope=0.005), TWO_STATE, 64, (2, 4, 8)),
    "tokens-cost-16": Cell(replace(LARGE, verify_slope=0.02), EVEN, 16, (2, 4)),
}


def seeds(streams):
    """Return seeds of texts. The result with few texts depends on chance."""
    return range(1 if streams >= 16 else 3)


LIGHT = {
    *("even-1", "wrong-1", "right-1", "small-0.6-1", "small-0.6-16"),
    *("hybrid-large-0.6-edits", "hybrid-large-0.6-new"),
}
# No fixed length suits both easy and hard text. Minimum speedup over the best one, by cell:
GAINS = {
    "two-state-1": 1.06,
    "two-state-64": 1.1,
    "mixed-2": 1.15,
    "mixed-unrated-2": 1.17,
    "mixed-unrated-16": 1.1,
}
LOSES_AT_MOST = 0.95


def over_best(cell):
    """Return the mean throughput of `auto` divided by the throughput of the best choice."""
    return np.mean([cell.over_best(seed) for seed in seeds(cell.streams)])


@pytest.mark.parametrize(
    "name",
    [
        name if name in LIGHT else pytest.param(name, marks=pytest.mark.heavy)
        for name in CELLS
        if name not in GAINS
    ],
)
def test_auto_is_never_much_slower_than_the_best_fixed_length(name):
    assert over_best(CELLS[name]) > LOSES_AT_MOST


@pytest.mark.parametrize(
    "name",
    ["two-state-1", "mixed-2", *first_of("mixed-unrated-2", "mixed-unrated-16", "two-state-64")],
)
def test_auto_beats_every_fixed_length_if_texts_differ(name):
    assert over_best(CELLS[name]) > GAINS[name]


@pytest.mark.parametrize(
    ("pair", "copy_len", "least"),
    [(LAPTOP, 0, 0.97), (LAPTOP, 2, 0.97), (LAPTOP, 40, 1.1), (LARGE, 2, 0.98), (LARGE, 20, 1.9)],
)
def test_prompt_lookup_copies_only_what_pays(pair, copy_len, least):
    language = AcceptanceModel((0.0,), copy_len=copy_len)
    cell = Cell(pair, language, 1, options=options(drafter="prompt_lookup"))
    assert over_best(cell) > least


FIRST_SECONDS = {
    "even-1": (LARGE, 1, EVEN, (8, 10), 0.95),
    "even-16": (replace(LARGE, batch_slope=0.01), 16, EVEN, (8, 10), 0.95),
    "right-1": (LARGE, 1, RIGHT, (32,), 0.95),
    "cores-1": (CORES, 1, AcceptanceModel((0.6,)), (1, 2), 0.95),
    "cores-16": (CORES, 16, AcceptanceModel((0.6,)), (1, 2), 0.88),
}


@pytest.mark.parametrize("name", first_of("cores-16", "cores-1", "right-1", "even-1", "even-16"))
def test_auto_is_nearly_as_fast_as_the_best_choice_in_its_first_ten_seconds(name):
    pair, streams, language, lengths, least = FIRST_SECONDS[name]
    phases = [Phase(streams, 10, (language,))]
    lengths = (AUTO, 0, *lengths)
    ratios = []
    for seed in seeds(streams):
        auto, *fixed = (run_phases(pair, phases, draft_len=n, seed=seed)[0] for n in lengths)
        ratios.append(auto / max(fixed))
    assert np.mean(ratios) > least


BURST = replace(LARGE, batch_slope=0.03)


@pytest.mark.heavy
@pytest.mark.parametrize(("copy_len", "least"), [(3, 0.9), (20, 0.93)])  # mostly wrong, right
def test_hybrid_is_fast_in_its_first_twenty_seconds_on_two_busy_cores(copy_len, least):
    pair = replace(CORES, processor=1.2e-3)
    phases = [Phase(16, 20, (AcceptanceModel((0.85,), copy_len=copy_len),))]
    choices = [("hybrid", AUTO), ("draft_model", 0), ("draft_model", 4), ("hybrid", 4)]
    ratios = []
    for seed in seeds(16):
        auto, *fixed = (
            run_phases(pair, phases, draft_len=length, drafter=drafter, seed=seed)[0]
            for drafter, length in choices
        )
        ratios.append(auto / max(fixed))
    assert np.mean(ratios) > least


CHANGES = {
    # After a burst, a single stream must resume drafting within 10 seconds.
    "burst": (BURST, [(32, 4, EVEN), (1, 10, EVEN), (1, 10, EVEN)], (8,)),
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


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.heavy) if name in LONG_CHANGES else name
        for name in CHANGES
    ],
)
def test_auto_recovers_after_the_text_or_the_load_changes(name):
    pair, changes, lengths = CHANGES[name]
    phases = [Phase(streams, seconds, (language,)) for streams, seconds, language in changes]
    # Earlier phases don't change the speed of a fixed length.
    fixed = [run_phases(pair, phases[-1:], draft_len=length)[-1] for length in (0, *lengths)]
    auto = run_phases(pair, phases, draft_len=AUTO)[-1]
    assert auto > 0.94 * max(fixed)


def test_auto_recovers_from_a_draft_engine_that_gets_ten_times_slower():
    phases = [Phase(1, 20, (EVEN,)), Phase(1, 10, (EVEN,), 10 * LARGE.draft), Phase(1, 10, (EVEN,))]
    slow = replace(LARGE, draft=10 * LARGE.draft)
    fixed = [run_phases(slow, phases[-1:], draft_len=length)[-1] for length in (0, 2)]
    assert run_phases(LARGE, phases, draft_len=AUTO)[-1] > 0.87 * max(fixed)


@pytest.mark.parametrize("pause", [0.3, 1.0])  # seconds
def test_auto_keeps_drafting_on_a_machine_that_pauses(pause):
    def tokens(draft_len):
        world = World(LARGE, draft_len)
        world.pause(pause, lambda: 5 * pause)
        world.enter(Phase(1, 20, (EVEN,)))
        world.pass_time(20)
        return world.tokens

    assert tokens(AUTO) > 0.95 * tokens(8)


def test_pauses_in_the_first_five_seconds_do_not_stop_drafts():
    def tokens(draft_len, seed):
        random = np.random.default_rng(seed)
        world = World(SMALL, draft_len, seed=seed)
        world.pause(0.2, partial(random.exponential, 0.5))
        world.enter(Phase(1, 5, (AcceptanceModel((0.85,)),)))
        world.pass_time(5)
        return world.tokens

    speeds = [tokens(AUTO, seed) / max(tokens(n, seed) for n in (0, 4, 6)) for seed in range(10)]
    assert np.mean(speeds) > 0.96
    assert min(speeds) > 0.9


def test_streams_with_easy_text_do_not_starve_hard_text():
    pair = replace(LARGE, batch_slope=0.01)
    world = World(pair, AUTO)
    world.enter(Phase(8, 20, (EASY, HARD)))
    world.pass_time(20)
    alone = World(pair, 0)
    alone.enter(Phase(8, 20, (EASY, HARD)))
    alone.pass_time(20)
    assert min(world.tokens_of(n) for n in range(8)) > 0.8 * alone.tokens_of(1)


def ahead_and_in_turns(streams, **options):
    """Run the same requests with drafting ahead if it pays, and without."""
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


# With two sequences or more, one drafts while the target verifies another.
GAINS_AHEAD = {1: 1.33, 4: 0.99, 20: 0.99}


@pytest.mark.parametrize("streams", first_of(*GAINS_AHEAD))
def test_drafting_ahead_speeds_up_one_stream_and_slows_down_none(streams):
    ahead, in_turns = ahead_and_in_turns(streams)
    assert ahead.tokens_per_second > GAINS_AHEAD[streams] * in_turns.tokens_per_second
    assert ahead.hits > 0.7 * ahead.rounds or streams > 1


@pytest.mark.parametrize(("language", "length"), [(EVEN, 10), (RIGHT, 32)])
def test_auto_drafts_branches_as_long_as_the_best_fixed_length(language, length):
    phases = [Phase(1, 10, (language,))]
    auto, fixed = (
        run_phases(LARGE, phases, draft_len=n, draft_ahead=None)[0] for n in (AUTO, length)
    )
    assert auto > 0.95 * fixed


def test_engines_that_share_a_device_do_not_draft_ahead_by_default():
    ahead, in_turns = ahead_and_in_turns(1, settings=replace(SETTINGS, engines_share_device=True))
    assert ahead.tokens_per_second == in_turns.tokens_per_second
    assert ahead.hits == 0
