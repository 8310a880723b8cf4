"""Input sizes are limited, and unknown inputs are rejected."""

import numpy as np
import pytest
from client_inputs import SETTINGS, batch, prompt, rejection

from tandem.bls.errors import BadRequest
from tandem.bls.inputs import MAX_PARAMETERS_BYTES, TRITON_PARAMETERS, check_sizes
from tandem.bls.settings import RequestLimits
from tandem.contract import entry


def test_the_size_limit_of_words_applies_to_the_whole_batch():
    rows = [{"stop_words": "a" * 10}, {"stop_words": "b" * 10}]
    assert batch(*rows)
    rows[1]["stop_words"] += "b"
    with pytest.raises(BadRequest, match=r"^input 'stop_words': 21 bytes in total"):
        batch(*rows)


def test_sizes_are_checked_before_strings_are_decoded():
    nothing = np.broadcast_to(np.array(None, object), (1, 10**9))
    with pytest.raises(BadRequest, match="has 1000000000 words per prompt; the limit is 1024"):
        check_sizes({entry.BAD_WORDS: nothing}, RequestLimits())


def test_text_of_any_size_is_accepted_if_no_limit_is_set():
    check_sizes({entry.TEXT_INPUT: np.array([[b"x" * 10**6]], object)}, RequestLimits())


def test_the_size_limit_of_text_applies_to_the_longest_prompt():
    texts = np.array([[b"x" * 51], [b"x"]], object)
    with pytest.raises(BadRequest, match=r"^input 'text_input' has 51 bytes"):
        check_sizes({entry.TEXT_INPUT: texts}, SETTINGS)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("temprature", "input 'temprature' isn't known; did you mean 'temperature'?"),
        ("max_tokens", "input 'max_tokens' must be a tensor; it was sent as a parameter"),
        ("zzzzzzzz", "input 'zzzzzzzz' isn't known"),
        ("a\\nb", "input 'a\\nb' isn't known"),
        ("z" * 40, f"input '{'z' * 40}' isn't known"),
        ("z" * 41, f"input '{'z' * 40}...' isn't known"),
    ],
)
def test_unknown_inputs_are_reported_in_one_line(key, hint):
    assert rejection(parameters=f'{{"{key}": 1}}') == hint


def test_tritons_own_parameters_are_accepted():
    for key in (*TRITON_PARAMETERS, "triton_anything"):
        assert prompt(parameters=f'{{"{key}": 1}}')


def test_the_size_of_request_parameters_is_limited():
    longest = '{"priority": "%s"}'
    filled = longest % ("x" * (MAX_PARAMETERS_BYTES - len(longest) + 2))
    assert prompt(parameters=filled)
    assert rejection(parameters=filled + " ") == (
        "the request's parameters have 65537 bytes; the limit is 65536; send inputs instead"
    )


def test_errors_quote_client_text_briefly_on_one_line():
    assert "; got 'a\\na\\na" in rejection(drafter="a\n" * 500)
