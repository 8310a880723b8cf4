"""Prompt lookup copies from a pool of earlier answers and never changes the output."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import (
    ENDLESS,
    SETTINGS,
    Draft,
    Language,
    Ports,
    Says,
    Target,
    decoding_of,
    expected,
    ids,
    play,
    with_engines,
)
from strategies import languages

from tandem.bls.drafters.prompt_lookup import PromptLookup
from tandem.bls.drafters.prompt_lookup import make as make_prompt_lookup
from tandem.bls.drafters.registry import DRAFTERS, DrafterKind
from tandem.bls.errors import EngineCallError, Interrupted
from tandem.bls.request import GREEDY, Request, Sampling
from tandem.bls.sequence import Sequence
from tandem.lookup.pools import LookupPools


class Counts(Language):
    """Emit each token only once, so prompt lookup finds no match."""

    def next(self, context, banned=()):
        return int(context[-1]) + 1


@pytest.fixture
def pools():
    return LookupPools(10_000)


def request_of(pool="ours", **changes):
    plain = Request(
        prompt_ids=ids(100),
        max_tokens=40,
        drafter="prompt_lookup",
        draft_len=3,
        prompt_lookup_num_tokens=4,
        max_matching_ngram_size=2,
        lookup_pool=pool,
    )
    return replace(plain, **changes)


def played(request, pools, language=None, *, settings=SETTINGS, target=None, draft=None):
    """Decode a request; return the decoding and the target's calls."""
    target = target or Target(language or Counts())
    decoding = decoding_of(request, settings, pools=pools)
    play(decoding, target, draft)
    return decoding, target.calls


@pytest.mark.parametrize("other", ["theirs", "", None])
def test_a_request_copies_nothing_from_other_pools(pools, other):
    played(request_of(), pools)
    decoding, _ = played(request_of(other), pools)
    assert decoding.statistics.num_draft_tokens == 0


def test_answers_without_a_pool_are_not_stored(pools):
    played(request_of(None), pools)
    assert pools.num_tokens == 0


def test_answers_join_a_pool_but_prompts_do_not(pools):
    played(request_of(prompt_ids=ids(1, 2, 3, 4, 5, 100)), pools)
    assert pools.lookup("ours", [1, 2, 3], 4) is None
    assert pools.lookup("ours", [4, 5, 100], 4) is None
    assert pools.lookup("ours", [101, 102, 103], 2) == ([104, 105], 3)


def test_an_answer_joins_its_pool_up_to_its_end_of_sequence(pools):
    says = Says(at=12)
    decoding, _ = played(request_of(prompt_ids=ids(1, 2, 3), end_ids=(7,)), pools, says)
    output = decoding.sequence.output.tolist()
    assert pools.lookup("ours", output[:4], 99).tokens == output[4:]
    assert decoding.finish_reason == "stop"


def test_an_answer_joins_its_pool_before_the_last_chunk_is_sent(pools):
    ports, heard = Ports(Target(Counts())), []
    ports.send = lambda chunk: heard.append((chunk.finish_reason, pools.num_tokens))
    decoding_of(request_of(stream=True), pools=pools).run(ports)
    assert len(heard) > 5
    assert [reason for reason, held in heard if held] == ["length"]


def test_a_cancelled_answer_does_not_join_its_pool(pools):
    def send(_):
        if len(heard) == 5:
            raise Interrupted
        heard.append(1)

    ports, heard = Ports(Target(Counts())), []
    ports.send = send
    with pytest.raises(Interrupted):
        decoding_of(request_of(stream=True), pools=pools).run(ports)
    assert pools.num_tokens == 0


def test_a_failed_answer_does_not_join_its_pool(pools):
    class Fails(Target):
        def answers(self, call):
            if len(call.context) > 20:
                raise EngineCallError("target", "scripted failure")
            return super().answers(call)

    with pytest.raises(EngineCallError):
        played(request_of(), pools, target=Fails(Counts()))
    assert pools.num_tokens == 0


def found(request, pools, settings=SETTINGS, limit=4):
    return PromptLookup(request, settings, pools).propose(Sequence(request), limit, None)


