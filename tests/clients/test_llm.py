"""The command-line tool llm works with the gateway as an OpenAI-compatible model."""

import json

import pytest
import yaml

from .conftest import API_KEY, PROMPT


@pytest.fixture(scope="module")
def llm(run, gateway, tmp_path_factory):
    """A function that runs llm with options and returns its output."""
    folder = tmp_path_factory.mktemp("llm")
    model = {
        "model_id": "tandem",
        "model_name": "bls_stream",
        "api_base": f"{gateway.url}/v1",
        "api_key_name": "tandem",
        "supports_schema": True,
    }
    (folder / "extra-openai-models.yaml").write_text(yaml.safe_dump([model]))
    (folder / "keys.json").write_text(json.dumps({"tandem": API_KEY}))

    def printed(*options):
        given = ("-m", "tandem", "-o", "temperature", 0, "-o", "max_tokens", 24, PROMPT)
        return run("llm", *given, *options, LLM_USER_PATH=str(folder))

    return printed


def test_llm_prints_the_same_output_as_other_clients(llm, expected):
    assert llm().strip() == expected.choices[0].text.strip()


def test_llm_gets_json_for_a_schema(llm):
    schema = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]}
    assert json.loads(llm("--no-stream", "--schema", json.dumps(schema)))["x"] in (1, 2)
