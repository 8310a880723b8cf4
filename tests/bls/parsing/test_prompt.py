"""The loop reads tokenized prompts and rejects prompts that don't fit."""

from dataclasses import replace

import numpy as np
import pytest
from scripted import SETTINGS, ids, with_engines

from tandem.bls.errors import BadRequest
from tandem.bls.parser import (
    Prompt,
    TokenizerInputs,
    Tokens,
    build_request,
    check_logits,
)
from tandem.bls.request import Options, Request, Sampling

LIMITED = with_engines(
    replace(SETTINGS, end_ids=(7, 6), max_logits_bytes=320),
    target={"max_seq_len": 30, "max_draft_len": 5},
)
REQUEST = Request(
    prompt_ids=ids(),
    max_tokens=20,
    min_tokens=2,
    sampling=Sampling(temperature=0.5, top_k=3, top_p=0.75, seed=11, repetition_penalty=1.5),
    seeded=True,
    end_ids=(7, 6),
    drafter="hybrid",
    draft_len=4,
    max_draft_len=5,
    prompt_lookup_num_tokens=3,
    max_matching_ngram_size=2,
    use_draft_logits=True,
    draft_acceptance_threshold=0.5,
    stream=True,
    return_log_probs=True,
)
PROMPT = Prompt(TokenizerInputs("hello", ("END", "<|eot|>", "stop")), None, REQUEST)
TOKENS = Tokens(ids(1, 2, 3, 4, 5))


def test_the_request_gets_its_ids_words_and_biases_from_the_tokenizer():
    tokens = TOKENS._replace(bad_words=ids(1, 2), embedding_bias=np.ones(8, np.float32))
    request = build_request(PROMPT, tokens, LIMITED)
    assert request == replace(
        REQUEST,
        prompt_ids=tokens.prompt_ids,
        sampling=replace(
            REQUEST.sampling, bad_words=tokens.bad_words, embedding_bias=tokens.embedding_bias
        ),
        stop_strings=("END", "<|eot|>", "stop"),
    )


@pytest.mark.parametrize(
    ("read", "special", "end_ids"),
    [
        ((7, 6), (), (7, 6)),
        ((), (), ()),
        ((7, 6), (None, 5, None), (7, 6, 5)),
        ((7, 6), (6, 7, 6), (7, 6)),
        ((), (None, 5, None), (5,)),
        ((0,), (0, None, None), (0,)),
    ],
)
def test_special_stop_words_become_end_ids(read, special, end_ids):
    prompt = PROMPT._replace(request=replace(REQUEST, end_ids=read))
    request = build_request(prompt, TOKENS._replace(special_stops=special), LIMITED)
    assert request.end_ids == end_ids


def test_special_stop_words_are_not_stop_strings():
    tokens = TOKENS._replace(special_stops=(None, 0, None))
    request = build_request(PROMPT, tokens, LIMITED)
    assert request.stop_strings == ("END", "stop")


def test_prompt_max_tokens_and_max_draft_len_must_fit_max_seq_len():
    assert build_request(PROMPT, TOKENS, LIMITED)
    with pytest.raises(
        BadRequest,
        match=r"^input 'max_tokens' is 21 and the prompt has 5 tokens; the limit is 25 in total "
        r"\(max_seq_len 30 minus max_draft_len 5\)$",
    ):
        build_request(PROMPT._replace(request=replace(REQUEST, max_tokens=21)), TOKENS, LIMITED)


def test_a_prompt_without_tokens_is_rejected():
    with pytest.raises(
        BadRequest, match=r"^input 'text_input' must have at least one token; got none$"
    ):
        build_request(PROMPT, Tokens(ids()), LIMITED)


ROW = 8 * 4  # bytes; the limit is ten rows


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
def test_the_size_of_logits_per_answer_is_limited(options, lengths, max_tokens, size):
    if size <= 10:
        check_logits(lengths, max_tokens, options, LIMITED)
        return
    with pytest.raises(BadRequest, match=f"up to {size * ROW} bytes of logits .* limit is 320"):
        check_logits(lengths, max_tokens, options, LIMITED)


def test_biases_by_id_and_by_word_are_added():
    by_ids, by_words = np.array([0, 3, 0, -5]), np.array([1, 1, 1, 1])
    sampling = replace(REQUEST.sampling, embedding_bias=by_ids)
    biased = PROMPT._replace(request=replace(REQUEST, sampling=sampling))
    for given, total in (
        (None, [0, 3, 0, -5]),
        (by_words, [1, 4, 1, -4]),
        (by_words[:2], [1, 4, 0, -5]),  # of a tokenizer with fewer tokens
    ):
        request = build_request(biased, TOKENS._replace(embedding_bias=given), LIMITED)
        assert request.sampling.embedding_bias.tolist() == total
    assert by_ids.tolist() == [0, 3, 0, -5]