@pytest.mark.parametrize("ngram", [1, 2, 3, 8])
def test_the_longest_match_wins_and_the_requests_own_context_wins_ties(pools, ngram):
    """A match may extend to tokens before the n-gram."""
    pools.add("ours", [1, 2, 3, 4, 50, 51, 52, 53, 54])
    own = [9, 2, 3, 4, 60, 61, 62, 63]
    for tail, source, tokens, size in (
        ([2, 3, 4], "prompt_lookup", [60, 61, 62, 63], 3),
        ([1, 2, 3, 4], "lookup_pool", [50, 51, 52, 53], 4),
        ([9, 2, 3, 4], "prompt_lookup", [60, 61, 62, 63], 4),
    ):
        prompt = ids(*own, *tail)
        draft = found(request_of(prompt_ids=prompt, max_matching_ngram_size=ngram), pools)
        assert (draft.drafter, draft.tokens.tolist()) == (source, tokens)
        assert draft.num_matching == size


def test_copies_have_at_most_prompt_lookup_num_tokens(pools):
    pools.add("ours", range(20))
    for num_tokens, limit, length in ((4, 9, 4), (9, 3, 3), (9, 9, 9)):
        request = request_of(prompt_ids=ids(0, 1, 2), prompt_lookup_num_tokens=num_tokens)
        assert found(request, pools, limit=limit).tokens.tolist() == [*range(3, 3 + length)]


def test_copies_from_a_pool_end_at_an_end_of_sequence(pools):
    pools.add("ours", [1, 2, 3, 4, 7, 5, 6])
    draft = found(request_of(prompt_ids=ids(1, 2, 3), end_ids=(7,)), pools)
    assert draft.tokens.tolist() == [4, 7]


@pytest.mark.parametrize(
    ("sampling", "changes", "keyed", "copies"),
    [
        (GREEDY, {}, True, True),
        (GREEDY, {"seeded": True}, False, True),  # greedy decoding ignores the seed
        (Sampling(top_k=0), {"seeded": True}, True, True),
        (Sampling(top_k=0), {"seeded": True, "use_draft_logits": True}, True, False),
        (Sampling(top_k=0), {"seeded": False, "use_draft_logits": True}, True, True),
        (Sampling(top_k=0), {"seeded": True}, False, False),
        (GREEDY, {"draft_acceptance_threshold": 0.5, "use_draft_logits": True}, True, False),
    ],
)
def test_pools_are_not_used_if_drafts_would_change_the_output(
    pools, sampling, changes, keyed, copies
):
    pools.add("ours", [1, 2, 3, 4])
    settings = with_engines(SETTINGS, target={"keyed_randomness": keyed})
    request = request_of(prompt_ids=ids(1, 2, 3), drafter="hybrid", sampling=sampling, **changes)
    assert bool(len(found(request, pools, settings))) == copies


def test_a_custom_drafter_can_build_on_prompt_lookup(pools, monkeypatch):
    kind = DrafterKind(name="own", description="x", module=make_prompt_lookup.__module__)
    monkeypatch.setitem(DRAFTERS, "own", kind)
    settings = with_engines(SETTINGS, target={"vocab_size": 200})
    for _ in range(2):
        decoding, _ = played(request_of(drafter="own"), pools, settings=settings)
    assert decoding.statistics.by_drafter.keys() == {"lookup_pool"}


@settings(max_examples=25)
@given(
    languages,
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=2, max_size=6),
    st.sampled_from(["prompt_lookup", "hybrid"]),
    st.integers(1, 4),
)
def test_a_pool_never_changes_the_output(language, prompts, drafter, ngram):
    pools = LookupPools(200)
    for prompt in [*prompts, *prompts]:
        request = request_of(
            prompt_ids=ids(*prompt),
            drafter=drafter,
            max_matching_ngram_size=ngram,
            end_ids=(7, 6),
        )
        decoding, _ = played(request, pools, language, draft=Draft(ENDLESS))
        tokens, _, reason = expected(request, language)
        assert decoding.sequence.output.tolist() == tokens
        assert decoding.finish_reason == reason
