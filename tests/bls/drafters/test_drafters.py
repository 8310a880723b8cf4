"""Each drafter proposes the expected tokens and is credited for them in the statistics."""

from dataclasses import replace

import numpy as np
import pytest
from scripted import (
    ENDLESS,
    SETTINGS,
    BranchingDraft,
    Draft,
    Health,
    Language,
    OverduePorts,
    Ports,
    Reports,
    Target,
    decoding_of,
    expected,
    ids,
    play,
    with_engines,
)

from tandem.bls import ports
from tandem.bls.costs import Mode
from tandem.bls.draft_length import SEEDED_LENGTH, DraftPlanner, FixedLength
from tandem.bls.drafters.draft_model import DraftModel, SharedVocabulary
from tandem.bls.drafters.drafter import DrafterContext
from tandem.bls.drafters.guarded import drafter_of
from tandem.bls.drafters.prompt_lookup import PromptLookup
from tandem.bls.ports import EngineResult
from tandem.bls.request import Request, Sampling
from tandem.bls.sequence import Sequence
from tandem.bls.settings import AUTO
from tandem.bls.statistics import Statistics


class Repeats(Language):
    """Emit 0 to 4 repeatedly, so lookup finds matches after the first five tokens."""

    def next(self, context, banned=()):
        return (int(context[-1]) + 1) % 5


def request_of(drafter, **changes):
    plain = Request(
        prompt_ids=ids(0, 1, 2),
        max_tokens=40,
        drafter=drafter,
        draft_len=3,
        prompt_lookup_num_tokens=4,
        max_matching_ngram_size=2,
    )
    return replace(plain, **changes)


def test_lookup_needs_no_draft_model():
    target = Target(Repeats())
    decoding = decoding_of(request_of("prompt_lookup"))
    play(decoding, target, draft=None)
    assert decoding.sequence.output.tolist() == expected(decoding.request, Repeats())[0]
    assert decoding.statistics.by_drafter.keys() == {"prompt_lookup"}
    assert decoding.statistics.draft_acceptance_rate == 1
    assert max(len(call.draft) for call in target.calls) == 4


def test_without_matches_prompt_lookup_decodes_in_growing_chunks():
    class Counts(Language):
        def next(self, context, banned=()):
            return len(context)

    target = Target(Counts())
    play(decoding_of(request_of("prompt_lookup", prompt_ids=ids(0))), target)
    assert all(len(call.draft) == 0 for call in target.calls)
    assert [call.max_new_tokens for call in target.calls] == [1, 2, 4, 8, 8, 8, 8, 1]


OCCURRENCES = ids(1, 2, 10, 11, 12, 1, 2, 20, 21, 22, 1, 2, 30, 1, 2)


def test_prompt_lookup_copies_after_the_newest_occurrence_before_a_whole_draft():
    request = request_of("prompt_lookup", prompt_ids=OCCURRENCES)
    found = PromptLookup(request, SETTINGS).propose(Sequence(request), 4, None)
    assert (found.tokens.tolist(), found.tokens.dtype) == ([20, 21, 22, 1], np.int32)
    assert found.drafter == "prompt_lookup"


def test_prompt_lookup_accepts_a_match_of_one_token():
    request = request_of("prompt_lookup", prompt_ids=ids(1, 5, 2, 1))
    assert PromptLookup(request, SETTINGS).propose(Sequence(request), 4, None).tokens.tolist() == [
        5,
        2,
        1,
    ]


def test_a_match_resets_the_plain_tokens_of_prompt_lookup():
    request = request_of("prompt_lookup", prompt_ids=ids(0))
    lookup, sequence = PromptLookup(request, SETTINGS), Sequence(request)
    plain = []
    for token in (1, 2, 3, 1, 4, 5):
        plain.append(lookup.propose(sequence, 4, None).plain_tokens)
        sequence.append(ids(token))
    plain.append(lookup.propose(sequence, 4, None).plain_tokens)
    assert plain == [1, 2, 4, 8, 1, 1, 2]


