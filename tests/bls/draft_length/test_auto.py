"""Properties of `auto` that hold for any measurements."""

import threading
import time

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scripted import ids

from tandem.bls.costs import LinearCost, Mode
from tandem.bls.draft_length import Arms, AutoLength, DraftPlanner, FixedLength
from tandem.bls.ports import Draft, DraftPlan, EngineResult

MAX_DRAFT_LEN = 16
SECONDS = st.floats(0.0, 100.0)


class World:
    """A clock and a number of running sequences, both set by the test."""

    def __init__(self, stops_when_unsure):
        self.now, self.running = 0.0, 1
        self.statistics = DraftPlanner(
            MAX_DRAFT_LEN,
            lambda: self.running,
            clock=lambda: self.now,
            stops_when_unsure=stops_when_unsure,
        )


def drafted(tokens, seconds, *, stops_when_unsure):
    log_probs = np.full(tokens, -0.1, np.float32) if stops_when_unsure else None
    result = EngineResult(ids(*[1] * tokens), seconds, seconds, log_probs=log_probs)
    return Draft(result.tokens, drafter="draft_model", result=result)


def match(tokens, num_matching=2):
    return Draft(ids(*[1] * tokens), drafter="prompt_lookup", num_matching=num_matching)


def step(length, kind, tokens, accepted, seconds, *, stops_when_unsure):
    """Let the draft length learn from a step of this kind: draft, lookup or plain."""
    length.plan(MAX_DRAFT_LEN)  # every round begins with a plan
    accepted = min(accepted, tokens)
    if kind == "plain":
        length.observe_plain_call(tokens, seconds)
    else:
        draft = (
            match(tokens)
            if kind == "lookup"
            else drafted(tokens, seconds / 3, stops_when_unsure=stops_when_unsure)
        )
        length.verified(draft, accepted, seconds)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("draft", "lookup", "plain")),
        st.integers(1, MAX_DRAFT_LEN),
        st.integers(0, MAX_DRAFT_LEN),
        SECONDS,
        st.integers(0, 70),  # number of decoding sequences
        SECONDS,  # seconds until the next step
    ),
    max_size=60,
)


@given(STEPS, st.booleans(), st.integers(1, 40))
@example([("draft", 1, 0, 0.0, 0, 0.0)] * 4 + [("draft", 1, 0, 3e-173, 0, 0.0)], False, 1)
def test_plans_never_exceed_the_limit_and_always_emit_a_token(steps, stops_when_unsure, limit):
    world = World(stops_when_unsure)
    lengths = [AutoLength(world.statistics) for _ in range(3)]
    for number, (kind, tokens, accepted, seconds, running, passed) in enumerate(steps):
        length = lengths[number % len(lengths)]
        world.running, world.now = running, world.now + passed
        plan = length.plan(limit)
        assert 0 <= plan.num_tokens <= min(limit, MAX_DRAFT_LEN)
        assert plan.num_tokens or 1 <= plan.plain_tokens <= 32
        assert 0 <= length.lookup_length(match(tokens)) <= tokens
        assert 1 <= length.length_ahead <= MAX_DRAFT_LEN
        step(length, kind, tokens, accepted, seconds, stops_when_unsure=stops_when_unsure)


