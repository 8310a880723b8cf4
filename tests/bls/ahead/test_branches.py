"""With scripted engines, drafting ahead changes neither the output nor the drafts."""

from dataclasses import replace

import numpy as np
import pytest
from ahead import AHEAD, fates, request_of, requests
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import (
    END,
    ENDLESS,
    SETTINGS,
    BranchingDraft,
    Health,
    Ports,
    Reports,
    Target,
    decoding_of,
    expected,
    ids,
    play,
    with_engines,
)
from strategies import languages

from tandem.bls.ahead import (
    AheadPlan,
    AheadPlanner,
    DraftAhead,
    plan_branches,
)
from tandem.bls.draft_length import FixedLength
from tandem.bls.drafters.draft_model import DraftModel, SharedVocabulary
from tandem.bls.ports import Draft, EngineResult
from tandem.bls.request import Sampling
from tandem.bls.sequence import Sequence
from tandem.bls.settings import AUTO


def check(request, language, draft, *, ahead_fates=("in time",), verifies=10**9, settings_=AHEAD):
    """Decode with branches; assert that output and drafts don't change."""
    decoding = decoding_of(request, settings_)
    target = Target(language, request.end_ids, verifies)
    chunks = play(decoding, target, draft, ahead_fates)
    tokens, text, reason = expected(request, language)
    assert decoding.sequence.output.tolist() == tokens
    assert "".join(chunk.text for chunk in chunks) == text
    assert chunks[-1].finish_reason == reason
    for call in target.calls:
        if call.draft.drafted_ahead:
            assert_is_a_plain_call_would_draft(call, request, draft)
    ahead = decoding.statistics.ahead
    assert ahead.num_hits == sum(call.draft.drafted_ahead for call in target.calls)
    assert ahead.num_wasted_branches >= 0
    return decoding


def assert_is_a_plain_call_would_draft(call, request, draft):
    """Assert that the draft equals the result of a plain call with the same context."""
    drafts = DraftModel(
        AHEAD.draft, SharedVocabulary(AHEAD.draft, AHEAD.target), Health(), FixedLength(4)
    )
    sequence = Sequence(request)
    sequence.append(call.context[len(request.prompt_ids) :])
    plain = draft.drafted(call.context, 16, drafts._call(sequence))
    assert call.draft.tokens.tolist() == plain[: len(call.draft)]
    assert len(call.draft) <= sequence.draft_limit()


@settings(max_examples=100)
@given(requests, languages, st.integers(0, 8), fates, st.sampled_from([10**9, 0, 1, 3]))
def test_drafting_ahead_never_changes_the_output(request, language, agrees, ahead_fates, verifies):
    check(
        request,
        language,
        BranchingDraft(language, agrees),
        ahead_fates=ahead_fates,
        verifies=verifies,
    )


@settings(max_examples=20)
@given(requests, languages)
def test_branches_longer_than_requested_are_cut(request, language):
    check(request, language, BranchingDraft(language, keeps_lengths=False))


def test_no_draft_call_is_needed_after_a_hit():
    draft = BranchingDraft(ENDLESS, agrees=8, unsure_every=10**9)
    decoding = check(request_of(end_ids=(), max_tokens=40), ENDLESS, draft)
    first, *rest = draft.calls
    assert first.branching is None
    assert all(call.branching is not None for call in rest)
    rounds = decoding.statistics.rounds
    assert [round_.drafted_ahead for round_ in rounds if round_.num_draft_tokens] == [
        False,
        *[True] * (len(rounds) - 1),
    ]
    assert {round_.num_draft_tokens for round_ in rounds} == {4}


def test_after_a_miss_the_draft_has_the_requested_length():
    draft = BranchingDraft(ENDLESS, agrees=8)
    decoding = check(request_of(end_ids=(), draft_len=8), ENDLESS, draft, ahead_fates=("late",))
    plain = [call.max_new_tokens for call in draft.calls if call.branching is None]
    assert set(plain[:-1]) == {8}
    assert decoding.statistics.ahead.num_hits == 0
    assert decoding.statistics.ahead.num_calls > 0