def test_prompt_lookup_copies_end_at_an_end_of_sequence():
    request = request_of("prompt_lookup", prompt_ids=ids(1, 2, 7, 3, 4, 1, 2), end_ids=(7,))
    target = Target(ENDLESS)
    play(decoding_of(request), target)
    assert target.calls[0].draft.tokens.tolist() == [7]


def test_hybrid_copies_repeated_text_and_otherwise_calls_the_draft_model():
    draft = Draft(Repeats())
    decoding = decoding_of(request_of("hybrid"))
    play(decoding, Target(Repeats()), draft)
    assert decoding.sequence.output.tolist() == expected(decoding.request, Repeats())[0]
    earned = decoding.statistics.by_drafter
    assert earned["draft_model"].num_spec_steps == len(draft.calls) == 1
    assert earned["prompt_lookup"].num_spec_steps > 5


def test_hybrid_prefers_the_model_to_a_short_match():
    request = request_of("hybrid", prompt_ids=ids(1, 5, 2, 1), max_tokens=8)
    for least, asked in ((1, 0), (2, 1)):
        draft = Draft(ENDLESS)
        decoding = decoding_of(request, replace(SETTINGS, hybrid_min_ngram_size=least))
        target = Target(ENDLESS)
        play(decoding, target, draft)
        assert (target.calls[0].draft.drafter == "draft_model") == bool(asked)


def test_hybrid_copies_while_the_model_is_paused():
    draft, health = Draft(Repeats(), (None,)), Health(patience=1)
    decoding = decoding_of(request_of("hybrid"), health=health)
    play(decoding, Target(Repeats()), draft)
    assert decoding.sequence.output.tolist() == expected(decoding.request, Repeats())[0]
    assert len(draft.calls) == decoding.statistics.num_drafter_failures == 1
    assert decoding.statistics.by_drafter.keys() == {"prompt_lookup"}


def test_hybrid_limits_copies_and_model_drafts_separately():
    target, draft = Target(Repeats()), Draft(Repeats())
    play(decoding_of(request_of("hybrid", prompt_lookup_num_tokens=7)), target, draft)
    lengths = {"draft_model": 3, "prompt_lookup": 7}
    assert all(len(c.draft) <= lengths.get(c.draft.drafter, 0) for c in target.calls)
    assert {c.draft.drafter for c in target.calls if len(c.draft)} == set(lengths)


def test_looked_up_drafts_have_no_logits():
    target, draft = Target(Repeats()), Draft(Repeats())
    play(decoding_of(request_of("hybrid", use_draft_logits=True)), target, draft)
    match = [call for call in target.calls if call.draft.drafter == "prompt_lookup"]
    assert match
    assert all(call.draft.logits is None for call in match)
    assert all(call.wants_logits for call in draft.calls)


def test_an_engine_that_drafts_by_itself_decodes_in_a_single_call():
    target = Target(ENDLESS)
    play(decoding_of(request_of("engine", max_tokens=300)), target)
    assert [call.max_new_tokens for call in target.calls] == [300]


def test_drafts_made_inside_the_engine_are_counted_as_drafter_engine():
    decoding = decoding_of(request_of("engine", max_tokens=30))
    play(decoding, Reports(Target(ENDLESS), num_draft_tokens=40, num_accepted_tokens=20))
    assert decoding.statistics.num_rounds == 10
    assert decoding.statistics.by_drafter["engine"].draft_acceptance_rate == 0.5


def test_a_rejected_draft_call_ends_drafting_only_for_its_request():
    draft, health = Draft(ENDLESS, rejects=True), Health()
    decoding = decoding_of(request_of("draft_model"), health=health)
    play(decoding, Target(ENDLESS), draft)
    assert (len(draft.calls), health.rejections, health.failures) == (1, 1, 0)
    assert health.without == ["drafts"]
    assert health.errors == ["model 'draft' failed: scripted rejection"]
    assert decoding.statistics.num_drafter_failures == 1
    assert decoding.sequence.output.tolist() == expected(decoding.request, ENDLESS)[0]

    other = Draft(ENDLESS)
    play(decoding_of(request_of("draft_model"), health=health), Target(ENDLESS), other)
    assert len(other.calls) > 5