def test_the_planner_is_thread_safe():
    statistics = DraftPlanner(
        MAX_DRAFT_LEN, lambda: 1 + next(turns) % 64, clock=time.monotonic, stops_when_unsure=True
    )
    turns, errors = iter(range(10**9)), []

    def decode(seed):
        random, length = np.random.default_rng(seed), AutoLength(statistics)
        try:
            for _ in range(300):
                plan, seconds = length.plan(8), float(random.random()) / 100
                length.lookup_length(match(3))
                kind = "draft" if plan.num_tokens else "plain"
                step(
                    length,
                    kind,
                    max(1, plan.num_tokens),
                    int(random.integers(9)),
                    seconds,
                    stops_when_unsure=True,
                )
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=decode, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize("has_draft_model", [True, False])
def test_a_match_that_is_weighed_during_the_first_plan_has_a_length(monkeypatch, has_draft_model):
    world, speeds = World(stops_when_unsure=False), Arms.speeds
    planner = world.statistics
    if not has_draft_model:
        planner = planner.without_draft_model("prompt_lookup")
    length, weighed = AutoLength(planner), []

    def interrupted(arms, *args, **options):
        """Another thread may run during this."""
        weighed.append(length.lookup_length(match(4, num_matching=4)))
        return speeds(arms, *args, **options)

    monkeypatch.setattr(Arms, "speeds", interrupted)
    for kind in ["draft" if has_draft_model else "lookup"] * 8 + ["plain"] * 8:
        world.now += 0.1
        step(length, kind, 3, 1, 0.1, stops_when_unsure=False)
    assert weighed
    assert max(weighed) <= 4


def test_plain_calls_before_the_first_draft_take_little_memory():
    cost = LinearCost()
    for _ in range(50_000):
        cost.add(0, 0.01, steps=32)
    assert cost.num_added < 50_000


def test_a_draft_token_costs_what_it_adds_to_a_shared_step():
    """A step verifies the drafts of all sequences, so a short draft takes as long as a long one."""
    cost, random = LinearCost(), np.random.default_rng(0)
    for slot in range(40):
        longest = 8 if slot % 4 == 0 else 2
        for _ in range(10):
            sizes = random.integers(1, longest, 16, endpoint=True)
            for size in sizes.tolist():
                cost.add(size, 0.02 + 0.01 * sizes.mean())
        cost.end_slot(16 * 0.25)
    fixed, each = cost.coefficients()
    assert each == pytest.approx(0.01, rel=0.1)
    assert fixed == pytest.approx(0.02, rel=0.1)


def test_experiments_without_drafts_take_less_than_5_percent_of_the_time():
    world, alone = World(stops_when_unsure=False), []
    length = AutoLength(world.statistics)
    for _ in range(6000):
        world.now += 0.05
        alone.append(not length.allows_drafts())
        kind, tokens = ("plain", 1) if alone[-1] else ("draft", 4)
        step(length, kind, tokens, 3, 0.05, stops_when_unsure=False)
    assert 0 < sum(alone) < 0.05 * len(alone)


@pytest.mark.parametrize("plain", [0.0034, 0.0035, 0.0036])  # seconds; about as fast as drafts
def test_drafts_that_hardly_pay_are_not_turned_on_and_off_all_the_time(plain):
    world, random = World(stops_when_unsure=False), np.random.default_rng(0)
    length, drafting = AutoLength(world.statistics), []
    for _ in range(10_000):
        tokens = length.plan(8).num_tokens
        drafting.append(tokens > 0)
        seconds = (0.006 + 0.001 * tokens if tokens else plain) * random.uniform(0.9, 1.1)
        world.now += seconds
        accepted = min(tokens, random.geometric(0.38) - 1)
        kind = "draft" if tokens else "plain"
        step(length, kind, tokens or 1, accepted, seconds, stops_when_unsure=False)
    assert np.count_nonzero(np.diff(drafting)) < world.now  # including experiments


@pytest.mark.parametrize("most", [1, 32])  # tokens of a plain call
def test_unlucky_first_drafts_do_not_turn_off_drafts_for_more_than_two_seconds(most):
    world = World(stops_when_unsure=False)
    length, undrafted, drafts = AutoLength(world.statistics), 0.0, 0
    for _ in range(600):
        plan = length.plan(8)
        tokens = 0 if plan.num_tokens else min(plan.plain_tokens, most)
        seconds = 0.01 * tokens or 0.02
        world.now += seconds
        undrafted += 0.01 * tokens
        kind, accepted = "plain" if tokens else "draft", 0 if drafts < 6 else 6
        drafts += tokens == 0
        step(length, kind, tokens or 8, accepted, seconds, stops_when_unsure=False)
    assert undrafted < 2


