"""When drafting ahead with logits, each branch has the logits that it was sampled from."""

from dataclasses import replace

import pytest
from ahead import BY_PROBABILITIES, SHARED, fates, request_of, requests
from hypothesis import given
from hypothesis import strategies as st
from scripted import (
    ENDLESS,
    BranchingDraft,
    Ports,
    Target,
    decoding_of,
    expected,
    ids,
    play,
    with_engines,
)
from strategies import languages

from tandem.bls.ahead import AheadPlanner, make_draft_ahead
from tandem.bls.ports import Draft, EngineCall, EngineResult
from tandem.bls.sequence import Sequence


def drawn_from(draft):
    """Return the most likely token in each row of a draft's logits."""
    rows = draft.logits[draft.logits_row : draft.logits_row + len(draft)]
    return rows.argmax(-1).tolist()


@given(requests, languages, st.integers(0, 8), fates, st.sampled_from([10**9, 0, 1, 3]))
def test_each_branch_is_verified_against_its_own_logits(
    request, language, agrees, ahead_fates, verifies
):
    request = replace(request, **BY_PROBABILITIES)
    draft, target = BranchingDraft(language, agrees), Target(language, request.end_ids, verifies)
    decoding = decoding_of(request, SHARED)
    play(decoding, target, draft, ahead_fates)
    assert decoding.sequence.output.tolist() == expected(request, language)[0]
    for call in target.calls:
        if call.draft.drafter == "draft_model":
            assert drawn_from(call.draft) == call.draft.tokens.tolist()


class Answered(BranchingDraft):
    """Record the logits of each answer."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.shared = []

    def answers(self, call):
        answer = next(super().answers(call))
        if call.branching is not None and answer.draft_logits is not None:
            self.shared.append(answer.draft_logits)
        yield answer


@pytest.mark.parametrize("ahead_fates", [("in time",), ("in time", "late"), ("late",)])
def test_unread_logits_are_released_by_a_later_draft_call(ahead_fates):
    request = request_of(end_ids=(), max_tokens=100, **BY_PROBABILITIES)
    statistics, draft = AheadPlanner(SHARED), Answered(ENDLESS, agrees=5)
    read = []
    for _ in range(2):
        target = Target(ENDLESS, ())
        decoding = decoding_of(request, SHARED, ahead_planner=statistics)
        play(decoding, target, draft, ahead_fates)
        read += [call.draft.logits for call in target.calls if call.draft.drafted_ahead]
    back = [call.unread_logits for call in draft.calls if call.unread_logits is not None]
    back += statistics.unread_logits  # the next draft call would return these
    assert all(call.wants_logits for call in draft.calls)
    assert {*map(id, read), *map(id, back)} == set(map(id, draft.shared))
    assert len(read) + len(back) == len(draft.shared)
    assert back or ahead_fates == ("late",)
    assert len(statistics.unread_logits) <= 2


@pytest.mark.parametrize("logits", ["handle", None])
def test_logits_that_arrive_too_late_are_returned(logits):
    request, planner = request_of(**BY_PROBABILITIES), AheadPlanner(SHARED)
    ahead, sequence = make_draft_ahead(request, SHARED, planner), Sequence(request)
    call = EngineCall("draft", sequence.context, 0, seed=0)
    engines = Ports(Target(ENDLESS))
    assert ahead.start(sequence, Draft(ids(1, 2)), ahead.plan(4), call, room=100, engines=engines)
    ahead.give_up()
    assert not planner.unread_logits
    engines.ahead.set_result(EngineResult(ids(), draft_logits=logits))
    assert list(planner.unread_logits) == ([logits] if logits else [])


@pytest.mark.parametrize(("width", "most"), [(8, 2**20), (128_256, 65), (2**21, 4)])
def test_branches_are_limited_by_the_size_of_their_logits(width, most):
    wide = with_engines(SHARED, draft={"vocab_size": width})
    ahead = make_draft_ahead(request_of(**BY_PROBABILITIES), wide, AheadPlanner(wide))
    assert ahead._max_tokens == min(most, 2**25 // (4 * width))