def test_a_failed_draft_call_pauses_the_draft_engine():
    draft, health = Draft(ENDLESS, (None,)), Health(patience=2)
    play(decoding_of(request_of("draft_model"), health=health), Target(ENDLESS), draft)
    assert (len(draft.calls), health.rejections, health.failures) == (2, 0, 2)
    assert health.errors == ["model 'draft' failed: scripted failure"] * 2


SMALL_DRAFT = with_engines(SETTINGS, draft={"vocab_size": 4})


@pytest.mark.parametrize(("prompt", "asks"), [((0, 3), True), ((0, 4), False), ((7, 0), False)])
def test_ids_outside_the_drafts_vocabulary_are_not_sent_to_it(prompt, asks):
    class Zeros(Language):
        def next(self, context, banned=()):
            return 0

    draft = Draft(Zeros())
    decoding = decoding_of(request_of("draft_model", prompt_ids=ids(*prompt)), SMALL_DRAFT)
    play(decoding, Target(Zeros()), draft)
    assert bool(draft.calls) == asks
    assert decoding.statistics.num_drafter_failures == 0


def test_drafting_ends_at_an_id_outside_the_drafts_vocabulary():
    class Counts(Language):
        def next(self, context, banned=()):
            return 4 if len(context) == 12 else 1

    draft = Draft(Counts(), (False,))
    play(decoding_of(request_of("draft_model"), SMALL_DRAFT), Target(Counts()), draft)
    assert [len(call.context) for call in draft.calls] == list(range(3, 13))


def test_the_draft_model_is_not_called_beyond_its_max_seq_len():
    short = replace(SETTINGS.draft, max_seq_len=4)
    drafter = DraftModel(short, SharedVocabulary(short, SETTINGS.target), Health(), FixedLength(3))
    sequence = Sequence(request_of("draft_model"))
    assert drafter.can_draft(sequence)
    sequence.append(ids(1))
    assert not drafter.can_draft(sequence)


def test_drafts_contain_no_end_of_sequence_before_min_tokens():
    draft = Draft(ENDLESS)
    play(
        decoding_of(request_of("draft_model", min_tokens=8, max_tokens=30)), Target(ENDLESS), draft
    )
    below_min = [len(call.context) - len(draft.calls[0].context) < 8 for call in draft.calls]
    assert {True, False} == set(below_min)
    assert [call.ban_end_ids for call in draft.calls] == below_min


def test_the_last_id_of_the_targets_vocabulary_can_be_drafted():
    settings = with_engines(SETTINGS, target={"vocab_size": 6})

    class Strays(Draft):
        def answers(self, call):
            yield EngineResult(ids(5, 6, 2)[: call.max_new_tokens])

    target = Target(ENDLESS)
    play(decoding_of(request_of("draft_model"), settings), target, Strays(ENDLESS))
    assert target.calls[0].draft.tokens.tolist() == [5]


class Time:
    """A clock set by the test."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class RecordingPlanner(DraftPlanner):
    """A planner that also keeps the numbers of tokens of the observed plain calls."""

    plain: tuple[int, ...] = ()

    def observe_plain_call(self, num_tokens, seconds):
        self.plain += (num_tokens,)
        super().observe_plain_call(num_tokens, seconds)


def drafting_in_vain():
    """Return a hybrid drafter that has learned that drafts don't pay, its planner and its clock."""
    time = Time()
    request = request_of("hybrid", draft_len=AUTO, max_draft_len=16, prompt_lookup_num_tokens=16)
    planner = RecordingPlanner(16, clock=time, stops_when_unsure=False)
    drafter = drafter_of(request, DrafterContext(SETTINGS, Health(), planner), Statistics())
    for _ in range(40):
        time.now += 0.1
        planner.plan(0, 16)
        drafted = ports.Draft(ids(1, 2), drafter="draft_model", result=EngineResult(ids(1, 2)))
        drafter.verified(drafted, 0, 0.1)
    for _ in range(10):
        time.now += 0.02
        planner.plan(0, 16)
        drafter.observe_plain_call(1, 0.02)
    return drafter, planner, time