def test_failed_branch_calls_pause_drafts_but_rejected_ones_do_not():
    request = request_of(end_ids=())
    draft, health = BranchingDraft(ENDLESS), Health()
    decoding = decoding_of(request, AHEAD, health)
    play(decoding, Target(ENDLESS, ()), draft, ("rejected",))
    assert (health.failures, health.rejections) == (0, 1)
    assert health.without == ["drafting ahead"]
    assert decoding.statistics.ahead.num_calls == 1
    assert decoding.statistics.num_drafter_failures == 0
    assert decoding.statistics.num_draft_tokens > 8

    health = Health(patience=1)
    decoding = decoding_of(request, AHEAD, health)
    play(decoding, Target(ENDLESS, ()), draft, ("in time", "failed"))
    assert (health.failures, health.rejections) == (1, 0)
    assert decoding.statistics.num_drafter_failures == 1
    assert decoding.sequence.output.tolist() == expected(request, ENDLESS)[0]


@pytest.mark.parametrize(
    ("changes", "settings_"),
    [
        ({"draft_ahead": False}, AHEAD),
        ({}, SETTINGS),
        ({"use_draft_logits": True, "sampling": Sampling(top_k=0)}, AHEAD),
        ({"drafter": "prompt_lookup", "prompt_lookup_num_tokens": 4}, AHEAD),
        (
            {"seeded": True, "sampling": Sampling(top_k=0)},
            with_engines(AHEAD, target={"keyed_randomness": False}),
        ),
        ({"draft_ahead": None}, replace(AHEAD, engines_share_device=True)),
    ],
)
def test_drafting_ahead_is_off_if_disabled_or_unsupported(changes, settings_):
    class NoBranches(BranchingDraft):
        def answers(self, call):
            assert call.branching is None
            tokens = ids(*self.drafted(call.context, call.max_new_tokens, call))
            yield EngineResult(tokens, draft_logits=np.zeros((1, len(tokens), 8), np.float32))

    decoding = decoding_of(request_of(**changes), settings_)
    play(decoding, Target(ENDLESS), NoBranches(ENDLESS))
    assert decoding.statistics.ahead.num_calls == 0


def test_draft_ahead_true_enables_drafting_ahead_on_a_shared_device():
    decoding = decoding_of(request_of(), replace(AHEAD, engines_share_device=True))
    play(decoding, Target(ENDLESS), BranchingDraft(ENDLESS))
    assert decoding.statistics.ahead.num_hits > 0


def test_drafts_with_ids_unknown_to_the_draft_engine_get_no_branches():
    ahead = DraftAhead(AheadPlanner(AHEAD), always=True)
    small = replace(AHEAD.draft, vocab_size=6)
    drafter = DraftModel(
        small, SharedVocabulary(small, AHEAD.target), Health(), FixedLength(4), ahead
    )
    sequence = Sequence(request_of())
    engines = Ports(Target(ENDLESS))
    assert drafter.draft_ahead(sequence, Draft(ids(1, 5), drafter="prompt_lookup"), engines)
    assert not drafter.draft_ahead(sequence, Draft(ids(1, 6), drafter="prompt_lookup"), engines)


def test_branches_respect_ends_of_sequence_min_tokens_and_context_limits():
    plan = AheadPlan(num_tokens=4, num_branches=8)
    sequence = Sequence(request_of(min_tokens=0))
    branching = plan_branches(sequence, ids(1, END), plan, 100, 0.8)
    assert branching.lengths == (4, 4, 0)
    assert branching.counts[2] == 0
    # min_tokens requires five tokens. The call bans end ids, so branches stay below five tokens.
    sequence = Sequence(request_of(min_tokens=5))
    assert plan_branches(sequence, ids(1, 2, 3, 4), plan, 100, 0.8).lengths == (3, 2, 1, 0, 0)
    # Branches stop at max_tokens and at the space left in the draft engine (100 or 4 tokens).
    sequence = Sequence(request_of(max_tokens=6))
    assert plan_branches(sequence, ids(1, 2), plan, 100, 0.8).lengths == (4, 3, 2)
    assert plan_branches(sequence, ids(1, 2), plan, 4, 0.8).lengths == (3, 2, 1)
    sequence = Sequence(request_of(max_tokens=3))
    assert plan_branches(sequence, ids(1, 2), plan, 100, 0.8).lengths == (1, 0, 0)
    sequence = Sequence(request_of(max_tokens=2))
    assert plan_branches(sequence, ids(1), plan, 100, 0.8) is None


def test_auto_with_drafting_ahead_does_not_change_the_output():
    request = request_of(draft_len=AUTO, max_draft_len=8, end_ids=(), max_tokens=100)
    decoding = decoding_of(request, AHEAD)
    target = Reports(Target(ENDLESS, ()), seconds=0.02)
    play(decoding, target, BranchingDraft(ENDLESS, agrees=7))
    assert decoding.sequence.output.tolist() == expected(request, ENDLESS)[0]
    assert decoding.statistics.ahead.num_hits > 0
