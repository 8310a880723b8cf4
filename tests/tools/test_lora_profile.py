"""LoRA adapters in a profile."""

import json

import pytest
import yaml
from checkpoints import write_empty, write_tokenizer

from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment
from tandem.tools.triton import repository

ENTRIES = [{"name": "bls_stream", "kind": "stream"}]


@pytest.fixture
def plan(tmp_path):
    """Return the deployment of a target with changes to its section, and adapters on disk."""
    size = write_tokenizer(tmp_path / "target")
    write_empty(tmp_path / "target", size, architectures=["LlamaForCausalLM"], model_type="llama")
    changes = {"sql": {}, "dora": {"use_dora": True}, "large": {"r": 513}}
    changes["ranks"] = {"rank_pattern": {"q_proj": 2}}
    for name, changed in changes.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_model.safetensors").touch()
        config = {"peft_type": "LORA", "r": 20} | changed
        (tmp_path / name / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "adapter_model.safetensors").touch()

    def load(draft=None, **target):
        engines = {"target": {"checkpoint": "target"} | target}
        if draft:
            engines["draft"] = {"checkpoint": "target"} | draft
        whole = {"name": "test", "engines": engines, "entries": ENTRIES}
        (tmp_path / "profile.yaml").write_text(yaml.safe_dump(whole))
        return deployment.load(tmp_path / "profile.yaml")

    return load


@pytest.mark.parametrize("kind", ["torch", "vllm"])
def test_adapters_are_copied_into_the_rendered_model(plan, tmp_path, kind):
    planned = plan(kind=kind, lora_adapters={"sql": "sql"})
    assert planned.loop_settings().target.lora_adapters == ("sql",)
    assert json.loads(planned.target.parameters["lora_adapters"]) == ["lora-1"]
    repository.render(planned, tmp_path / "models")
    rendered = tmp_path / "models" / "target" / "1" / "lora-1"
    assert (rendered / "adapter_config.json").exists()


def test_the_draft_may_have_its_own_adapter_for_a_name_of_the_target(plan):
    settings = plan(
        {"lora_adapters": {"legal": "sql"}}, lora_adapters={"sql": "sql", "legal": "sql"}
    ).loop_settings()
    assert settings.draft.lora_adapters == ("legal",)
    with pytest.raises(TandemError, match=r"draft\.lora_adapters\.x: .*choose one of: sql$"):
        plan({"lora_adapters": {"x": "sql"}}, lora_adapters={"sql": "sql"})
    with pytest.raises(TandemError, match=r"draft\.lora_adapters\.x: .*the target has none"):
        plan({"lora_adapters": {"x": "sql"}})


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"lora_adapters": {"sql": "nowhere"}}, "lora_adapters.sql: .*nowhere': can't be read"),
        ({"lora_adapters": {"x": "bare"}}, "x: .*can't be read: .*adapter_config.json"),
        (
            {"kind": "vllm", "lora_adapters": {"x": "ranks"}},
            "lora_adapters.x: .*rank_pattern isn't supported by vLLM",
        ),
        (
            {"kind": "vllm", "lora_adapters": {"x": "large"}},
            "lora_adapters.x: .*r must be between 1 and 512; got 513",
        ),
        ({"lora_adapters": {"": "sql"}}, "lora_adapters.*at least 1 character"),
        ({"lora_adapters": {"x": "dora"}}, "lora_adapters.x: .*use_dora True isn't supported"),
        (
            {"lora_adapters": {"bls_stream": "sql"}},
            "lora_adapters.bls_stream: name 'bls_stream' is already",
        ),
        (
            {"lora_adapters": {"sql": "sql"}, "paged_kv_cache": True},
            "lora_adapters and paged_kv_cache can't be combined",
        ),
        ({"kind": "emulated", "lora_adapters": {}}, "unknown key"),
    ],
)
def test_adapters_that_cannot_be_served_are_rejected(plan, target, words):
    with pytest.raises(TandemError, match=words):
        plan(**target)
