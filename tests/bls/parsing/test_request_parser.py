"""The tensors of a client become a request, or an error that names the invalid input."""

import secrets
from dataclasses import replace

import numpy as np
import pytest
from client_inputs import (
    SETTINGS,
    array,
    batch,
    prompt,
    prompts_of,
    rejection,
    request_of,
)
from scripted import with_engines

from tandem.bls.errors import BadRequest
from tandem.bls.parser import UNSUPPORTED, UNTOKENIZED, TokenizerInputs, is_stop, validate_rows
from tandem.bls.request import Options, Request, Sampling
from tandem.contract import entry


def test_a_plain_prompt_gets_the_deployments_defaults():
    words, input_ids, request = prompt()
    assert words == TokenizerInputs("x")
    assert input_ids is None
    assert request == Request(
        prompt_ids=UNTOKENIZED,
        max_tokens=4,
        sampling=Sampling(top_k=1, seed=request.sampling.seed),
        end_ids=(7,),
        drafter="draft_model",
        draft_len=4,
        max_draft_len=16,
        prompt_lookup_num_tokens=5,
        max_matching_ngram_size=2,
    )


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"text_input": None}, "input 'text_input' is missing; send the prompt"),
        ({"text_input": ""}, "input 'text_input' must not be empty"),
        (
            {"text_input": b"a\xff"},
            "input 'text_input' must be UTF-8; got byte 0xff at position 1",
        ),
        (
            {"text_input": "x" * 51},
            "input 'text_input' has 51 bytes; the limit is 50; shorten the prompt",
        ),
        (
            {"text_input": "é" * 26},
            "input 'text_input' has 52 bytes; the limit is 50; shorten the prompt",
        ),
        (
            {"max_tokens": None},
            "input 'max_tokens' is missing; send the maximum length of the output",
        ),
        ({"max_tokens": 0}, "input 'max_tokens' must be between 1 and 64; got 0"),
        ({"max_tokens": 65}, "input 'max_tokens' must be between 1 and 64; got 65"),
        ({"max_tokens": [4, 4]}, "input 'max_tokens' must have one value per prompt; got 2"),
        ({"min_tokens": -1}, "input 'min_tokens' must be between 0 and 4; got -1"),
        ({"priority": 101}, "input 'priority' must be between -100 and 100; got 101"),
        ({"min_tokens": 5}, "input 'min_tokens' must be between 0 and 4; got 5"),
        (
            {"input_ids": [1]},
            "send input 'text_input' or input 'input_ids', not both",
        ),
        (
            {"text_input": None, "input_ids": []},
            "input 'input_ids' must not be empty",
        ),
        (
            {"text_input": None, "input_ids": [1, -1]},
            "input 'input_ids' must have ids between 0 and 99; got -1",
        ),
        (
            {"text_input": None, "input_ids": [1, 100]},
            "input 'input_ids' must have ids between 0 and 99; got 100",
        ),
        (
            {"text_input": None, "input_ids": [1] * 65},
            "input 'input_ids' has 65 ids per prompt; the limit is 64 (max_seq_len)",
        ),
        ({"end_id": 100}, "input 'end_id' must be between -1 and 99; got 100"),
        (
            {"beam_width": 2},
            "input 'beam_width' must be 1; got 2; beam search isn't supported",
        ),
        (
            {"num_return_sequences": 2},
            (
                "input 'num_return_sequences' must be 1; got 2; send the prompt once per answer, "
                "with different seeds"
            ),
        ),
        ({"temperature": -0.5}, "input 'temperature' must be at least 0; got -0.5"),
        (
            {"temperature": float("nan")},
            "input 'temperature' must be a finite number; got nan",
        ),
        (
            {"top_p": 1.5},
            "input 'top_p' must be between 0 and 1; got 1.5",
        ),
        ({"min_p": 1.5}, "input 'min_p' must be between 0 and 1; got 1.5"),
        ({"top_k": -1}, "input 'top_k' must be at least 0; got -1"),
        (
            {"repetition_penalty": 0.0},
            "input 'repetition_penalty' must be greater than 0; got 0",
        ),
        (
            {"presence_penalty": float("inf")},
            "input 'presence_penalty' must be a finite number; got inf",
        ),
        (
            {"seed": 1, "random_seed": 2},
            "send input 'seed' or its alias 'random_seed', not both",
        ),
        (
            {"stop_words": ["a"] * 4},
            "input 'stop_words' has 4 words per prompt; the limit is 3",
        ),
        (
            {"bad_words": ["a"] * 4},
            "input 'bad_words' has 4 words per prompt; the limit is 3",
        ),
        (
            {"embedding_bias_words": ["a"] * 4, "embedding_bias_weights": [1.0] * 4},
            "input 'embedding_bias_words' has 4 words per prompt; the limit is 3",
        ),
        (
            {"stop_words": ["a" * 10], "bad_words": ["b" * 11]},
            "inputs 'stop_words' and 'bad_words': 21 bytes in total; the limit is 20",
        ),
        (
            {"embedding_bias_words": ["a"]},
            (
                "input 'embedding_bias_weights' must have 1 values, one per item of "
                "'embedding_bias_words'; got 0"
            ),
        ),
        (
            {"embedding_bias_words": ["a"], "embedding_bias_weights": [float("inf")]},
            "input 'embedding_bias_weights' must have finite values",
        ),
        (
            {"logit_bias_ids": [3, 4], "logit_bias_values": [1.0]},
            "input 'logit_bias_values' must have 2 values, one per item of 'logit_bias_ids'; got 1",
        ),
        (
            {"logit_bias_ids": [3], "logit_bias_values": [float("nan")]},
            "input 'logit_bias_values' must have finite values",
        ),
        (
            {"logit_bias_ids": [3, -1], "logit_bias_values": [1.0, 1.0]},
            "input 'logit_bias_ids' must have ids between 0 and 99; got -1",
        ),
        (
            {"logit_bias_ids": [3] * 101, "logit_bias_values": [1.0] * 101},
            "input 'logit_bias_ids' has 101 ids; the limit is 100, the size of the vocabulary",
        ),
        (
            {"drafter": "magic"},
            (
                "input 'drafter' must be one of draft_model, prompt_lookup, hybrid, none in this "
                "deployment; got 'magic'"
            ),
        ),
        ({"num_draft_tokens": 17}, "input 'num_draft_tokens' must be between -1 and 16; got 17"),
        (
            {"drafter": "hybrid", "prompt_lookup_num_tokens": 17},
            "input 'prompt_lookup_num_tokens' must be between 1 and 16; got 17",
        ),
        (
            {"drafter": "hybrid", "max_matching_ngram_size": 4},
            "input 'max_matching_ngram_size' must be between 1 and 3; got 4",
        ),
        (
            {"prompt_lookup_num_tokens": 2},
            "input 'prompt_lookup_num_tokens' requires 'drafter' to be hybrid or prompt_lookup",
        ),
        (
            {"drafter": "prompt_lookup", "use_draft_logits": True},
            (
                "input 'use_draft_logits' requires 'drafter' to be hybrid or draft_model: "
                "'prompt_lookup' has no logits"
            ),
        ),
        (
            {"draft_ahead": "yes"},
            "input 'draft_ahead' must be one of true, false, auto; got 'yes'",
        ),
        (
            {"draft_ahead": "true", "drafter": "prompt_lookup"},
            "input 'draft_ahead' requires 'drafter' to be hybrid or draft_model",
        ),
        (
            {"draft_ahead": "true"},
            (
                "input 'draft_ahead' can't be true: this deployment's draft engine doesn't draft "
                "ahead; send auto or false"
            ),
        ),
        (
            {"draft_acceptance_threshold": 0.5},
            "input 'draft_acceptance_threshold' requires 'use_draft_logits' to be true",
        ),
        (
            {"use_draft_logits": True, "draft_acceptance_threshold": 1.5},
            "input 'draft_acceptance_threshold' must be between 0 and 1; got 1.5",
        ),
        (
            {"return_generation_logits": True, "max_tokens": 13},
            (
                "input 'return_generation_logits': up to 5200 bytes of logits (shape "
                "[1, 13, 100]); the limit is 4800; request fewer tokens or send fewer prompts"
            ),
        ),
        (
            {
                "return_generation_logits": True,
                "return_context_logits": True,
                "text_input": None,
                "input_ids": [1] * 9,
            },
            (
                "inputs 'return_context_logits' and 'return_generation_logits': up to 5200 bytes "
                "of logits (shape [1, 13, 100]); the limit is 4800; request fewer tokens or send "
                "fewer prompts"
            ),
        ),
    ],
    ids=lambda part: "-".join(part) if isinstance(part, dict) else "",
)
def test_errors_name_the_invalid_input(values, line):
    assert rejection(**values) == line


