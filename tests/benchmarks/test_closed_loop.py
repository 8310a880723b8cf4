"""In virtual time `auto` earns what the best of no drafts and every fixed length does, anywhere."""

from dataclasses import replace

import pytest
from benchmarks.closed_loop import ANSWER_LEN, AcceptanceModel, PairTimes, run
from scale import first_of

from tandem.bls.settings import AUTO

# The timings of emulated-70b-1b and emulated-405b-3b. The embedded pair's: dear drafts and a loop
# that weighs.
LARGE = PairTimes(target=0.019554, draft=0.00113)
LARGEST = PairTimes(target=0.029886, draft=0.0016)
SMALL = PairTimes(target=0.0037, draft=0.0008, verify_slope=0.09, hop=0.8e-3, processor=0.6e-3)

EVEN, WRONG, RIGHT = AcceptanceModel((0.81278,)), AcceptanceModel((0.0,)), AcceptanceModel((1.0,))
TWO_STATE = AcceptanceModel((0.95, 0.517), (0.92, 0.8))
EDITS = AcceptanceModel((0.6,), edits=True)

# Steps of the target that a simulation lasts, by streams: thousands of rounds. Several streams have
# tried drafts and none before: one stream decides from a cold start.
STEPS = {1: 1500, 16: 300, 64: 160}
WARM_UP = {1: 0, 16: 200, 64: 200}
LOSES_AT_MOST = 0.97


def rate(pair, language, streams, draft_len, **options):
    step = pair.target * (1 + pair.batch_slope * (streams - 1))
    outcome = run(
        pair,
        language,
        streams=streams,
        draft_len=draft_len,
        seconds=STEPS[streams] * step,
        warm_up=WARM_UP[streams] * step,
        **options,
    )
    return outcome.tokens_per_second


def over_best(pair, language, streams, lengths, **options):
    """Auto's tokens a second over those of the best of no drafts and some lengths."""
    best = max(rate(pair, language, streams, length, **options) for length in (0, *lengths))
    return rate(pair, language, streams, AUTO, **options) / best


@pytest.mark.parametrize("slope", first_of(0.03, 0.0))
@pytest.mark.parametrize("streams", [1, 64])
@pytest.mark.parametrize(
    ("language", "lengths"),
    [(EVEN, (8, 10)), (TWO_STATE, (8, 10)), (WRONG, ()), (RIGHT, (32,))],
    ids=["even", "two-state", "wrong", "right"],
)
def test_auto_never_loses(language, lengths, streams, slope):
    pair = replace(LARGE, batch_slope=slope)
    assert over_best(pair, language, streams, lengths) > LOSES_AT_MOST


def test_a_trial_without_drafts_that_are_far_ahead_is_short(monkeypatch):
    """A turn without them is ten times as slow. Where it was as long as others, auto had 0.6."""
    monkeypatch.setitem(STEPS, 64, 50)  # 700 tokens of each stream, and the first trial
    monkeypatch.setitem(WARM_UP, 64, 0)
    assert over_best(replace(LARGE, batch_slope=0.03), RIGHT, 64, (32,)) > 0.8


@pytest.mark.parametrize("streams", [1, 16])
@pytest.mark.parametrize(("alpha", "lengths"), [(0.6, (1, 2, 4)), (0.85, (2, 4, 6)), (0.2, (1, 2))])
def test_auto_never_loses_where_drafts_hardly_pay(alpha, lengths, streams):
    assert over_best(SMALL, AcceptanceModel((alpha,)), streams, lengths) > LOSES_AT_MOST


def test_auto_never_loses_where_the_loops_processor_is_what_streams_wait_for(monkeypatch):
    monkeypatch.setitem(WARM_UP, 64, 600)  # drafts are so slow there that they are tried late
    pair = replace(LARGE, processor=1.2e-3)
    assert over_best(pair, EVEN, 64, (8, 10, 16)) > LOSES_AT_MOST


def test_auto_never_loses_where_no_request_ever_was_alone():
    assert over_best(LARGE, EVEN, 64, (8, 10), steps_alone=0) > LOSES_AT_MOST


@pytest.mark.parametrize("slope", first_of(0.0, 0.01))
def test_auto_drafts_longer_where_longer_calls_wait_less_for_the_loops_processor(slope):
    """Where each draft token cost what its calls take, auto had 0.91 and 0.92."""
    pair = replace(LARGEST, processor=0.8e-3, batch_slope=slope)
    assert over_best(pair, AcceptanceModel((0.86,)), 64, (10, 14, 24)) > LOSES_AT_MOST


def test_auto_is_as_regular_as_a_fixed_length_where_streams_share_a_processor():
    """Rounds of one length do not meet there. Where chance chose lengths it was 0.96."""
    pair = replace(LARGE, processor=0.8e-3)
    assert over_best(pair, EVEN, 16, (8,), streams_text=True) > 0.98


def test_auto_never_loses_where_somebody_reads_along():
    assert over_best(LARGE, WRONG, 16, (), streams_text=True) > LOSES_AT_MOST
    assert over_best(LARGE, EVEN, 16, (8,), streams_text=True) > LOSES_AT_MOST


def test_auto_never_loses_with_engines_that_do_not_rate_their_drafts():
    assert over_best(LARGE, EVEN, 16, (8, 10), rated=False) > LOSES_AT_MOST


@pytest.mark.parametrize("pair", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("alpha", [0.6, 0.0])
@pytest.mark.parametrize("edits", [True, False])
def test_auto_chooses_among_copies_drafts_and_neither(pair, alpha, edits):
    language = AcceptanceModel((alpha,), edits=edits)
    best = max(
        rate(pair, language, 1, length, drafter=drafter)
        for drafter, length in [("draft_model", 0), ("draft_model", 4), ("hybrid", 4)]
    )
    assert rate(pair, language, 1, AUTO, drafter="hybrid") / best > LOSES_AT_MOST


def test_on_a_text_of_easy_and_hard_stretches_auto_gains():
    assert over_best(LARGE, TWO_STATE, 1, (6, 8, 10)) > 1.06


def test_the_target_alone_takes_a_step_a_token_and_a_call_for_32_of_them():
    a_token = LARGE.target + (LARGE.hop + LARGE.processor) / 32
    assert rate(LARGE, EVEN, 1, 0) == pytest.approx(1 / a_token, rel=0.02)


def test_drafts_that_are_right_earn_one_token_more_than_they_have():
    length, rounds = 9, ANSWER_LEN // 10
    seconds = 2 * (LARGE.hop + LARGE.processor) + length * LARGE.draft
    seconds += LARGE.target * (1 + LARGE.verify_slope * length)
    assert rate(LARGE, RIGHT, 1, length) == pytest.approx(10 / seconds, rel=1 / rounds)


def test_each_other_call_under_way_makes_a_step_longer():
    slow = replace(LARGE, batch_slope=0.03)
    share = rate(LARGE, EVEN, 64, 0) / rate(slow, EVEN, 64, 0)
    assert share == pytest.approx(1 + 63 * 0.03, rel=0.03)


def test_the_loops_processor_is_one_for_all_streams():
    busy = replace(LARGE, processor=0.01)  # a round needs twice as much
    assert rate(busy, RIGHT, 64, 9) == pytest.approx(10 / 0.02, rel=0.05)
