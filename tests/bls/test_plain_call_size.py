"""Without drafts, the size of plain calls limits how long a client waits for the next tokens."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import (
    ENDLESS,
    SETTINGS,
    Draft,
    Health,
    Target,
    decoded,
    decoding_of,
    expected,
    ids,
    play,
    request_of,
    with_engines,
)
from strategies import languages, requests_of

from tandem.bls.costs import FEW_TOKENS, MAX_PLAIN_TOKENS, UNBOUNDED, PlainCallSize
from tandem.bls.draft_length import DraftPlanner
from tandem.bls.drafters.drafter import DrafterContext
from tandem.bls.loop import Decoding
from tandem.bls.request import Request, Sampling
from tandem.bls.settings import AUTO


def size_of(**given):
    return PlainCallSize(**{"steady": True, **given})


def sizes_of(size, seconds_per_token, count=8):
    sizes = []
    for _ in range(count):
        sizes.append(size.tokens)
        size.adapt(size.tokens, seconds_per_token * size.tokens)
    return sizes


@pytest.mark.parametrize(
    ("seconds_per_token", "sizes"),
    [
        (0.006, [1, 2, 4, 8, 16, 16, 16, 16]),
        (0.020, [1, 2, 4, 5, 5, 5, 5, 5]),
        (0.050, [1, 2, 4, 4, 4, 4, 4, 4]),
        (0.200, [1, 2, 2, 2, 2, 2, 2, 2]),
        (2.000, [1] * 8),
        (0.0, [1, 2, 4, 8, 16, 32, 32, 32]),
        (0.0001, [1, 2, 4, 8, 16, 32, 32, 32]),
    ],
)
def test_calls_of_a_stream_take_a_tenth_of_a_second_or_longer_if_tokens_are_slow(
    seconds_per_token, sizes
):
    assert sizes_of(size_of(), seconds_per_token) == sizes


def test_calls_shrink_when_the_target_slows_down():
    size = size_of()
    sizes_of(size, 0.001)
    size.adapt(size.tokens, 0.4 * size.tokens)
    assert size.tokens == 1


def test_an_empty_call_does_not_change_the_size():
    size = size_of()
    size.adapt(1, 0.01)
    size.adapt(0, 5.0)
    assert size.tokens == 2


def test_calls_are_large_if_the_answer_is_not_streamed():
    assert sizes_of(size_of(steady=False), 1.0) == [MAX_PLAIN_TOKENS] * 8
    assert sizes_of(size_of(steady=False, in_engine=True), 1.0) == [UNBOUNDED] * 8


def test_a_self_drafting_engine_streams_in_small_calls():
    assert size_of(in_engine=True).tokens == 1


class SlowTarget(Target):
    """A target whose calls take time, and which records its calls without drafts."""

    def __init__(self):
        super().__init__(ENDLESS)
        self.now, self.plain = 0.0, []

    def answers(self, call):
        [answer] = super().answers(call)
        steps = 1 + 0.3 * len(call.draft) if len(call.draft) else call.max_new_tokens
        seconds = 0.030 * steps
        self.now += seconds
        if not len(call.draft):
            self.plain.append((call.max_new_tokens, seconds))
        yield answer._replace(seconds=seconds, engine_seconds=seconds)


class SlowDraft(Draft):
    """A draft engine that is as slow as the target and mostly wrong."""

    def answers(self, call):
        [answer] = super().answers(call)
        seconds = 0.030 * len(answer.tokens)
        self.target.now += seconds
        yield answer._replace(seconds=seconds, engine_seconds=seconds)


def play_auto(*, stream):
    """Decode 600 tokens; return the calls without drafts and the number of drafts."""
    target, draft = SlowTarget(), SlowDraft(ENDLESS, (True, False, False))
    draft.target = target
    settings = with_engines(SETTINGS, target={"max_seq_len": 10**6}, draft={"max_seq_len": 10**6})
    request = Request(
        prompt_ids=ids(1),
        max_tokens=600,
        drafter="draft_model",
        draft_len=AUTO,
        max_draft_len=16,
        stream=stream,
    )
    planner = DraftPlanner(16, clock=lambda: target.now, stops_when_unsure=False)
    context = DrafterContext(settings, Health(), planner)
    play(Decoding(request, context, clock=lambda: target.now), target, draft)
    return target.plain, len(draft.calls)


@pytest.mark.parametrize("drafter", ["draft_model", "none"])
def test_a_drafter_learns_how_long_each_round_takes(drafter):
    target, draft, learned = SlowTarget(), SlowDraft(ENDLESS, (True, False)), []
    draft.target = target
    request = Request(prompt_ids=ids(1), max_tokens=100, drafter=drafter, draft_len=4)
    planner = DraftPlanner(16, clock=lambda: target.now, stops_when_unsure=False)
    context = DrafterContext(SETTINGS, Health(), planner)
    decoding = Decoding(request, context, clock=lambda: target.now)
    own = decoding._drafter
    own.verified = own.observe_plain_call = lambda *outcome: learned.append(outcome[-1])
    play(decoding, target, draft)
    assert len(learned) > 2
    assert sum(learned) == pytest.approx(target.now)


def test_streams_keep_their_pace_while_drafts_are_paused():
    plain, _ = play_auto(stream=True)
    assert sum(tokens for tokens, _ in plain) > 400  # drafts are paused most of the time
    assert max(seconds for _, seconds in plain) < 0.15


def test_streaming_does_not_cause_extra_drafts_while_drafting_is_paused():
    (_, streamed), (plain, whole) = (play_auto(stream=stream) for stream in (True, False))
    assert streamed < 40  # of more than 400 rounds
    assert streamed <= whole + 8
    assert max(tokens for tokens, _ in plain) == MAX_PLAIN_TOKENS


def test_seeded_streams_of_an_unkeyed_engine_use_a_fixed_size():
    settings = with_engines(SETTINGS, target={"keyed_randomness": False})
    request = Request(
        prompt_ids=ids(1),
        max_tokens=20,
        sampling=Sampling(top_k=0, seed=3),
        seeded=True,
        stream=True,
    )
    target = SlowTarget()
    play(decoding_of(request, settings), target)
    assert [tokens for tokens, _ in target.plain] == [FEW_TOKENS] * 5


class DecodesAhead(Target):
    """A target that has always decoded all the tokens that it may decode ahead, up to 5.

    asked: its calls.
    """

    def __init__(self, *given):
        super().__init__(*given)
        self.asked = []

    def answers(self, call):
        self.asked.append(call)
        more = min(call.decode_ahead, 5)
        return super().answers(call._replace(max_new_tokens=call.max_new_tokens + more))


def settings_ahead(**changes):
    return with_engines(SETTINGS, target={"decodes_ahead": True, **changes})


@given(
    requests_of(request_of, drafters=["none", "prompt_lookup", "hybrid"], max_min_tokens=12),
    languages,
    st.booleans(),
    st.integers(1, 3),
)
def test_decoding_ahead_does_not_change_the_output(request, language, stream, load):
    request = replace(request, stream=stream)
    target = DecodesAhead(language, request.end_ids)
    decoding = decoding_of(request, settings_ahead(), load=load)
    chunks = play(decoding, target, Draft(language))
    tokens, text, reason = expected(request, language)
    assert decoding.sequence.output.tolist() == tokens
    assert "".join(chunk.text for chunk in chunks) == text
    assert chunks[-1].finish_reason == reason
    for call in target.asked:
        decoded = len(call.context) - len(request.prompt_ids)
        assert decoded + call.max_new_tokens + call.decode_ahead <= request.max_tokens


@pytest.mark.parametrize(
    ("changes", "capabilities", "ahead"),
    [
        ({"stream": True}, {}, True),
        ({"stop_strings": ("xyz",)}, {}, True),
        ({"stream": True, "drafter": "engine"}, {"drafts_itself": True}, True),
        ({}, {}, False),  # one call has as many tokens as possible anyway
        ({"stream": True, "drafter": "prompt_lookup"}, {}, False),
        ({"stream": True}, {"decodes_ahead": False}, False),
        ({"stream": True, "sampling": Sampling(top_k=0, seed=3), "seeded": True}, {}, True),
        (
            {"stream": True, "sampling": Sampling(top_k=0, seed=3), "seeded": True},
            {"keyed_randomness": False},
            False,
        ),
    ],
)
def test_the_target_decodes_ahead_only_what_the_answer_can_use(changes, capabilities, ahead):
    request = request_of(drafter="none", max_tokens=40)
    request = replace(request, **changes)
    target = DecodesAhead(ENDLESS)
    play(decoding_of(request, settings_ahead(**capabilities)), target, Draft(ENDLESS))
    left = [
        request.max_tokens + len(request.prompt_ids) - len(call.context) - call.max_new_tokens
        for call in target.asked
    ]
    assert [call.decode_ahead for call in target.asked] == [ahead * tokens for tokens in left]


@pytest.mark.parametrize("drafter", ["prompt_lookup", "draft_model", "hybrid"])
def test_with_drafts_the_target_decodes_ahead_only_if_other_sequences_need_its_steps(drafter):
    """A draft discards what the target has decoded ahead, and waits for the running step."""
    request = request_of(drafter=drafter, draft_len=AUTO, max_tokens=40)
    ahead = []
    for load in (1, 2):
        target = DecodesAhead(ENDLESS)
        decoding = decoding_of(replace(request, stream=True), settings_ahead(), load=load)
        play(decoding, target, Draft(ENDLESS, (False,)))
        assert not any(call.decode_ahead for call in target.asked if call.draft)
        ahead.append([call.decode_ahead > 0 for call in target.asked[:-1] if not call.draft])
    assert not any(ahead[0])
    assert ahead[1]
    assert all(ahead[1])


def test_the_time_in_which_the_target_decodes_ahead_counts_once():
    class Busy(DecodesAhead):
        """Needs 20 ms per token, also while the loop is busy with the last tokens."""

        now = answered = 0.0

        def answers(self, call):
            [answer] = super().answers(call)
            self.answered += 0.02 * len(answer.tokens)
            self.now = self.answered = max(self.now, self.answered)
            yield answer

        def decode(self, *given, **options):
            self.now += 0.05
            return decoded(*given, **options)

    target, learned = Busy(ENDLESS), []
    request = replace(request_of(drafter="none", max_tokens=100), stream=True)
    decoding = decoding_of(request, settings_ahead(), clock=lambda: target.now)
    decoding._drafter.observe_plain_call = lambda _, seconds: learned.append(seconds)
    play(decoding, target, decode=target.decode)
    assert len(learned) > 5
    assert sum(learned) == pytest.approx(target.answered)


def test_the_target_does_not_decode_ahead_while_end_ids_are_banned():
    request = replace(request_of(drafter="none", max_tokens=40), stream=True, min_tokens=9)
    target = DecodesAhead(ENDLESS)
    play(decoding_of(request, settings_ahead()), target)
    assert all(bool(call.decode_ahead) != call.ban_end_ids for call in target.asked[:-1])
    assert {call.ban_end_ids for call in target.asked} == {True, False}