@pytest.mark.parametrize(
    "values",
    [
        {"text_input": "x" * 50},
        {"max_tokens": 64},
        {"max_tokens": 1},
        {"min_tokens": 4},
        {"text_input": None, "input_ids": [0, 99]},
        {"text_input": None, "input_ids": [1] * 64},
        {"end_id": -1},
        {"end_id": 99},
        {"beam_width": 1, "num_return_sequences": 1},
        {"temperature": 0.0, "top_p": 1.0, "top_k": 2**31 - 1},
        {"seed": 3, "random_seed": 3},
        {"stop_words": ["a"] * 3, "bad_words": ["b"] * 3},
        {"stop_words": ["a" * 10], "bad_words": ["b" * 10]},
        {"drafter": "hybrid", "max_matching_ngram_size": 3, "prompt_lookup_num_tokens": 16},
        {"num_draft_tokens": 16},
        {"drafter": "none", "draft_acceptance_threshold": 0.5, "use_draft_logits": True},
        {"use_draft_logits": True, "draft_acceptance_threshold": 1.0},
        {"draft_ahead": "auto"},
        {"draft_ahead": "false", "drafter": "none"},
        {"return_generation_logits": True, "max_tokens": 12},
    ],
    ids="-".join,
)
def test_boundary_values_are_accepted(values):
    assert prompt(**values)


