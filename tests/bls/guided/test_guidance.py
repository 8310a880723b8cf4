"""For all engine capabilities, a guided answer equals decoding with one masked call per token."""

from dataclasses import replace

import guided
import numpy as np
import pytest
from guided import (
    ENDS,
    MASKS,
    REPAIR,
    UNKEYED,
    WIDE,
    WIDTH,
    Guesser,
    KeyedEngine,
    Rows,
    decoding_of,
    expected,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ids, play, with_engines
from small_guides import allowed, encoded

from tandem.bls.ahead import AheadPlanner, make_draft_ahead
from tandem.bls.errors import EngineCallError, GuideFailed
from tandem.bls.guidance import GRAMMAR, guide_method, join_results, masked_bias
from tandem.bls.lossless import make_lossless
from tandem.bls.ports import EngineResult, TopLogProbs, join_details
from tandem.bls.request import GREEDY, Request, Sampling
from tandem.contract.entry import KINDS
from tandem.contract.guide import Guide
from tandem.guides.errors import GuideError

SCHEMA = """{"type": "object", "properties": {"name": {"type": "string", "maxLength": 6},
 "kind": {"enum": ["fox", "dog", "lazy"]}, "n": {"type": "integer"}},
 "required": ["name", "kind", "n"], "additionalProperties": false}"""
GUIDES = (
    Guide("json_schema", SCHEMA),
    Guide("json_schema", '{"type": "array", "items": {"type": "boolean"}}'),
    Guide("regex", "[ab]{3,9}(fox|dog)?"),
    Guide("choice", '["The quick brown fox", "The lazy dog", "The"]'),
    Guide("lark_grammar", 'start: "fox" (" over" | " jumps")* "."'),
)
FAVOURED = (*ENDS, *encoded("]"), *encoded('"'), *encoded("}"), *encoded("."))

requests = st.builds(
    Request,
    prompt_ids=st.lists(st.integers(3, WIDTH - 1), min_size=1, max_size=9).map(
        lambda tokens: ids(*tokens)
    ),
    max_tokens=st.integers(1, 40),
    min_tokens=st.integers(0, 6),
    end_ids=st.sampled_from([ENDS, ENDS[:1], ()]),
    sampling=st.sampled_from([GREEDY, Sampling(top_k=0, seed=7), Sampling(top_k=4, seed=8)]),
    drafter=st.sampled_from(["none", "draft_model", "prompt_lookup", "hybrid"]),
    draft_len=st.integers(1, 6),
    max_draft_len=st.just(16),
    prompt_lookup_num_tokens=st.integers(1, 6),
    max_matching_ngram_size=st.just(2),
    stream=st.booleans(),
    return_log_probs=st.just(False),
    guide=st.sampled_from(GUIDES),
).map(lambda request: replace(request, min_tokens=min(request.min_tokens, request.max_tokens)))
rows = st.builds(Rows, salt=st.integers(0, 999), favours=st.sampled_from([FAVOURED, ()]))
scripts = st.lists(st.sampled_from([True, True, True, False, None]), min_size=1, max_size=9)
engines = st.sampled_from([MASKS, REPAIR])


@settings(max_examples=75)
@given(requests, rows, scripts.map(tuple), engines)
def test_a_guided_answer_equals_masked_decoding_token_by_token(request, language, script, engine):
    request = make_lossless(request, engine)
    tokens, reason = expected(request, engine, language)
    decoding = decoding_of(request, engine)
    draft = Guesser(tokens, len(request.prompt_ids), script)
    chunks = play(decoding, KeyedEngine(language, request), draft)
    assert decoding.sequence.output.tolist() == tokens
    assert np.concatenate([chunk.tokens for chunk in chunks]).tolist() == tokens
    assert chunks[-1].finish_reason == reason
    details = join_details([chunk.details for chunk in chunks])
    kinds = [KINDS[kind] for kind in details.kinds]
    statistics = decoding.statistics.guide
    assert (
        kinds.count("forced") == statistics.num_forced_tokens or len(tokens) == request.max_tokens
    )
    assert kinds.count("accepted") <= decoding.statistics.num_accepted_draft_tokens


def request_for(guide, **fields):
    return Request(prompt_ids=ids(5), max_tokens=40, end_ids=ENDS, guide=guide, **fields)


LANGUAGE = Rows(1, FAVOURED)


def played(request, engine=MASKS, language=LANGUAGE, draft=None):
    decoding, target = decoding_of(request, engine), KeyedEngine(language, request)
    return decoding, target, play(decoding, target, draft)


def test_forced_tokens_need_no_call():
    guide, draft = Guide("choice", '["The quick brown fox"]'), Guesser([], 1)
    request = request_for(guide, drafter="draft_model", draft_len=4, max_draft_len=16)
    decoding, target, chunks = played(request, draft=draft)
    assert decoding.sequence.output.tolist() == encoded("The quick brown fox")
    assert not target.calls
    assert not draft.drafted
    assert chunks[-1].finish_reason == "stop"
    details = join_details([chunk.details for chunk in chunks])
    assert {KINDS[kind] for kind in details.kinds} == {"forced"}
    assert set(details.rounds.tolist()) == {0}


def test_forced_tokens_are_sent_with_the_preceding_round():
    decoding, target, chunks = played(request_for(Guide("lark_grammar", 'start: /[ab]/ "fox."')))
    assert len(target.calls) == len(chunks) == 1
    details = chunks[0].details
    assert KINDS[details.kinds[0]] == "plain"
    assert set(details.rounds.tolist()) == {1}
    assert decoding.statistics.guide.num_forced_tokens == len(details.kinds) - 1


def test_statistics_warn_about_guide_parts_that_are_not_enforced():
    schema = '{"type": "array", "items": {"type": "string"}, "uniqueItems": true}'
    decoding, _, _ = played(request_for(Guide("json_schema", schema)))
    [warning] = decoding.statistics.as_dict()["guide"]["warnings"]
    assert "uniqueItems isn't enforced" in warning


@pytest.mark.parametrize(
    "asks",
    [
        {"return_log_probs": True},
        {"return_prompt_log_probs": True},
        {"return_generation_logits": True},
        {"sampling": Sampling(bad_words=np.array([[5], [1]], np.int32))},
        {"sampling": Sampling(embedding_bias=np.zeros(WIDTH, np.float32))},
    ],
)
def test_forced_tokens_are_verified_if_log_probs_or_logits_are_requested(asks):
    guide = Guide("choice", '["The quick brown fox"]')
    request = request_for(guide, drafter="draft_model", draft_len=4, max_draft_len=16, **asks)
    decoding, target, learned = decoding_of(request, MASKS), KeyedEngine(LANGUAGE, request), []
    drafter = decoding._drafter
    drafter.verified = drafter.observe_plain_call = lambda *what: learned.append(what)
    play(decoding, target, Guesser([], 1))
    assert decoding.sequence.output.tolist() == encoded("The quick brown fox")
    assert target.calls
    assert learned == []  # they aren't the drafter's
    earned = decoding.statistics.by_drafter
    assert list(earned) == [GRAMMAR]
    assert earned[GRAMMAR].draft_acceptance_rate == 1.0
    assert decoding.statistics.guide.num_forced_tokens == 0


def test_a_guided_request_gets_context_logits_from_its_first_call():
    request = request_for(GUIDES[0], return_context_logits=True)
    _, target, _ = played(request)
    assert target.calls[0].context.tolist() == [5]


def test_a_draft_is_cut_at_the_first_illegal_token():
    guide = Guide("regex", "a{9}|b{9}")
    request = request_for(guide, drafter="draft_model", draft_len=4, max_draft_len=16)
    a = encoded("a")[0]
    language = Rows(0, (a,))
    decoding, target, _ = played(
        request, language=language, draft=Guesser([a] * 9, 1, (True, True, False, True))
    )
    assert max(len(call.draft) for call in target.calls) == 2
    statistics = decoding.statistics.guide
    assert statistics.num_illegal_draft_tokens == 2 * len(
        [c for c in target.calls if len(c.draft) == 2]
    )
    assert statistics.num_repaired_tokens == 0


def test_an_illegal_draft_counts_as_rejected():
    guide = Guide("regex", "[ab]{5}")
    request = request_for(guide, drafter="draft_model", draft_len=4, max_draft_len=16)
    decoding = decoding_of(request, MASKS)
    verified = []
    decoding._drafter.verified = lambda *what: verified.append(what)
    target = KeyedEngine(Rows(1), request)
    chunks = play(decoding, target, Guesser([], 1))
    assert [call.max_new_tokens for call in target.calls] == [1] * 5
    assert [len(call.token_masks) for call in target.calls] == [1] * 5
    assert [(len(draft), accepted) for draft, accepted, _ in verified] == [(4, 0)] * 5
    assert decoding.statistics.guide.num_illegal_draft_tokens == 20
    kinds = join_details([chunk.details for chunk in chunks]).kinds
    assert [KINDS[kind] for kind in kinds] == ["correction"] * 5


def test_each_call_has_a_token_mask_per_position():
    request = request_for(GUIDES[0], drafter="draft_model", draft_len=5, max_draft_len=16)
    tokens, _ = expected(request, MASKS, Rows(1, FAVOURED))
    _, target, _ = played(request, draft=Guesser(tokens, 1, (True, True, True, False)))
    assert any(len(call.draft) for call in target.calls)
    for call in target.calls:
        assert len(call.token_masks) == len(call.draft) + 1
        assert call.token_masks.shape[1] == -(-WIDTH // 32)


def test_without_masks_an_illegal_token_is_repaired_by_a_masked_call():
    decoding, target, _ = played(request_for(GUIDES[2]), REPAIR)
    free = [call for call in target.calls if call.token_masks is None]
    repairs = [call for call in target.calls if call.token_masks is not None]
    assert free
    assert len(repairs) == decoding.statistics.guide.num_repaired_tokens > 0
    assert all(call.max_new_tokens == 1 and not len(call.draft) for call in repairs)
    assert all(len(call.token_masks) == 1 for call in repairs)
    assert all(call.end_id is None for call in target.calls)
    assert {call.stop_ids for call in free} == {ENDS}


def sizes_of(guide, favourite):
    """Return the number of tokens that each call requests from an engine without masks."""
    request = replace(request_for(guide), max_tokens=100)
    _, target, _ = played(request, REPAIR, Rows(0, (encoded(favourite)[0],), by=30))
    return [call.max_new_tokens for call in target.calls if call.token_masks is None]


def test_without_masks_chunks_grow_while_tokens_are_legal():
    assert sizes_of(Guide("regex", "a*b?"), "a") == [4, 8, 16, 32, 32, 8]
    assert sizes_of(Guide("regex", "[bc]{5}"), "a")[:4] == [4, 2, 1, 1]


def test_without_masks_a_verification_has_no_stop_ids():
    request = request_for(GUIDES[2], drafter="draft_model", draft_len=4, max_draft_len=16)
    tokens, _ = expected(request, REPAIR, LANGUAGE)
    _, target, _ = played(request, REPAIR, draft=Guesser(tokens, 1))
    verifications = [call for call in target.calls if len(call.draft)]
    assert verifications
    assert {call.stop_ids for call in verifications} == {()}


METHODS = [
    (MASKS, {"top_k": 1}, "masks"),
    (MASKS, {"top_k": 4}, "masks"),
    (REPAIR, {"top_k": 1}, "repair"),
    (REPAIR, {"top_k": 1, "top_p": 0.5}, "repair"),
    (REPAIR, {"top_k": 0}, "repair"),
    (REPAIR, {"top_k": 2}, "token_by_token"),
    (REPAIR, {"top_k": 0, "top_p": 0.9}, "token_by_token"),
    (REPAIR, {"top_k": 0, "min_p": 0.1}, "token_by_token"),
    (REPAIR, {"temperature": 0.5}, "repair"),
]


@pytest.mark.parametrize(("engine", "sampling", "method"), METHODS)
def test_the_guidance_method_depends_on_the_engine_and_sampling_options(engine, sampling, method):
    assert guide_method(request_for(GUIDES[0], sampling=Sampling(**sampling)), engine) == method


def answer(count, first, **fields):
    values = np.arange(first, first + count, dtype=np.float32)
    top = TopLogProbs(np.arange(first, first + count)[:, None], values[:, None])
    return EngineResult(ids(*range(first, first + count)), **fields)._replace(
        log_probs=values, top=top
    )


def test_log_probs_line_up_with_tokens_after_a_repair():
    one = answer(4, 10, seconds=2.0, engine_seconds=1.0)
    both = join_results(one, 2, answer(1, 90, seconds=0.5, engine_seconds=0.25))
    assert both.tokens.tolist() == [10, 11, 90]
    assert (both.seconds, both.engine_seconds) == (2.5, 1.25)
    assert both.log_probs.tolist() == [10, 11, 90]
    assert both.top.ids.tolist() == both.top.values.tolist() == [[10], [11], [90]]


@pytest.mark.parametrize("cut", [{"top_k": 4}, {"top_k": 0, "top_p": 0.5}])
def test_without_masks_truncated_sampling_decodes_one_token_per_call(cut):
    request = request_for(GUIDES[2], drafter="draft_model", draft_len=4, max_draft_len=16)
    request = make_lossless(guided.sampled(request, **cut), REPAIR)
    assert request.drafter == "none"
    assert guide_method(request, REPAIR) == "token_by_token"
    decoding, target, _ = played(request, REPAIR)
    assert all(len(call.token_masks) == call.max_new_tokens == 1 for call in target.calls)
    assert decoding.statistics.guide.method == "token_by_token"
    assert make_lossless(guided.sampled(request_for(GUIDES[2]), **cut), MASKS).guide == GUIDES[2]


def test_each_repair_has_a_new_seed_for_an_unkeyed_engine():
    request = guided.sampled(request_for(GUIDES[0]), top_k=0, seed=3)
    _, target, _ = played(request, UNKEYED)
    seeds = [call.seed for call in target.calls]
    assert len(set(seeds)) == len(seeds) > 2
    _, keyed, _ = played(request, REPAIR)
    assert {call.seed for call in keyed.calls} == {3}


def test_min_tokens_bans_end_ids_unless_nothing_else_is_legal():
    long = request_for(Guide("regex", "a*"), min_tokens=6)
    decoding, target, _ = played(long, language=Rows(0, (*ENDS, *ENDS)))
    assert decoding.sequence.num_output_tokens >= 6
    assert target.calls[0].ban_end_ids
    short, _, chunks = played(request_for(Guide("choice", '["fox"]'), min_tokens=6))
    assert short.sequence.output.tolist() == encoded("fox")
    assert chunks[-1].finish_reason == "stop"


def test_a_guided_answer_cut_at_max_tokens_has_finish_reason_length():
    _, _, chunks = played(replace(request_for(Guide("choice", '["The quick"]')), max_tokens=1))
    assert chunks[-1].finish_reason == "length"
    guide = Guide("lark_grammar", 'start: /[ab]/ "fox."')  # forced tokens follow another one
    decoding, _, chunks = played(replace(request_for(guide), max_tokens=2))
    assert decoding.sequence.num_output_tokens == 2
    assert chunks[-1].finish_reason == "length"


def test_guided_answers_are_not_drafted_ahead():
    able = with_engines(WIDE, draft={"branches": True})
    request = request_for(GUIDES[0], drafter="draft_model", draft_len=4, max_draft_len=16)
    statistics = AheadPlanner(able)
    assert make_draft_ahead(replace(request, draft_ahead=True), able, statistics) is None
    assert make_draft_ahead(replace(request, draft_ahead=True, guide=None), able, statistics)


class Disobedient(KeyedEngine):
    """An engine that returns tokens outside the mask."""

    def token(self, call, context, mask):
        return next(token for token in range(5, WIDTH) if token not in allowed(mask))


def test_a_token_that_violates_its_mask_fails_the_request():
    request = request_for(GUIDES[2])
    decoding = decoding_of(request, MASKS)
    with pytest.raises(
        EngineCallError, match="model 'target' failed: it returned a token that its mask"
    ):
        play(decoding, Disobedient(Rows(), request))


def test_a_guide_that_cannot_continue_fails_with_one_line():
    decoding = decoding_of(request_for(GUIDES[2]), MASKS)

    def fail(*_, **__):
        raise GuideError("ParserTooComplex")

    decoding._guidance._matcher.walk = fail
    message = "^the guide can't be followed any further: ParserTooComplex$"
    with pytest.raises(GuideFailed, match=message) as caught:
        play(decoding, KeyedEngine(Rows(), decoding.request))
    assert caught.value.code == "INVALID_ARG"


MASKED_WIDTH = 70  # bits: two whole 32-bit words and part of a third


@given(st.sets(st.integers(0, MASKED_WIDTH - 1)), st.booleans())
def test_a_masked_bias_bans_every_token_outside_the_mask(allowed, biased):
    mask = np.zeros(-(-MASKED_WIDTH // 32), np.uint32)
    for token in allowed:
        mask[token // 32] |= np.uint32(1 << token % 32)
    bias = np.arange(MASKED_WIDTH, dtype=np.float32) if biased else None
    made = masked_bias(bias, mask.view(np.int32), MASKED_WIDTH)
    assert made.dtype == np.float32
    expected = [float(i) * biased if i in allowed else -np.inf for i in range(MASKED_WIDTH)]
    assert made.tolist() == expected
