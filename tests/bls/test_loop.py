"""With scripted engines, the output equals the target's and the statistics add up."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scale import first_of
from scripted import (
    END,
    ENDLESS,
    SETTINGS,
    VOCAB,
    Draft,
    Health,
    Language,
    Reports,
    Says,
    Target,
    decoding_of,
    expected,
    ids,
    play,
    request_of,
    text_of,
    with_engines,
)
from strategies import languages, requests_of

from tandem.bls.errors import EngineCallError
from tandem.bls.ports import EngineResult, join_details
from tandem.bls.request import Sampling
from tandem.contract.entry import KINDS

requests = requests_of(
    request_of,
    drafters=["draft_model", "prompt_lookup", "hybrid", "none"],
    max_min_tokens=12,
)
verified = st.sampled_from([10**9, 0, 1, 3])
scripts = st.lists(st.sampled_from([True, True, False, None]), min_size=1, max_size=9).map(tuple)


lookups = st.builds(
    replace,
    st.just(SETTINGS),
    hybrid_min_ngram_size=st.integers(1, 4),
)


@pytest.mark.parametrize("examples", first_of(200, 1_500))
def test_drafts_never_change_the_output(examples):
    trouble = st.tuples(st.integers(1, 3), verified)
    given_all = given(requests, languages, scripts, lookups, trouble)
    settings(max_examples=examples)(given_all(output_is_the_targets_own))()


def output_is_the_targets_own(request, language, script, settings_, trouble):
    patience, verified = trouble
    decoding = decoding_of(request, settings_, Health(patience))
    target = Target(language, request.end_ids, verified)
    chunks = play(decoding, target, Draft(language, script))

    tokens, text, reason = expected(request, language)
    assert decoding.sequence.output.tolist() == tokens
    assert np.concatenate([chunk.tokens for chunk in chunks]).tolist() == tokens
    assert "".join(chunk.text for chunk in chunks) == text
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == reason

    figures = decoding.statistics
    assert (figures.stop_string is None) == (text == text_of(tokens))
    assert figures.num_accepted_draft_tokens <= figures.num_draft_tokens
    assert sum(figures.acceptance_histogram) == figures.num_spec_steps
    accepted = sum(n * count for n, count in enumerate(figures.acceptance_histogram))
    assert accepted == figures.num_accepted_draft_tokens
    earned = figures.by_drafter.values()
    assert sum(e.num_spec_steps for e in earned) == figures.num_spec_steps
    assert sum(e.num_draft_tokens for e in earned) == figures.num_draft_tokens
    assert sum(e.num_accepted_draft_tokens for e in earned) == accepted
    assert figures.num_rounds + accepted >= len(tokens)
    assert verified < 10**9 or figures.num_unverified_draft_tokens == 0


def details_of(chunks):
    """Return the rounds and the kinds of all tokens."""
    details = join_details([chunk.details for chunk in chunks])
    return details.rounds.tolist(), [KINDS[kind] for kind in details.kinds]


@given(requests, languages, scripts)
def test_each_token_reports_its_round_and_kind(request, language, script):
    decoding = decoding_of(replace(request, return_text_lengths=True))
    chunks = play(decoding, Target(language, request.end_ids), Draft(language, script))
    tokens, *_ = expected(request, language)
    rounds, kinds = details_of(chunks)
    lengths = join_details([chunk.details for chunk in chunks]).text_lengths
    assert len(rounds) == len(kinds) == len(lengths) == len(tokens)
    assert lengths.tolist() == [len(text_of([token])) for token in tokens]
    assert sorted(set(rounds)) == list(range(1, len(set(rounds)) + 1))
    assert rounds == sorted(rounds)
    figures = decoding.statistics
    assert kinds.count("accepted") <= figures.num_accepted_draft_tokens
    for number in set(rounds):
        round_details = [kind for at, kind in zip(rounds, kinds, strict=True) if at == number]
        assert set(round_details[:-1]) <= {"accepted"}
        assert "plain" not in round_details or round_details == ["plain"]


def test_token_kinds_are_accepted_correction_bonus_and_plain():
    language = Language(end_every=10**9)
    request = request_of(max_tokens=9)
    chunks = play(decoding_of(request), Target(language), Draft(language, (True,) * 4 + (False,)))
    assert details_of(chunks) == (
        [1, 1, 1, 1, 1, 2, 3, 3, 3],
        ["accepted"] * 4 + ["bonus", "correction"] + ["accepted"] * 2 + ["bonus"],
    )
    plain = play(decoding_of(request_of(max_tokens=3, drafter="none")), Target(language))
    assert details_of(plain) == ([1, 2, 3], ["plain"] * 3)


def test_a_correction_reports_the_draft_token_that_it_replaces():
    language = Language(end_every=10**9)
    script = Draft(language, (True, False))  # a wrong token is the right one plus 1
    chunks = play(decoding_of(request_of(max_tokens=9)), Target(language), script)
    details = join_details([chunk.details for chunk in chunks])
    tokens = np.concatenate([chunk.tokens for chunk in chunks])
    corrections = details.kinds == KINDS.index("correction")
    assert corrections.any()
    expected_ids = np.where(corrections, (tokens + 1) % (VOCAB - 2), -1)
    assert details.rejected_ids.tolist() == expected_ids.tolist()


@given(requests.filter(lambda request: request.stop_strings == ()), languages)
def test_a_round_emits_accepted_tokens_plus_one(request, language):
    request = replace(request, end_ids=())
    decoding = decoding_of(request)
    play(decoding, Target(language, ()), Draft(language, (True, True, False)))
    figures = decoding.statistics
    assert figures.num_rounds + figures.num_accepted_draft_tokens == request.max_tokens


def test_drafts_never_exceed_the_tokens_left():
    language = Language(end_every=10**9)
    target, draft = Target(language), Draft(language)
    play(decoding_of(request_of(max_tokens=7)), target, draft)
    assert [call.max_new_tokens for call in draft.calls] == [4, 1]
    assert [(len(call.draft), call.max_new_tokens) for call in target.calls] == [(4, 5), (1, 2)]


@pytest.mark.parametrize("drafter", ["none", "engine"])
@pytest.mark.parametrize("end", [END, 6])
def test_a_call_without_drafts_ends_at_any_end_of_sequence(drafter, end):
    answered = []

    class Notes(Target):
        def answers(self, call):
            for answer in super().answers(call):
                answered.append(answer.tokens.tolist())
                yield answer

    target = Notes(Says(end))
    decoding = decoding_of(request_of(drafter=drafter, max_tokens=300))
    play(decoding, target)
    kept = [] if end == END else [end]  # the engine omits the end id and returns a stop id
    assert answered == [[*decoding.sequence.output, *kept]]
    assert [(call.end_id, call.stop_ids) for call in target.calls] == [(END, (6,))]
    assert decoding.finish_reason == "stop"
    assert decoding.statistics.num_rounds == decoding.sequence.num_output_tokens == 7


def test_calls_that_ban_end_ids_have_no_stop_ids():
    language = Language(end_every=2)
    target, draft = Target(language), Draft(language)
    play(decoding_of(request_of(min_tokens=6, max_tokens=30)), target, draft)
    for call in target.calls + draft.calls:
        assert not (call.ban_end_ids and call.stop_ids)


def test_only_calls_without_drafts_have_stop_ids():
    target = Target(ENDLESS)
    play(decoding_of(request_of(max_tokens=6)), target, Draft(ENDLESS))
    assert {(len(call.draft) > 0, call.stop_ids) for call in target.calls} == {
        (True, ()),
        (False, (6,)),
    }


def test_draft_calls_stop_at_any_end_of_sequence():
    target, draft = Target(Says(6, at=5)), Draft(Says(6, at=5))
    play(decoding_of(request_of()), target, draft)
    assert draft.calls[0].stop_ids == (END, 6)
    assert draft.calls[0].end_id is None
    assert [call.draft.tokens.tolist() for call in target.calls] == [[4, 5, 6]]


def test_draft_calls_with_logits_have_no_stop_ids():
    draft = Draft(ENDLESS)
    request = request_of(sampling=Sampling(top_k=0), use_draft_logits=True)
    play(decoding_of(request), Target(ENDLESS), draft)
    assert {call.stop_ids for call in draft.calls} == {()}


@pytest.mark.parametrize("drafted", [(1, END, 3, 4), (1, 6, END, 4), (1, END, 6, 4)])
def test_a_draft_is_cut_after_the_first_end_of_sequence(drafted):
    language = Language(end_every=10**9)
    target = Target(language)
    draft = Reports(Draft(language), tokens=ids(*drafted))
    play(decoding_of(request_of()), target, draft)
    assert target.calls[0].draft.tokens.tolist() == list(drafted[:2])


def test_min_tokens_bans_end_ids_and_limits_the_draft():
    language = Language(end_every=2)
    target, draft = Target(language), Draft(language)
    decoding = decoding_of(request_of(min_tokens=3, max_tokens=30))
    play(decoding, target, draft)
    first = target.calls[0]
    assert (len(first.draft), first.ban_end_ids) == (2, True)
    assert decoding.sequence.num_output_tokens >= 3


def test_without_a_drafter_stream_chunks_take_equal_time():
    class Takes(Target):
        now = 0.0

        def answers(self, call):
            answer = next(super().answers(call))
            self.now += 0.02 * len(answer.tokens)
            yield answer

    target = Takes(ENDLESS)
    request = request_of(drafter="none", max_tokens=20, stream=True)
    play(decoding_of(request, clock=lambda: target.now), target)
    assert [call.max_new_tokens for call in target.calls] == [1, 2, 4, 5, 5, 3]


def test_a_failed_draft_never_fails_the_request():
    language = Language(end_every=10**9)
    target, draft = Target(language), Draft(language, (None,))
    request = request_of(max_tokens=200)
    health = Health(patience=1)
    decoding = decoding_of(request, health=health)

    class Recovers(Target):
        def answers(self, call):
            if len(self.calls) == 3:
                draft.script, health.failures = (True,), 0
            return super().answers(call)

    chunks = play(decoding, Recovers(language), draft)
    assert np.concatenate([c.tokens for c in chunks]).tolist() == expected(request, language)[0]
    assert decoding.statistics.num_drafter_failures == 1
    assert decoding.statistics.num_accepted_draft_tokens > 50
    assert target.calls == []


def test_a_failed_target_call_fails_the_request():
    class Fails(Target):
        def answers(self, call):
            raise EngineCallError("target", "out of memory")

    with pytest.raises(EngineCallError, match="model 'target' failed: out of memory"):
        play(decoding_of(request_of()), Fails(Language()), Draft(Language()))


@pytest.mark.parametrize("count", [0, 6])
def test_a_verification_that_returns_too_few_or_too_many_tokens_is_an_error(count):
    target = Reports(Target(Language()), tokens=ids(*[0] * count))
    line = f"after 4 draft tokens it must return between 1 and 5 tokens; got {count}"
    with pytest.raises(EngineCallError, match=line):
        play(decoding_of(request_of()), target, Draft(Language()))


def test_draft_calls_respect_the_max_seq_len_of_the_draft_engine():
    language = Language(end_every=10**9)
    settings_ = with_engines(SETTINGS, draft={"max_seq_len": 10})
    target, draft = Target(language), Draft(language)
    decoding = decoding_of(request_of(max_tokens=30), settings_)
    play(decoding, target, draft)
    assert [len(call.context) + call.max_new_tokens for call in draft.calls] == [7, 10]
    assert decoding.sequence.output.tolist() == expected(decoding.request, language)[0]


@pytest.mark.parametrize("keyed", [True, False])
def test_only_keyed_engines_get_the_same_seed_in_every_round(keyed):
    language = Language(end_every=10**9)
    target, draft = Target(language), Draft(language)
    noise = {"keyed_randomness": keyed}
    settings_ = with_engines(SETTINGS, target=noise, draft=noise)
    request = request_of(sampling=Sampling(top_k=0, seed=9), max_tokens=25)
    play(decoding_of(request, settings_), target, draft)
    seeds = [call.seed for call in target.calls] + [call.seed for call in draft.calls]
    assert set(seeds) == {9} if keyed else len(set(seeds)) == len(seeds)


def test_in_logits_mode_draft_and_target_use_different_seeds():
    language = Language(end_every=10**9)
    target, draft = Target(language), Draft(language)
    request = request_of(sampling=Sampling(top_k=0, seed=9), use_draft_logits=True)
    play(decoding_of(request), target, draft)
    assert {call.seed for call in target.calls}.isdisjoint(call.seed for call in draft.calls)
    assert all(call.wants_logits for call in draft.calls)


def test_a_stream_withholds_the_start_of_a_stop_string():
    class Recites(Language):
        def next(self, context, banned=()):
            return [0, 1, 2, 4, 0, 3][len(context) - 3]

    decoding = decoding_of(request_of(max_tokens=6, stop_strings=(" aba",), stream=True))
    chunks = play(decoding, Target(Recites()), Draft(Recites(), (False,)))
    assert text_of([0, 1, 2, 4, 0, 3]) == "abab aba"
    assert "".join(chunk.text for chunk in chunks) == "abab"
    assert chunks[-1].finish_reason == "stop"
    assert decoding.statistics.stop_string == " aba"


def test_with_a_threshold_a_redrawn_draft_token_counts_as_verified():
    class DrawsAgain(Target):
        def answers(self, call):
            yield EngineResult(call.draft.tokens[:1] if len(call.draft) else ids(1))

    request = request_of(
        sampling=Sampling(top_k=0), use_draft_logits=True, draft_acceptance_threshold=0.9
    )
    decoding = decoding_of(request)
    play(decoding, DrawsAgain(ENDLESS), Draft(ENDLESS))
    assert decoding.statistics.num_unverified_draft_tokens == 0