@pytest.mark.parametrize("tensor", UNSUPPORTED, ids=str)
def test_unsupported_inputs_are_rejected_unless_empty(tensor):
    some = np.array([[b"x"]], object) if tensor.dtype == "STRING" else np.ones((1, 1))
    inputs = {"text_input": array(entry.TEXT_INPUT, [["x"]]), "max_tokens": np.array([[4]])}
    with pytest.raises(BadRequest, match=f"^input '{tensor}' isn't supported by this deployment$"):
        prompts_of(inputs | {tensor: some})
    assert prompts_of(inputs | {tensor: some[:, :0]})


def test_an_empty_request_is_rejected():
    with pytest.raises(
        BadRequest, match=r"^input 'text_input' is missing; send at least one prompt$"
    ):
        prompts_of({})


def test_inputs_with_different_numbers_of_rows_are_rejected():
    inputs = {
        "text_input": array(entry.TEXT_INPUT, [["x"], ["y"]]),
        "max_tokens": np.array([[4]], np.int32),
    }
    with pytest.raises(
        BadRequest, match=r"^input 'max_tokens' must have 2 rows, one per prompt; got 1$"
    ):
        prompts_of(inputs)


FLAGS = (
    "stream",
    "exclude_input_in_output",
    "return_log_probs",
    "return_prompt_log_probs",
    "return_context_logits",
    "return_generation_logits",
    "return_perf_metrics",
    "return_num_input_tokens",
    "return_num_output_tokens",
)


@pytest.mark.parametrize("flag", FLAGS)
def test_request_wide_flags_are_read(flag):
    for value in (True, False):
        assert getattr(request_of(**{flag: value}), flag) is value


@pytest.mark.parametrize("flag", FLAGS)
def test_a_request_wide_flag_must_be_equal_across_a_batch(flag):
    with pytest.raises(
        BadRequest, match=f"^input '{flag}' must be the same for all prompts of a request$"
    ):
        batch({flag: True}, {flag: False})


def test_num_top_log_probs_applies_to_the_whole_request():
    asked = {"return_log_probs": True, "num_top_log_probs": 5}
    assert request_of(**asked).num_top_log_probs == 5
    assert request_of(num_top_log_probs=0).num_top_log_probs == 0
    other = {**asked, "num_top_log_probs": 4}
    for rows, line in (
        (
            [{"num_top_log_probs": 1}],
            " requires 'return_log_probs' or 'return_prompt_log_probs' to",
        ),
        ([{**asked, "num_top_log_probs": 21}], " must be between 0 and 20; got 21"),
        ([asked, other], " must be the same for all prompts of a request"),
    ):
        with pytest.raises(BadRequest, match=f"^input 'num_top_log_probs'{line}"):
            batch(*rows)


@pytest.mark.parametrize(
    ("setting", "asked"),
    [
        ("prompt_log_probs", {"return_prompt_log_probs": True}),
        ("top_log_probs", {"num_top_log_probs": 1, "return_log_probs": True}),
        ("cache_salt", {"cache_salt": "mine"}),
    ],
)
def test_inputs_that_the_target_does_not_support_are_rejected(setting, asked):
    silent = with_engines(SETTINGS, target={setting: False})
    name = next(iter(asked))
    line = f"^input '{name}' isn't supported by this deployment's target engine"
    with pytest.raises(BadRequest, match=line):
        prompt(settings=silent, **asked)
    assert prompt(settings=silent)