@pytest.mark.parametrize(("slower", "at_most"), [(2, 11), (3, 11), (5, 25)])  # times, seconds
def test_a_busy_machine_during_the_first_drafts_turns_them_off_for_a_short_time(slower, at_most):
    world = World(stops_when_unsure=False)
    length, undrafted, drafts = AutoLength(world.statistics), 0.0, 0
    while world.now < 60:
        plan = length.plan(8)
        kind = "draft" if plan.num_tokens else "plain"
        tokens = 8 if kind == "draft" else plan.plain_tokens
        drafts += kind == "draft"
        seconds = 0.01 * tokens if kind == "plain" else 0.05 * (slower if drafts <= 4 else 1)
        world.now += seconds
        undrafted += seconds if kind == "plain" else 0
        step(length, kind, tokens, 6, seconds, stops_when_unsure=False)
    assert undrafted < at_most


@pytest.mark.parametrize("pays", [True, False])
def test_a_new_load_begins_with_the_costs_of_a_lower_one(pays):
    world = World(stops_when_unsure=False)
    world.running = 4
    length = AutoLength(world.statistics)

    def measure(seconds):
        drafts, until = 0, world.now + seconds
        while world.now < until:
            plan = length.plan(8)
            kind = "draft" if plan.num_tokens else "plain"
            tokens = plan.num_tokens or plan.plain_tokens
            seconds = 0.01 * tokens if kind == "plain" else 0.02
            world.now += seconds
            drafts += kind == "draft"
            step(length, kind, tokens, 4 * pays, seconds, stops_when_unsure=False)
        return drafts

    measure(4)
    world.running = 16
    assert (measure(0.05) > 0) == pays
    for running in (1, 1024):  # lower, and much higher: the costs are measured
        world.running = running
        assert length.plan(8).num_tokens


@pytest.mark.parametrize("pause", [1.0, 3.0, 10.0])  # seconds
def test_drafting_continues_after_the_machine_was_paused(pause):
    world = World(stops_when_unsure=False)
    length = AutoLength(world.statistics)

    def decode(rounds, seconds):
        with_drafts = 0
        for _ in range(rounds):
            world.now += seconds
            if length.plan(8).num_tokens:
                with_drafts += 1
                step(length, "draft", 8, 6, seconds, stops_when_unsure=False)
            else:
                step(length, "plain", 1, 0, 0.05, stops_when_unsure=False)
        return with_drafts

    decode(300, 0.1)
    decode(1, pause)
    assert decode(40, 0.1) > 30


@pytest.mark.parametrize("num_stale", [0, 3])
def test_drafting_continues_although_the_draft_model_must_catch_up_after_each_break(num_stale):
    """The first draft after decoding alone also reads the tokens since the last draft.

    num_stale: drafts after a break that are wrong, because the draft engine's cache is stale.
    """
    world = World(stops_when_unsure=False)
    length, with_drafts, since_break = AutoLength(world.statistics), 0, 0
    for _ in range(2000):
        if length.plan(8).num_tokens:
            seconds, accepted = 0.1 if since_break else 1.0, 0 if since_break < num_stale else 6
            step(length, "draft", 8, accepted, seconds, stops_when_unsure=False)
            with_drafts, since_break = with_drafts + 1, since_break + 1
        else:
            seconds = 0.05
            step(length, "plain", 1, 0, seconds, stops_when_unsure=False)
            since_break = 0
        world.now += seconds
    assert with_drafts > 1800


def test_impossible_tokens_and_drafts_that_never_stop_have_finite_speeds():
    """Their log-probabilities are -inf, and a stop probability of 0 never stops a draft."""
    world = World(stops_when_unsure=True)
    length = AutoLength(world.statistics)
    for number in range(200):
        world.now += 0.1
        if not length.plan(8).num_tokens:
            step(length, "plain", 1, 0, 0.05, stops_when_unsure=True)
            continue
        log_probs = np.full(8, -np.inf if number % 2 else 0.0, np.float32)
        result = EngineResult(ids(*[1] * 8), 0.01, 0.01, log_probs=log_probs)
        draft = Draft(result.tokens, drafter="draft_model", result=result)
        length.verified(draft, 8 * (number % 2), 0.1)
    assert length.plan(8).num_tokens > 1