def proposed_without_calls(drafter, sequence, limit=4):
    """Return the drafter's proposal. The drafter must not call the draft model."""
    return drafter.propose(sequence, limit, Ports(Target(ENDLESS)))


def decoded_alone(drafter, sequence):
    """Return how many tokens the target should decode before the drafter is called again."""
    return proposed_without_calls(drafter, sequence).plain_tokens


def matches_pay():
    """Return the same as `drafting_in_vain`, but matches have been right."""
    drafter, planner, time = drafting_in_vain()
    match = ports.Draft(np.ones(16, np.int32), num_matching=2)
    for _ in range(20):
        planner.observe_lookup(match, 16)
    drafter.observe_plain_call(1, 0.02)
    time.now += 1.0
    planner.plan(0, 16)
    planner.plain = ()
    return drafter, planner, time


def learn_overhead(drafter, overhead):
    """Let the drafter see what calls cost. overhead: of each call, in tokens."""
    for tokens in [1, 8] * 40:
        drafter.observe_plain_call(tokens, 0.02 * (overhead + tokens))


@pytest.mark.parametrize("overhead", [0.2, 0.5, 1.0, 2.0])  # of a call, in tokens
def test_without_matches_calls_of_hybrid_grow_so_that_their_overhead_is_small(overhead):
    drafter, _, _ = matches_pay()
    learn_overhead(drafter, overhead)
    sequence, chunks = Sequence(request_of("hybrid", draft_len=AUTO, max_draft_len=16)), []
    while sum(chunks) < 200:
        chunks.append(decoded_alone(drafter, sequence))
        sequence.append(ids(7 + len(chunks)))
    assert (chunks[0], chunks[-1]) == (1, 32)
    assert chunks == sorted(chunks)
    assert len(chunks) * overhead < 0.1 * sum(chunks)


def test_accepted_matches_make_calls_of_hybrid_short_again():
    drafter, _, _ = matches_pay()
    learn_overhead(drafter, 1.0)
    sequence = Sequence(request_of("hybrid", draft_len=AUTO, max_draft_len=16))
    while decoded_alone(drafter, sequence) < 32:
        pass
    match, chunks = ports.Draft(ids(5), drafter="prompt_lookup", num_matching=2), []
    for num_accepted in (0, 1, 7, 7, 7):
        drafter.verified(match, num_accepted, 0.1)
        chunks.append(decoded_alone(drafter, sequence))
    assert chunks[0] == 32
    assert 1 < chunks[1] < 32
    assert chunks[-1] == 1


def test_hybrid_shortens_no_call_if_matches_do_not_pay():
    drafter, planner, time = drafting_in_vain()
    for _ in range(20):
        planner.observe_lookup(ports.Draft(np.ones(16, np.int32), num_matching=24), 0)
    time.now += 1.0
    planner.plan(0, 16)
    prompt = ids(1, 2, 5, 1, 2)  # the last two tokens match
    request = request_of("hybrid", draft_len=AUTO, max_draft_len=16, prompt_ids=prompt)
    assert decoded_alone(drafter, Sequence(request)) == 32