def test_the_deployment_decides_whether_output_includes_the_prompt():
    shows = replace(SETTINGS, exclude_input_in_output=False)
    assert not request_of(settings=shows).exclude_input_in_output


def test_an_empty_salt_is_rejected():
    assert request_of().cache_salt == 0
    with pytest.raises(BadRequest, match=r"^input 'cache_salt' must not be empty"):
        request_of(cache_salt="")


def test_prompts_in_a_batch_can_have_different_options():
    rows = {"max_tokens": 2, "drafter": "none"}, {"text_input": "y", "max_tokens": 3, "drafter": ""}
    read = [(words.text, request.max_tokens, request.drafter) for words, _, request in batch(*rows)]
    assert read == [("x", 2, "none"), ("y", 3, "draft_model")]


HARMLESS = {
    "temperature": 0.5,
    "top_k": 2,
    "top_p": 0.5,
    "min_p": 0.125,
    "min_tokens": 1,
    "seed": 1,
    "repetition_penalty": 1.25,
    "presence_penalty": 0.25,
    "frequency_penalty": 0.25,
    "end_id": 3,
    "stop_words": "a",
    "bad_words": "b",
    "embedding_bias_words": "c",
    "embedding_bias_weights": 1.0,
    "logit_bias_ids": 5,
    "logit_bias_values": 1.0,
    "drafter": "hybrid",
    "num_draft_tokens": 2,
    "draft_ahead": "auto",
    "prompt_lookup_num_tokens": 2,
    "max_matching_ngram_size": 1,
    "lookup_pool": "f",
    "prediction": "i",
    "use_draft_logits": False,
    "draft_acceptance_threshold": 0.0,
    "beam_width": 1,
    "num_return_sequences": 1,
    "guided_decoding_guide_type": "regex",
    "guided_decoding_guide": "a",
    "lora_name": "sql",
    "priority": -1,
    "cache_salt": "j",
}


def test_each_row_of_a_batch_has_its_own_inputs():
    other = {
        "temperature": 0.75,
        "top_k": 3,
        "top_p": 0.75,
        "min_p": 0.25,
        "min_tokens": 2,
        "seed": 2,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.125,
        "end_id": 4,
        "stop_words": "d",
        "bad_words": "e",
        "embedding_bias_words": "f",
        "embedding_bias_weights": 2.0,
        "num_draft_tokens": 3,
        "draft_ahead": "false",
        "prompt_lookup_num_tokens": 4,
        "max_matching_ngram_size": 3,
        "lookup_pool": "g",
        "prediction": "h",
        "use_draft_logits": True,
        "draft_acceptance_threshold": 0.5,
        "guided_decoding_guide_type": "choice",
        "guided_decoding_guide": '["b"]',
        "lora_name": "legal",
        "priority": 2,
        "cache_salt": "k",
    }
    first = {k: v for k, v in HARMLESS.items() if not k.startswith("logit_bias")}
    first["use_draft_logits"] = True
    one, two = batch(first, {**first, **other})
    assert one == prompt(**first)
    assert two == prompt(**first | other)
    for part in (lambda p: p.words._asdict(), lambda p: vars(p.request.sampling)):
        same = {name for name, value in part(one).items() if part(two)[name] == value}
        assert same <= {"text", "bad_words", "embedding_bias"}
    same = {name for name, value in vars(one.request).items() if vars(two.request)[name] is value}
    every_row = {
        "prompt_ids",
        "prediction",
        "max_tokens",
        "max_draft_len",
        "seeded",
        "drafter",
        "stop_strings",
        "lora_task",
    }
    assert same - vars(Options()).keys() - {"use_draft_logits"} <= every_row


def test_each_row_of_a_batch_has_its_own_bias():
    rows = [{"logit_bias_ids": token, "logit_bias_values": 2.0} for token in (5, 6)]
    biases = [read.request.sampling.embedding_bias for read in batch(*rows)]
    assert [bias.nonzero()[0].tolist() for bias in biases] == [[5], [6]]