def test_a_request_that_can_only_copy_does_not_stop_the_drafts_of_others():
    world = World(stops_when_unsure=False)
    world.running = 2
    drafting, looking_up = (AutoLength(world.statistics) for _ in range(2))
    with_drafts = 0
    for number in range(1000):
        world.now = number / 10
        step(looking_up, "lookup", 4, 3, 0.05, stops_when_unsure=False)
        plan = drafting.plan(8)
        with_drafts += plan.num_tokens > 0
        kind, tokens = ("draft", 8) if plan.num_tokens else ("plain", 1)
        step(drafting, kind, tokens, 7, 0.1, stops_when_unsure=False)
    assert with_drafts > 900


@pytest.mark.parametrize("delayed", [False, True])
def test_matches_are_not_used_if_they_delay_other_requests_more_than_they_save(delayed):
    world = World(stops_when_unsure=False)
    world.running = 4
    looking_up, *others = (AutoLength(world.statistics) for _ in range(4))

    def decode(steps, seconds=0.05):
        world.now += seconds
        for length, kind, tokens, accepted in steps:
            step(length, kind, tokens, accepted, seconds, stops_when_unsure=False)

    for _ in range(10):
        decode([(other, "draft", 8, 0) for other in others])
    for _ in range(10):
        decode([(other, "plain", 2, 0) for other in others])
    num_used = 0
    for _ in range(400):
        if looking_up.lookup_length(match(16)):
            num_used += 1
            plain = [(other, "plain", 1 if delayed else 2, 0) for other in others]
            decode([(looking_up, "lookup", 16, 3), *plain])
        else:
            decode([(length, "plain", 2, 0) for length in (looking_up, *others)])
    assert num_used < 100 if delayed else num_used > 300


@pytest.mark.parametrize(("num_right", "used"), [(3, False), (5, True)])
def test_matches_must_be_faster_than_the_target_alone(num_right, used):
    world = World(stops_when_unsure=False)
    length = AutoLength(world.statistics)
    # A round with a match takes 0.1 s, in which the target alone decodes 4.5 tokens.
    rounds = [("draft", 1, 0, 0.1)] * 5 + [("plain", 9, 0, 0.2)] * 5
    rounds += [("lookup", 16, num_right, 0.1)] * 500
    for kind, tokens, accepted, seconds in rounds:
        world.now += seconds
        step(length, kind, tokens, accepted, seconds, stops_when_unsure=False)
    while world.statistics.mode is not Mode.BEST:
        world.now += 0.1
        step(length, "plain", 9, 0, 0.2, stops_when_unsure=False)
    assert bool(length.lookup_length(match(16))) == used


def test_rejected_branches_do_not_stop_copies():
    world = World(stops_when_unsure=False)
    length = AutoLength(world.statistics)
    for kind, seconds in [("draft", 0.1)] * 5 + [("plain", 0.09)] * 5:
        world.now += seconds
        step(length, kind, 1, 0, seconds, stops_when_unsure=False)
    length.plan(8)
    for _ in range(200):
        world.now += 0.1
        length.verified(Draft(ids(1, 1), drafter="draft_model", drafted_ahead=True), 0, 0.1)
    assert world.statistics.mode is Mode.BEST
    assert length.lookup_length(match(4, num_matching=1)) > 0


def test_a_fixed_draft_length_is_limited_only_by_the_tokens_left():
    length = FixedLength(4)
    assert [length.plan(limit) for limit in (3, 9)] == [DraftPlan(3), DraftPlan(4)]
    assert length.lookup_length(match(5)) == 5
    assert length.allows_drafts()
