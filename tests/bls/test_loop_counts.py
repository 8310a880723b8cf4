"""The loop counts rounds, tokens, KV blocks and seconds."""

import pytest
from scripted import (
    END,
    ENDLESS,
    Draft,
    Language,
    Reports,
    Says,
    Target,
    decoding_of,
    ids,
    play,
    request_of,
)

from tandem.bls.ports import EngineResult, KvBlocks


def test_a_call_that_returns_only_the_end_is_not_a_round():
    for end in (END, 6):
        decoding = decoding_of(request_of(drafter="none"))
        play(decoding, Target(Says(end, at=3)))
        assert (decoding.statistics.num_rounds, decoding.finish_reason) == (0, "stop")


def test_the_target_time_of_an_empty_answer_is_counted():
    decoding = decoding_of(request_of(drafter="none"))
    play(decoding, Reports(Target(Says(at=3)), engine_seconds=0.25))
    assert decoding.statistics.target_seconds == 0.25


@pytest.mark.parametrize(("prompt", "recomputed"), [((1, 2, 3), 4), ((1, 2, 3, 4), 8)])
def test_tokens_recomputed_after_an_eviction_are_counted(prompt, recomputed):
    class Evicts(Target):
        def answers(self, call):
            reused = 0 if len(self.calls) == 2 else (len(call.context) - 1) // 4
            for answer in super().answers(call):
                yield answer._replace(kv_blocks=KvBlocks(reused))

    language = Language(end_every=10**9)
    decoding = decoding_of(request_of(prompt_ids=ids(*prompt), max_tokens=25))
    play(decoding, Evicts(language), Draft(language))
    # Round 2 had computed its context of 8 or 9 tokens but the last one, in blocks of 4.
    assert decoding.statistics.num_recomputed_tokens == recomputed


@pytest.mark.parametrize(("reused", "cached"), [((0, 1), 0), ((2, 3), 8), ((3, 3), 9)])
def test_cached_prompt_tokens_are_the_tokens_reused_by_the_first_call(reused, cached):
    class Reuses(Target):
        def answers(self, call):
            blocks = KvBlocks(reused[len(self.calls) > 1])
            for answer in super().answers(call):
                yield answer._replace(kv_blocks=blocks)

    decoding = decoding_of(request_of(prompt_ids=ids(*range(10, 19))))
    assert decoding.statistics.num_cached_prompt_tokens is None
    play(decoding, Reuses(ENDLESS), Draft(ENDLESS))
    assert decoding.statistics.num_rounds > 1
    assert decoding.statistics.num_cached_prompt_tokens == cached
    assert decoding.prompt_kv_blocks == KvBlocks(reused[0])
    assert decoding.kv_blocks == KvBlocks(reused[1])


@pytest.mark.parametrize(("end_at", "accepted"), [(0, 1), (2, 3), (3, 4), (4, 4), (None, 4)])
def test_draft_tokens_after_an_accepted_end_are_not_counted(end_at, accepted):
    class Ends(Target):
        def answers(self, call):
            tokens = [*call.draft.tokens.tolist(), 0]
            if end_at is not None:
                tokens[end_at] = END
            yield EngineResult(ids(*tokens))

    class Zeros(Draft):
        def answers(self, call):
            yield EngineResult(ids(*[0] * call.max_new_tokens))

    decoding = decoding_of(request_of(max_tokens=5))
    chunks = play(decoding, Ends(ENDLESS), Zeros(ENDLESS))
    assert len(chunks) == 1
    assert decoding.statistics.num_accepted_draft_tokens == accepted


def test_engine_seconds_are_summed_per_engine():
    decoding = decoding_of(request_of(max_tokens=10))
    draft = Reports(Draft(ENDLESS), engine_seconds=0.25)
    play(decoding, Reports(Target(ENDLESS), engine_seconds=0.5), draft)
    assert decoding.statistics.num_rounds == 2
    assert decoding.statistics.target_seconds == 1.0
    assert decoding.statistics.draft_seconds == 0.5


def test_rounds_whose_draft_was_looked_up_report_no_draft_call():
    decoding = decoding_of(request_of(drafter="prompt_lookup", prompt_lookup_num_tokens=4))
    play(decoding, Target(Says(at=100)))
    drafted = [round_ for round_ in decoding.statistics.rounds if round_.num_draft_tokens]
    plans = {(each.planned_tokens, each.stop_probability, each.draft_seconds) for each in drafted}
    assert plans == {(0, 0.0, 0.0)}


@pytest.mark.parametrize("end", [END, 6])  # the engine drops one of them and keeps the other
def test_the_end_belongs_to_a_round_of_an_engine_that_drafts_by_itself(end):
    target = Target(Says(end, at=12))  # nine tokens and the end, three of them accepted
    drafts = {"num_draft_tokens": 5, "num_accepted_tokens": 3, "engine_seconds": 0.25}
    decoding = decoding_of(request_of(drafter="engine", max_tokens=300))
    play(decoding, Reports(target, **drafts))
    assert decoding.finish_reason == "stop"
    assert decoding.statistics.num_rounds == 7
    assert decoding.statistics.target_seconds == 0.25


def test_unverified_draft_tokens_are_counted():
    target, draft = Target(Says(at=100), verifies=2), Draft(Says(at=100))
    decoding = decoding_of(request_of(max_tokens=15))
    play(decoding, target, draft)
    # The target verifies 2 of 4 draft tokens. Its own third token equals the third draft token.
    assert [len(call.draft) for call in target.calls] == [4, 4, 4, 4, 2]
    assert decoding.statistics.num_unverified_draft_tokens == 4 * 2
    assert decoding.statistics.num_accepted_draft_tokens == 5 * 2