def test_the_biases_of_an_id_that_occurs_twice_add_up():
    sampling = request_of(logit_bias_ids=[1, 1, 3], logit_bias_values=[1.0, 2.0, -5.0]).sampling
    assert sampling.embedding_bias[:5].tolist() == [0, 3, 0, -5, 0]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"beam_width": 2}, "'beam_width' must be 1; got 2"),
        ({"num_return_sequences": 2}, "'num_return_sequences' must be 1; got 2"),
        ({"drafter": "draft_model"}, "'prompt_lookup_num_tokens' requires 'drafter' to be"),
        (
            {"drafter": "prompt_lookup", "use_draft_logits": True},
            "'use_draft_logits' requires 'drafter' to be",
        ),
    ],
)
def test_a_batch_is_rejected_if_its_second_row_is_invalid(wrong, reason):
    harmless = {k: v for k, v in HARMLESS.items() if k != "draft_acceptance_threshold"}
    assert batch(harmless, harmless)
    with pytest.raises(BadRequest, match=reason):
        batch(harmless, {**harmless, **wrong})


def test_a_threshold_without_logits_is_rejected_in_any_row():
    good = {"use_draft_logits": True, "draft_acceptance_threshold": 0.5}
    assert batch(good, good)
    with pytest.raises(BadRequest, match="'draft_acceptance_threshold' requires"):
        batch(good, good | {"use_draft_logits": False})


def test_the_size_limit_of_logits_applies_to_the_whole_batch():
    rows = [{"max_tokens": length, "return_generation_logits": True} for length in (6, 2)]
    assert batch(*rows)
    rows[0]["max_tokens"] = 7
    with pytest.raises(BadRequest, match=r"5600 bytes of logits \(shape \[2, 7, 100\]\)"):
        batch(*rows)


def test_empty_words_are_dropped_except_in_bias_lists():
    words = prompt(
        stop_words=["", "stop"],
        bad_words=["bad", ""],
        embedding_bias_words=["", "up"],
        embedding_bias_weights=[1.0, 2.0],
    ).words
    assert words == TokenizerInputs("x", ("stop",), ("bad",), ("", "up"), (1.0, 2.0))


def test_parsed_prompt_ids_do_not_share_memory_with_the_input():
    ids = np.array([[3, 4]], np.int32)
    inputs = {"input_ids": ids, "max_tokens": np.array([[4]], np.int32)}
    [read] = prompts_of(inputs)
    ids[:] = 0
    assert read.input_ids.tolist() == [3, 4]
    assert read.words == TokenizerInputs("")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"temperature": 1.0}, (1.0, 1, 1.0)),
        ({"temperature": 0.0, "top_k": 5, "top_p": 0.5}, (1.0, 1, 1.0)),
        ({"temperature": 0.5}, (0.5, 0, 1.0)),
        ({"top_k": 5}, (1.0, 5, 1.0)),
        ({"top_k": 1}, (1.0, 1, 1.0)),
        ({"top_p": 0.5}, (1.0, 0, 0.5)),
        ({"top_k": 0, "top_p": 0.0, "min_p": 0.0}, (1.0, 1, 1.0)),
        ({"top_p": 1.0}, (1.0, 0, 1.0)),
        ({"min_p": 0.5}, (1.0, 0, 1.0)),
        ({"top_k": 5, "top_p": 0.0}, (1.0, 5, 1.0)),
        ({"temperature": 2.0, "top_k": 5, "top_p": 0.5}, (2.0, 5, 0.5)),
    ],
    ids=lambda part: "-".join(part) if isinstance(part, dict) else "",
)
def test_requests_are_greedy_unless_a_sampling_input_is_given(values, expected):
    sampling = request_of(**values).sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == expected


@pytest.mark.parametrize("role", ["target", "draft"])
def test_min_p_is_rejected_if_an_engine_ignores_it(role):
    settings = with_engines(SETTINGS, **{role: {"min_p": False}})
    assert request_of(settings=settings, min_p=0.0) is not None
    with pytest.raises(BadRequest, match=f"input 'min_p' isn't supported .*'s {role} engine"):
        request_of(settings=settings, min_p=0.1)


@pytest.mark.parametrize("name", ["seed", "random_seed"])
def test_random_seed_is_an_alias_of_seed(name):
    request = request_of(**{name: 2**64 - 1})
    assert (request.sampling.seed, request.seeded) == (2**64 - 1, True)


def test_requests_without_a_seed_get_a_random_one():
    assert not request_of().seeded
    assert len({request_of().sampling.seed for _ in range(4)}) == 4


