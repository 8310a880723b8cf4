"""LangChain and instructor work, called by `ask_frameworks.py`."""

import json
from pathlib import Path

import pytest

from .conftest import PROMPT

PROGRAM = Path(__file__).parent / "ask_frameworks.py"


@pytest.fixture(scope="module")
def given(run, gateway, stop):
    return json.loads(run("python", PROGRAM, gateway.url, PROMPT, stop))


@pytest.mark.parametrize("api", ["chats", "responses"])
def test_langchain_gets_text_structured_answers_and_tool_calls(given, expected, stop, api):
    assert set(given[api]["texts"]) == {expected.choices[0].text.partition(stop)[0]}
    (usage,) = given[api]["usage"]
    assert usage["input_tokens"] == expected.usage.prompt_tokens
    assert given[api]["after call"] > expected.usage.prompt_tokens
    assert given[api]["points"] == given["chats"]["points"]


def test_instructor_gets_structured_answers_in_each_mode(given):
    for point in given["instructor"]:
        assert point.keys() == {"x", "name"}
