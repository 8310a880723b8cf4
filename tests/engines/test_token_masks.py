"""Masks define the allowed tokens at each position, and engines emit no other tokens."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from emulated import emulated
from engine_harness import GREEDY, VOCAB, Harness, branch_call, prompt
from error_lines import error_line
from masks import Grammar, masks
from scale import first_of

from tandem.engines.emulated.engine import EmulatedEngine
from tandem.engines.engine import SamplingParams, Words
from tandem.engines.errors import RequestError, UnsupportedError

SAMPLED = SamplingParams(temperature=1.3, seed=11)
EVERYTHING = range(VOCAB)
GRAMMAR = Grammar(VOCAB)
UNLIKELY = 0  # the emulated language never emits this token


@pytest.fixture(scope="module", params=["torch", "llamacpp", "emulated"])
def engine(request) -> Harness:
    """An engine of each kind that declares `masks_tokens`."""
    if request.param == "torch":
        return request.getfixturevalue("make_harness")("llama")
    if request.param == "llamacpp":
        return request.getfixturevalue("make_llamacpp")()
    return emulated(hard_alpha=0.4, mean_answer_len=9)


def emulates(harness) -> bool:
    return isinstance(harness.engine, EmulatedEngine)


def rows(*allowed) -> np.ndarray:
    return masks(*allowed, vocab_size=VOCAB)


def one_by_one(engine, ids, count, *, grammar=GRAMMAR, sampling=GREEDY, **rest) -> list[int]:
    """Generate tokens with one masked call per token."""
    text: list[int] = []
    for _ in range(count):
        owed = max(0, sampling.min_tokens - len(text))
        text += engine.tokens(
            ids + text,
            sampling=replace(sampling, min_tokens=owed),
            token_masks=grammar.masks(ids + text),
            **rest,
        )
    return text


def wrong_ones(ids, text, grammar=GRAMMAR) -> list[int]:
    """Return an illegal token and up to two legal tokens in place of text[-1]."""
    legal = grammar.legal(ids + text[:-1])
    return [grammar.illegal(ids + text[:-1]), *(set(legal) - {text[-1]})][:3]


def test_every_emitted_token_is_legal(engine):
    for seed in range(20):
        ids = prompt(seed, 9)
        text = one_by_one(engine, ids, 8)
        assert all(text[n] in GRAMMAR.legal(ids + text[:n]) for n in range(8))


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_plain_call_applies_one_mask_row_per_token(engine, sampling, streaming):
    random, ids = np.random.default_rng(3), prompt(1, 9)
    allowed = [random.choice(VOCAB, size, replace=False) for size in (1, 40, 3, 120, 1, 60)]
    options = {"sampling": sampling, "streaming": streaming}
    text = engine.tokens(ids, 6, token_masks=rows(*allowed), **options)
    assert all(token in ids for token, ids in zip(text, allowed, strict=True))
    cut = engine.tokens(ids, 2, token_masks=rows(*allowed), **options)
    cut += engine.tokens(ids + cut, 4, token_masks=rows(*allowed[2:]), **options)
    assert cut == text


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_a_mask_that_allows_everything_changes_nothing(engine, sampling):
    for seed in range(10):
        ids = prompt(seed, 9)
        text = engine.tokens(ids, 12, sampling=sampling)
        masked = rows(*[EVERYTHING] * 12)
        assert engine.tokens(ids, 12, sampling=sampling, token_masks=masked) == text


def test_the_most_likely_token_is_chosen_if_the_mask_allows_it(engine):
    ids = prompt(2, 9)
    best = engine.tokens(ids)[0]
    others = [token for token in EVERYTHING if token != best]
    assert engine.tokens(ids, token_masks=rows([best, 5, 6])) == [best]
    assert engine.tokens(ids, token_masks=rows(others)) != [best]


def test_every_id_can_be_allowed_by_its_bit(engine):
    for token in (0, 1, 31, 32, 63, 95, 127, 128, VOCAB - 1):
        assert engine.tokens(prompt(3, 9), token_masks=rows([token])) == [token]


ASKED = {
    "greedy": GREEDY,
    "temperature": SAMPLED,
    "min_p": SamplingParams(temperature=1.3, min_p=0.2, seed=8),
    "both": SamplingParams(temperature=0.7, top_k=8, top_p=0.8, seed=6),
}
PENALTIES = SamplingParams(
    temperature=1.2, repetition_penalty=1.6, frequency_penalty=0.8, presence_penalty=0.4, seed=7
)


def assert_verified(engine, seed, *, grammar=GRAMMAR, sampling, **rest) -> None:
    """Assert that the verification of any draft equals one call per token."""
    ids = prompt(seed, 12)
    text = one_by_one(engine, ids, 6, grammar=grammar, sampling=sampling, **rest)
    for right in range(len(text)):
        for wrong in wrong_ones(ids, text[: right + 1], grammar) if right < 5 else [None]:
            drafts = text[:right] if wrong is None else [*text[:right], wrong, *text[right:4]]
            outcome = engine.call(
                ids,
                len(drafts) + 1,
                drafts=drafts,
                token_masks=grammar.masks(ids, drafts),
                sampling=sampling,
                **rest,
            )
            assert outcome.tokens == text[: right + 1], (seed, right, wrong)
            assert outcome.last.usage.accepted_tokens == right


@pytest.mark.parametrize("sampling", ASKED.values(), ids=ASKED)
def test_masked_verification_equals_single_token_calls(engine, sampling):
    for seed in range(3):
        assert_verified(engine, seed, sampling=sampling)


def test_masked_verification_with_penalties_equals_single_token_calls(engine):
    if emulates(engine):
        pytest.skip("no penalties")
    for seed in range(3):
        assert_verified(engine, seed, sampling=PENALTIES)
        assert_verified(engine, seed, sampling=replace(PENALTIES, top_k=1))


@pytest.mark.parametrize("sampling", first_of(SAMPLED, GREEDY))
def test_masked_verification_with_bans_equals_single_token_calls(engine, sampling):
    grammar = Grammar(VOCAB, (4, 40, 125))
    for seed in range(3):
        ids = prompt(seed, 12)
        text = one_by_one(engine, ids, 6, grammar=grammar, sampling=sampling)
        words = Words.of(text[:1], text[2:4])
        banned = replace(sampling, bad_words=words)
        assert one_by_one(engine, ids, 6, grammar=grammar, sampling=banned) != text
        assert_verified(engine, seed, grammar=grammar, sampling=banned)
        owed, ends = replace(sampling, min_tokens=6), Words.of(text[1:2])
        ended = {"end_id": text[0], "stop_words": ends}
        assert text[0] not in one_by_one(engine, ids, 6, grammar=grammar, sampling=owed, **ended)
        assert_verified(engine, seed, grammar=grammar, sampling=owed, **ended)


@pytest.mark.parametrize("threshold", [None, 0.0, 0.4])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_an_illegal_draft_token_is_rejected_regardless_of_its_logits(engine, sampling, threshold):
    for seed in range(3):
        ids = prompt(seed, 12)
        illegal = GRAMMAR.illegal(ids)
        logits = np.full((3, VOCAB), -30, np.float32)
        logits[:, illegal] = 30
        drafts = [illegal] * 3
        tokens = engine.tokens(
            ids,
            4,
            drafts=drafts,
            draft_logits=logits,
            draft_acceptance_threshold=threshold,
            token_masks=GRAMMAR.masks(ids, drafts),
            sampling=sampling,
        )
        assert len(tokens) == 1
        assert tokens[0] in GRAMMAR.legal(ids)


def test_masked_drafts_sampled_from_the_targets_logits_are_all_accepted(engine):
    for seed in range(3):
        ids = prompt(seed, 12)
        allowed = [np.random.default_rng(place).choice(VOCAB, 30) for place in range(5)]
        proposal = engine.call(
            ids,
            4,
            sampling=SAMPLED,
            token_masks=rows(*allowed[:4]),
            return_generation_logits=True,
        )
        logits = proposal.last.generation_logits
        outcome = engine.call(
            ids,
            5,
            drafts=proposal.tokens,
            draft_logits=logits,
            token_masks=rows(*allowed),
            sampling=replace(SAMPLED, seed=99),
        )
        assert outcome.tokens[:4] == proposal.tokens
        assert outcome.tokens[4] in allowed[4]


def test_generation_logits_are_masked(engine):
    for seed in range(3):
        ids = prompt(seed, 12)
        found = engine.call(ids, token_masks=GRAMMAR.masks(ids), return_generation_logits=True)
        row = found.last.generation_logits[0]
        possible = np.exp(row - row.max()) > 0
        assert found.tokens == [row.argmax()]
        assert set(np.flatnonzero(possible)) <= set(GRAMMAR.legal(ids))


def test_log_probs_ignore_masks(engine):
    for seed in range(3):
        ids = prompt(seed, 12)
        free = engine.call(ids, 4, return_log_probs=True)
        masked = engine.call(
            ids,
            4,
            drafts=free.tokens[:3],
            token_masks=rows(*([token, 3] for token in free.tokens)),
            return_log_probs=True,
        )
        assert masked.tokens == free.tokens
        np.testing.assert_allclose(masked.last.log_probs, free.last.log_probs, atol=1e-4)


def test_an_unlikely_token_has_a_finite_log_prob(engine):
    for seed in range(3):
        ids = prompt(seed, 12)
        answer = engine.call(ids, token_masks=rows([UNLIKELY]), return_log_probs=True).last
        assert np.isfinite(answer.log_probs).all()
        assert answer.log_probs[0] < -0.5


def rejection(engine, ids, drafts, token_masks, **rest) -> str:
    """Return the error of an impossible call."""
    try:
        asked = {"drafts": drafts, "token_masks": token_masks, **rest}
        return engine.start(ids, len(drafts) + 1, **asked).wait().error
    except RequestError as error:
        return str(error)


@pytest.mark.parametrize("right", [0, 2])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_the_error_names_the_inputs_if_no_token_is_allowed(engine, right, sampling):
    ids = prompt(4, 12)
    text = engine.tokens(ids, 3, sampling=sampling)
    drafts, before = text[:right], [EVERYTHING] * right
    message = "token_masks, bad_words_list"
    assert rejection(engine, ids, drafts, rows(*before, []), sampling=sampling).startswith(message)
    banned = replace(sampling, bad_words=Words.of(text[right : right + 1]))
    only = rows(*before, text[right : right + 1])
    assert rejection(engine, ids, drafts, only, sampling=banned).startswith(message)
    assert engine.tokens(ids, 3, sampling=sampling) == text


@pytest.mark.parametrize(
    ("drafts", "given", "message"),
    [
        (2, {"token_masks": (3, 4)}, "token_masks must have 5 words .* 131; got 4"),
        (2, {"token_masks": (3, 6)}, "token_masks must have 5 words .*; got 6"),
        (2, {"token_masks": (2, 5)}, "token_masks must have 3 rows for 2 draft tokens; got 2"),
        (2, {"token_masks": (4, 5)}, "token_masks must have 3 rows .*; got 4"),
        (0, {"token_masks": (2, 5)}, "request_output_len must be at most 2, .*; got 3"),
    ],
)
def test_masks_of_the_wrong_shape_are_rejected(engine, drafts, given, message):
    asked = {"token_masks": np.full(given["token_masks"], -1, np.int32)}
    drafted = [4, 5][:drafts]
    line = error_line(RequestError, engine.start, prompt(5, 9), 3, drafts=drafted, **asked)
    assert re.search(message, line)


def test_unused_mask_rows_are_ignored(engine):
    masked = rows([7], [8], [])
    assert engine.tokens(prompt(6, 9), 2, token_masks=masked) == [7, 8]


def test_calls_for_branches_reject_masks(engine):
    with pytest.raises(UnsupportedError, match="token_masks isn't supported with branch_counts"):
        engine.start(prompt(7, 9), **branch_call([4], 1, 1), token_masks=rows([4], [5]))
