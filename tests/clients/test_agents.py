"""OpenAI's Agents SDK, pydantic-ai and Anthropic's SDK work, called by `ask_agents.py`."""

import json
from pathlib import Path

import pytest

from .conftest import API_KEY, PROMPT

PROGRAM = Path(__file__).parent / "ask_agents.py"


@pytest.fixture(scope="module")
def given(run, gateway, stop):
    """The results of `ask_agents.py`, by client."""
    return json.loads(run("python", PROGRAM, gateway.url, API_KEY, PROMPT, stop))


@pytest.mark.parametrize("name", ["openai-agents", "pydantic-ai"])
def test_agent_sdks_get_the_same_output_as_other_clients(given, expected, stop, name):
    assert set(given[name]) == {expected.choices[0].text.partition(stop)[0]}


def test_anthropics_client_gets_the_same_output_as_other_clients(given, expected):
    assert set(given["anthropic"]["texts"]) == {expected.choices[0].text}
    assert given["anthropic"]["count"] == expected.usage.prompt_tokens
    assert "the API key is missing or wrong" in given["anthropic"]["wrong key"]
