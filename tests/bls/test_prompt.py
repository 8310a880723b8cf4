"""A prompt with its tokens: what the loop is asked for, and what cannot fit."""

import secrets
from dataclasses import replace

import numpy as np
import pytest
from scripted import SETTINGS, ids, with_engines

from tandem.bls.errors import BadRequest
from tandem.bls.prompt import (
    Drafting,
    LogitBias,
    Options,
    Prompt,
    TokenizerInputs,
    Tokens,
    check_logits,
    request_of,
)

LIMITED = with_engines(
    replace(SETTINGS, end_ids=(7, 6), max_logits_bytes=320),
    target={"max_seq_len": 30, "max_draft_len": 5},
)
DRAFTING = Drafting("hybrid", 4, 3, 2, True, 0.5)
PROMPT = Prompt(
    words=TokenizerInputs("hello", ("END", "<|eot|>", "stop")),
    input_ids=None,
    max_tokens=20,
    min_tokens=2,
    temperature=0.5,
    top_k=3,
    top_p=0.75,
    seed=11,
    repetition_penalty=1.5,
    presence_penalty=0.25,
    frequency_penalty=0.125,
    end_id=None,
    drafting=DRAFTING,
)
TOKENS = Tokens(ids(1, 2, 3, 4, 5))


def test_everything_that_was_read_reaches_the_loop():
    tokens = TOKENS._replace(bad_words=ids(1, 2), embedding_bias=np.ones(8, np.float32))
    options = Options(stream=True, return_log_probs=True, return_perf_metrics=True)
    request = request_of(PROMPT, tokens, options, LIMITED)
    assert request.prompt_ids.tolist() == [1, 2, 3, 4, 5]
    assert (request.max_tokens, request.min_tokens) == (20, 2)
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 3, 0.75)
    assert (sampling.seed, request.seeded) == (11, True)
    assert sampling.repetition_penalty == 1.5
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.25, 0.125)
    assert sampling.bad_words is tokens.bad_words
    assert sampling.embedding_bias is tokens.embedding_bias
    assert request.stop_strings == ("END", "<|eot|>", "stop")
    assert request.end_ids == (7, 6)
    assert Drafting(*(getattr(request, name) for name in Drafting._fields)) == DRAFTING
    assert request.max_draft_len == 5
    assert (request.streams_text, request.wants_log_probs, request.wants_kv_blocks) == (True,) * 3
    assert not request.wants_context_logits
    assert not request.wants_generation_logits


@pytest.mark.parametrize("logits", ["context_logits", "generation_logits"])
def test_logits_are_asked_for_by_the_whole_request(logits):
    request = request_of(PROMPT, TOKENS, Options(**{f"return_{logits}": True}), LIMITED)
    asked = {name: getattr(request, f"wants_{name}") for name in ("context_logits", logits)}
    assert asked == {"context_logits": logits == "context_logits"} | {logits: True}


def test_a_request_without_a_seed_draws_its_own():
    unseeded = PROMPT._replace(seed=None)
    assert not request_of(unseeded, TOKENS, Options(), LIMITED).seeded
    seeds = {request_of(unseeded, TOKENS, Options(), LIMITED).sampling.seed for _ in range(4)}
    assert len(seeds) == 4


def test_a_seed_that_was_drawn_fits_every_engine(monkeypatch):
    monkeypatch.setattr(secrets, "randbits", lambda bits: 2**bits - 1)
    request = request_of(PROMPT._replace(seed=None), TOKENS, Options(), LIMITED)
    assert request.sampling.seed == 2**63 - 1


