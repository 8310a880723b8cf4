"""The `openai/` provider of litellm works, called by `ask_litellm.py`."""

import json
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "ask_litellm.py"
PROMPTS = ["def main():", "import os", "class Point:\n    def "]


@pytest.fixture(scope="module")
def results(run, gateway):
    """The results of litellm, by call."""
    return json.loads(run("python", PROGRAM, f"{gateway.url}/v1", *PROMPTS))


@pytest.fixture(scope="module")
def expected(reference):
    """The results of OpenAI's client for the prompts."""
    answers = [
        reference.completions.create(
            model="bls_stream", prompt=prompt, max_tokens=24, temperature=0
        )
        for prompt in PROMPTS
    ]
    return [
        {
            "text": answer.choices[0].text,
            "finish_reason": answer.choices[0].finish_reason,
            "usage": [answer.usage.prompt_tokens, answer.usage.completion_tokens],
        }
        for answer in answers
    ]


@pytest.mark.parametrize("call", ["whole", "stream", "awaited stream", "text", "without drafts"])
def test_output_and_usage_are_the_same_as_with_openais_client(results, expected, call):
    assert results[call] == expected[0]


def test_concurrent_chats_get_their_own_answers(results, expected):
    assert results["side by side"] == expected


@pytest.mark.parametrize(
    ("call", "kind", "status", "message"),
    [
        ("unknown model", "NotFoundError", 404, "model 'nobody' isn't served"),
        ("value out of range", "BadRequestError", 400, "top_p must be at most 1"),
        ("unknown field", "BadRequestError", 400, "unknown field 'no_such_field'"),
        ("too long", "ContextWindowExceededError", 400, "1000000 new"),
        ("wrong key", "AuthenticationError", 401, "the API key is missing or wrong"),
    ],
)
def test_errors_are_mapped_to_litellms_exception_types(results, call, kind, status, message):
    assert results[call]["kind"] == kind
    assert results[call]["status"] == status
    assert message in results[call]["message"]