def test_random_seeds_fit_63_bits(monkeypatch):
    monkeypatch.setattr(secrets, "randbits", lambda bits: 2**bits - 1)
    assert request_of().sampling.seed == 2**63 - 1


def test_min_tokens_and_penalties_are_set_in_the_request():
    read = request_of(
        min_tokens=2, repetition_penalty=1.5, presence_penalty=-0.5, frequency_penalty=0.25
    )
    assert read.min_tokens == 2
    penalties = (
        read.sampling.repetition_penalty,
        read.sampling.presence_penalty,
        read.sampling.frequency_penalty,
    )
    assert penalties == (1.5, -0.5, 0.25)


@pytest.mark.parametrize(("end_id", "end_ids"), [(None, (7, 6)), (3, (3,)), (0, (0,)), (-1, ())])
def test_end_id_overrides_the_checkpoints_end_ids(end_id, end_ids):
    assert request_of(settings=replace(SETTINGS, end_ids=(7, 6)), end_id=end_id).end_ids == end_ids


def test_the_stop_input_marks_a_stop_request():
    for value in (True, False):
        rows = validate_rows({"stop": np.array([[value]])}, "", SETTINGS)
        assert is_stop(rows) is value
    assert not is_stop([])


def test_an_empty_lora_adapter_name_means_no_adapter():
    assert request_of(lora_name="legal").lora_name == "legal"
    assert request_of(lora_name="").lora_name is None
    assert request_of().lora_name is None


TAKES_ADAPTERS = with_engines(SETTINGS, target={"lora_adapters": (), "client_adapters": True})
WEIGHTS = [[1.0, 2.0], [3.0, 4.0]]
CONFIG = [[1, 0, 1], [2, 0, 1]]


def test_each_prompt_of_a_batch_has_its_own_adapter_of_the_client():
    rows = [
        {"lora_task_id": 2**64 - 1, "lora_weights": WEIGHTS, "lora_config": CONFIG},
        {"lora_task_id": 0, "lora_weights": WEIGHTS[::-1], "lora_config": CONFIG},
    ]
    one, two = (p.request.lora_task for p in batch(*rows, settings=TAKES_ADAPTERS))
    assert (one.id, two.id) == (2**64 - 1, 0)
    assert one.arrays["lora_weights"].tolist() == [[WEIGHTS]]
    assert two.arrays["lora_weights"].tolist() == [[WEIGHTS[::-1]]]
    assert one.arrays["lora_config"].tolist() == [[CONFIG]]


def test_an_id_alone_names_an_adapter_that_the_client_sent_before():
    assert request_of(settings=TAKES_ADAPTERS, lora_task_id=7).lora_task == (7, {})
    assert request_of(settings=TAKES_ADAPTERS).lora_task is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"lora_weights": WEIGHTS, "lora_config": CONFIG},
            "input 'lora_task_id' is missing; input 'lora_weights' requires it",
        ),
        (
            {"lora_task_id": 7, "lora_config": CONFIG},
            "send inputs 'lora_weights' and 'lora_config' together",
        ),
        (
            {"lora_task_id": 7, "lora_weights": WEIGHTS},
            "send inputs 'lora_weights' and 'lora_config' together",
        ),
        (
            {"lora_task_id": 7, "lora_weights": WEIGHTS, "lora_config": CONFIG[:1]},
            "input 'lora_config' must have 2 rows, one per row of 'lora_weights'; got 1",
        ),
        (
            {"lora_task_id": [7, 8]},
            "input 'lora_task_id' must have one value per prompt; got 2",
        ),
    ],
)
def test_an_incomplete_adapter_of_the_client_is_rejected(given, words):
    assert rejection(settings=TAKES_ADAPTERS, **given) == words


def test_clients_cannot_use_the_numbers_of_the_deployments_adapters():
    assert rejection(lora_task_id=1) == (
        "input 'lora_task_id' isn't supported by this deployment; send 'lora_name'"
    )


def test_an_unknown_lora_adapter_is_rejected():
    assert rejection(lora_name="sq") == (
        "input 'lora_name': 'sq' isn't known; choose one of: sql, legal"
    )
    assert "\n" not in rejection(lora_name="\n")
    assert len(rejection(lora_name="a" * 9999)) < 200
    none = with_engines(SETTINGS, target={"lora_adapters": ()})
    assert rejection(settings=none, lora_name="sql").endswith(
        "isn't known; the deployment has none"
    )