def test_hybrid_copies_again_when_copies_that_it_did_not_use_were_right():
    drafter, planner, time = drafting_in_vain()
    period = ids(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    request = request_of(
        "hybrid",
        draft_len=AUTO,
        max_draft_len=16,
        prompt_lookup_num_tokens=16,
        prompt_ids=np.tile(period, 3),
        max_tokens=400,
    )
    drafter = drafter_of(request, DrafterContext(SETTINGS, Health(), planner), Statistics())
    sequence = Sequence(request)
    while not len(proposal := proposed_without_calls(drafter, sequence, 16)):
        assert len(sequence) < 300
        count, start = proposal.plain_tokens, len(sequence) % len(period)
        sequence.append(np.tile(period, 10)[start : start + count])
        time.now += 0.02 * count
        drafter.observe_plain_call(count, 0.02 * count)


def test_hybrid_does_not_report_the_times_of_shortened_calls():
    drafter, planner, _ = matches_pay()
    sequence = Sequence(request_of("hybrid", draft_len=AUTO, max_draft_len=16))
    learn_overhead(drafter, 1.0)
    planner.plain, counts = (), [1]
    while counts[-1] < 32:
        counts.append(decoded_alone(drafter, sequence))
        drafter.observe_plain_call(counts[-1], 0.02 * (1 + counts[-1]))
    assert planner.plain == (32,)


def test_hybrid_shortens_no_call_of_an_experiment_without_drafts():
    drafter, planner, time = matches_pay()
    sequence = Sequence(request_of("hybrid", draft_len=AUTO, max_draft_len=16))
    assert decoded_alone(drafter, sequence) == 1
    while planner.mode is not Mode.NO_DRAFTS:
        time.now += 0.1
        planner.plan(0, 16)
    planner.plain = ()
    count = decoded_alone(drafter, sequence)
    drafter.observe_plain_call(count, 0.02 * count)
    assert planner.plain == (count,)
    assert count > 2


@pytest.mark.parametrize("draft_len", [AUTO, 3])
@pytest.mark.parametrize("seeded", [True, False])
@pytest.mark.parametrize("use_draft_logits", [True, False])
def test_auto_uses_a_fixed_length_for_seeded_output_that_depends_on_it(
    draft_len, seeded, use_draft_logits
):
    request = request_of(
        "draft_model",
        draft_len=draft_len,
        max_draft_len=16,
        max_tokens=200,
        sampling=Sampling(top_k=0),
        seeded=seeded,
        use_draft_logits=use_draft_logits,
    )
    planner = DraftPlanner(16, clock=lambda: 0.0, stops_when_unsure=True)
    drafter = drafter_of(request, DrafterContext(SETTINGS, Health(), planner), Statistics())
    draft = Draft(ENDLESS)
    drafter.propose(Sequence(request), 16, Ports(Target(ENDLESS), draft))
    first = draft.calls[0].max_new_tokens
    is_seeded = seeded and use_draft_logits
    assert (first == SEEDED_LENGTH) == (draft_len == AUTO and is_seeded)
    assert draft_len == AUTO or first == 3


def test_missing_draft_logits_are_reported_and_do_not_change_the_output():
    health = Health()
    request = request_of("draft_model", use_draft_logits=True)
    decoding = decoding_of(request, health=health)
    play(decoding, Target(ENDLESS), Reports(Draft(ENDLESS), draft_logits=None))
    assert decoding.statistics.num_drafter_failures == health.rejections == 1
    assert health.errors == [
        "model 'draft' failed: generation_logits are missing from its response"
    ]
    assert decoding.sequence.output.tolist() == expected(request, ENDLESS)[0]


AHEAD = with_engines(SETTINGS, draft={"branches": True})


@pytest.mark.parametrize("overdue", [1, 2, 4])
@pytest.mark.parametrize("stop_strings", [(), ("ab",)])
@pytest.mark.parametrize(
    ("drafter", "script", "changes"),
    [
        ("draft_model", (True, True, False), {}),
        ("draft_model", (True,), {"use_draft_logits": True}),
        ("draft_model", (True,), {"draft_len": AUTO}),
        ("draft_model", (), {"draft_ahead": True}),
        ("hybrid", (True, False), {}),
        ("hybrid", (), {"draft_ahead": True}),
    ],
)
def test_an_overdue_draft_call_changes_only_its_round(
    drafter, script, changes, stop_strings, overdue
):
    request = request_of(drafter, max_tokens=60, stop_strings=stop_strings, **changes)
    draft = Draft(ENDLESS, script) if script else BranchingDraft(ENDLESS)
    settings = SETTINGS if script else AHEAD
    decoding, ports = decoding_of(request, settings), OverduePorts(Target(ENDLESS), draft, overdue)
    ports.run(decoding)
    tokens, text, reason = expected(request, ENDLESS)
    assert decoding.sequence.output.tolist() == tokens
    assert "".join(chunk.text for chunk in ports.chunks) == text
    assert ports.chunks[-1].finish_reason == reason
    was_overdue = ports.num_drafts >= overdue
    assert decoding.statistics.num_drafter_failures == was_overdue
    assert ports.num_drafts > overdue or not was_overdue  # drafting goes on