@pytest.mark.parametrize(
    ("end_id", "special", "end_ids"),
    [
        (None, (), (7, 6)),
        (3, (), (3,)),
        (0, (), (0,)),
        (-1, (), ()),
        (None, (None, 5, None), (7, 6, 5)),
        (None, (6, 7, 6), (7, 6)),
        (3, (None, 5, None), (3, 5)),
        (-1, (None, 5, None), (5,)),
        (0, (0, None, None), (0,)),
    ],
)
def test_special_stop_words_end_an_answer_as_ends_of_sequence_do(end_id, special, end_ids):
    tokens = TOKENS._replace(special_stops=special)
    request = request_of(PROMPT._replace(end_id=end_id), tokens, Options(), LIMITED)
    assert request.end_ids == end_ids


def test_a_stop_word_that_is_a_token_is_not_looked_for_in_the_text():
    tokens = TOKENS._replace(special_stops=(None, 0, None))
    request = request_of(PROMPT, tokens, Options(), LIMITED)
    assert request.stop_strings == ("END", "stop")


def test_prompt_answer_and_longest_draft_fit_exactly():
    assert request_of(PROMPT, TOKENS, Options(), LIMITED)
    with pytest.raises(
        BadRequest,
        match=r"^input 'max_tokens': 5 prompt tokens and 21 new ones exceed 25, which is "
        r"max_seq_len 30 less room for 5 draft tokens$",
    ):
        request_of(PROMPT._replace(max_tokens=21), TOKENS, Options(), LIMITED)


def test_a_text_of_no_tokens_is_refused():
    with pytest.raises(BadRequest, match=r"^input 'text_input' gives no tokens; send some text$"):
        request_of(PROMPT, Tokens(ids()), Options(), LIMITED)


def test_a_text_of_one_token_is_enough():
    assert len(request_of(PROMPT, Tokens(ids(1)), Options(), LIMITED).prompt_ids) == 1


ROW = 8 * 4  # bytes: ten rows fit


@pytest.mark.parametrize(
    ("options", "lengths", "max_tokens", "size"),
    [
        (Options(), [50], [50], 0),
        (Options(return_context_logits=True), [10], [50], 10),
        (Options(return_context_logits=True), [11], [50], 11),
        (Options(return_generation_logits=True), [50], [10], 10),
        (Options(return_generation_logits=True), [50], [11], 11),
        (Options(return_context_logits=True, return_generation_logits=True), [6], [4], 10),
        (Options(return_context_logits=True, return_generation_logits=True), [6], [5], 11),
        (Options(return_generation_logits=True), [1, 1], [5, 1], 10),
        (Options(return_generation_logits=True), [1, 1], [1, 6], 12),
        (Options(return_context_logits=True), [5, 1], [1, 1], 10),
    ],
)
def test_an_answer_holds_so_many_logits(options, lengths, max_tokens, size):
    if size <= 10:
        check_logits(lengths, max_tokens, options, LIMITED)
        return
    with pytest.raises(BadRequest, match=f"up to {size * ROW} bytes of logits .* at most 320"):
        check_logits(lengths, max_tokens, options, LIMITED)


def test_a_bias_of_ids_adds_to_that_of_words():
    biased = PROMPT._replace(logit_bias=LogitBias((1, 1, 3), (1, 2, -5)))
    words = np.ones(SETTINGS.target.vocab_size, np.float32)
    for given, others in ((None, 0), (words, 1)):
        request = request_of(biased, TOKENS._replace(embedding_bias=given), Options(), LIMITED)
        expected = np.full(SETTINGS.target.vocab_size, others, np.float32)
        expected[[1, 3]] += [3, -5]
        assert request.sampling.embedding_bias.tolist() == expected.tolist()
    assert words.tolist() == [1] * SETTINGS.target.vocab_size


def test_log_probabilities_that_are_wanted_reach_the_loop():
    options = Options(return_log_probs=True, return_prompt_log_probs=True, num_top_log_probs=3)
    request = request_of(PROMPT, TOKENS, options._replace(tells_text_lengths=True), LIMITED)
    assert (request.wants_log_probs, request.wants_prompt_log_probs) == (True, True)
    assert (request.num_top_log_probs, request.wants_text_lengths) == (3, True)
