"""Who drafts, what, and who is told to have earned it."""

from dataclasses import replace

from scripted import SETTINGS, Draft, Health, Language, Target, decoding_of, expected, ids, play

from bls.request import Request

ENDLESS = Language(end_every=10**9)


class Repeats(Language):
    """0, 1, ... 4, 0, 1, ...: a text that lookup knows after one turn."""

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


def test_lookup_without_a_match_drafts_nothing_and_asks_less_and_less_often():
    class Counts(Language):
        def next(self, context, banned=()):
            return len(context)

    target = Target(Counts())
    play(decoding_of(request_of("prompt_lookup", prompt_ids=ids(0))), target)
    assert all(len(call.draft) == 0 for call in target.calls)
    assert [call.max_new_tokens for call in target.calls] == [1, 2, 3, 4, 5, 6, 7, 8, 4]


def test_lookup_drafts_end_with_an_end_of_sequence():
    request = request_of("prompt_lookup", prompt_ids=ids(1, 2, 7, 3, 4, 1, 2), end_ids=(7,))
    target = Target(ENDLESS)
    play(decoding_of(request), target)
    assert target.calls[0].draft.tokens.tolist() == [7]


def test_hybrid_copies_where_it_can_and_asks_the_model_where_it_cannot():
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


def test_hybrid_goes_on_copying_while_the_model_rests():
    draft, health = Draft(Repeats(), (None,)), Health(patience=1)
    decoding = decoding_of(request_of("hybrid"), health=health)
    play(decoding, Target(Repeats()), draft)
    assert decoding.sequence.output.tolist() == expected(decoding.request, Repeats())[0]
    assert len(draft.calls) == decoding.statistics.num_drafter_failures == 1
    assert decoding.statistics.by_drafter.keys() == {"prompt_lookup"}


def test_hybrid_keeps_each_drafters_own_length():
    target, draft = Target(Repeats()), Draft(Repeats())
    play(decoding_of(request_of("hybrid", prompt_lookup_num_tokens=7)), target, draft)
    lengths = {"draft_model": 3, "prompt_lookup": 7}
    assert all(len(c.draft) <= lengths.get(c.draft.drafter, 0) for c in target.calls)
    assert {c.draft.drafter for c in target.calls if len(c.draft)} == set(lengths)


def test_copied_drafts_carry_no_logits_where_the_models_do():
    target, draft = Target(Repeats()), Draft(Repeats())
    play(decoding_of(request_of("hybrid", use_draft_logits=True)), target, draft)
    copied = [call for call in target.calls if call.draft.drafter == "prompt_lookup"]
    assert copied
    assert all(call.draft.logits is None for call in copied)
    assert all(call.wants_logits for call in draft.calls)


def test_an_engine_that_drafts_by_itself_gets_one_call():
    target = Target(ENDLESS)
    play(decoding_of(request_of("engine", max_tokens=300)), target)
    assert [call.max_new_tokens for call in target.calls] == [300]


def test_what_such_an_engine_says_of_its_drafts_is_counted_under_engine():
    class Speculates(Target):
        def answers(self, call):
            answer = next(super().answers(call))
            yield answer._replace(num_draft_tokens=40, num_accepted_tokens=20)

    decoding = decoding_of(request_of("engine", max_tokens=30))
    play(decoding, Speculates(ENDLESS))
    assert decoding.statistics.num_rounds == 10
    assert decoding.statistics.by_drafter["engine"].draft_acceptance_rate == 0.5


def test_a_draft_without_the_logits_that_were_asked_for_is_a_failure_that_names_them():
    health = Health(patience=1)
    request = request_of("draft_model", use_draft_logits=True)
    decoding = decoding_of(request, health=health)

    class Forgets(Draft):
        def answers(self, call):
            yield next(super().answers(call))._replace(logits=None)

    play(decoding, Target(ENDLESS), Forgets(ENDLESS))
    assert decoding.statistics.num_drafter_failures == 1
    assert decoding.sequence.output.tolist() == expected(request, ENDLESS)[0]
