"""Profiles support LoRA adapters."""

import json

import numpy as np
import pytest
from profile_files import plan

from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment
from tandem.tools.triton import repository


@pytest.fixture
def adapters(folder):
    """A folder for a profile, with engines and adapters."""
    changes = {"sql": {}, "dora": {"use_dora": True}, "large": {"r": 513}}
    changes["ranks"] = {"rank_pattern": {"q_proj": 2}}
    for name, changed in changes.items():
        (folder / name).mkdir()
        (folder / name / "adapter_model.safetensors").touch()
        config = {"peft_type": "LORA", "r": 20} | changed
        (folder / name / "adapter_config.json").write_text(json.dumps(config))
    (folder / "bare").mkdir()
    (folder / "bare" / "adapter_model.safetensors").touch()
    return folder


@pytest.mark.parametrize("kind", ["torch", "vllm", "llmapi"])
def test_adapters_are_copied_into_the_rendered_model(adapters, tmp_path, kind):
    planned = plan(adapters, kind=kind, lora_adapters={"sql": "sql"})
    assert planned.loop_settings().target.lora_adapters == ("sql",)
    assert json.loads(planned.target.parameters["lora_adapters"]) == ["lora-1"]
    repository.render(planned, tmp_path / "models")
    rendered = tmp_path / "models" / "target" / "1" / "lora-1"
    assert (rendered / "adapter_config.json").exists()


def test_the_draft_can_have_its_own_adapter_of_the_same_name(adapters):
    settings = plan(
        adapters, {"lora_adapters": {"legal": "sql"}}, lora_adapters={"sql": "sql", "legal": "sql"}
    ).loop_settings()
    assert settings.draft.lora_adapters == ("legal",)
    with pytest.raises(TandemError, match=r"draft\.lora_adapters\.x: .*choose one of: sql$"):
        plan(adapters, {"lora_adapters": {"x": "sql"}}, lora_adapters={"sql": "sql"})
    with pytest.raises(TandemError, match=r"draft\.lora_adapters\.x: .*the target has none"):
        plan(adapters, {"lora_adapters": {"x": "sql"}})


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
            "lora_adapters.x: .*r must be at most 512; got 513",
        ),
        (
            {"kind": "llmapi", "lora_adapters": {"x": "ranks"}},
            "lora_adapters.x: .*rank_pattern isn't supported by TensorRT-LLM",
        ),
        (
            {
                "kind": "llmapi",
                "lora_adapters": {"sql": "sql"},
                "speculative_config": {
                    "decoding_type": "Eagle3",
                    "max_draft_len": 3,
                    "use_dynamic_tree": True,
                },
            },
            "speculative_config.use_dynamic_tree and lora_adapters can't be combined",
        ),
        ({"lora_adapters": {"": "sql"}}, "lora_adapters.*at least 1 character"),
        ({"lora_adapters": {"x": "dora"}}, "lora_adapters.x: .*use_dora True isn't supported"),
        (
            {"lora_adapters": {"bls_stream": "sql"}},
            "lora_adapters.bls_stream: name 'bls_stream' is already",
        ),
        ({"kind": "emulated", "lora_adapters": {}}, "unknown key"),
    ],
)
def test_adapters_that_cannot_be_served_are_rejected(adapters, target, words):
    with pytest.raises(TandemError, match=words):
        plan(adapters, **target)


@pytest.fixture
def adapted_tensorrt(changed, tmp_path):
    """A function that returns the deployment of a TensorRT target with an adapter's arrays."""

    def load(plugin="auto", **arrays):
        for name, array in arrays.items():
            np.save(tmp_path / f"model.{name}.npy", array)
        settings = {"build.lora_plugin": plugin, "lora_adapters": {"sql": str(tmp_path)}}
        path = changed("llama-2-7b-13b", {f"engines.target.{k}": v for k, v in settings.items()})
        return deployment.load(path)

    return load


WEIGHTS, CONFIG = np.float16([[[1, 2]]]), np.int32([[[1, 0, 1]]])


def test_adapters_of_a_tensorrt_target_are_copied_for_the_loop(adapted_tensorrt, tmp_path):
    planned = adapted_tensorrt(lora_weights=WEIGHTS, lora_config=CONFIG)
    target = planned.loop_settings().target
    assert (target.lora_adapters, target.client_adapters) == (("sql",), False)
    repository.render(planned, tmp_path / "models")
    copied = sorted(path.name for path in (tmp_path / "models/bls_stream/1/lora-1").iterdir())
    assert copied == ["model.lora_config.npy", "model.lora_weights.npy"]


@pytest.mark.parametrize(("plugin", "allowed"), [("auto", True), ("disable", False), (None, False)])
def test_clients_send_their_own_adapters_to_an_engine_that_has_the_plugin(changed, plugin, allowed):
    path = changed("llama-2-7b-13b", {"engines.target.build.lora_plugin": plugin})
    assert deployment.load(path).loop_settings().target.client_adapters == allowed


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, r"lora_adapters.sql: can't read .*model.lora_weights.npy"),
        (
            {"lora_weights": np.float32(WEIGHTS), "lora_config": CONFIG},
            r"must have shape \[1, n, m\] and type float16; got \[1, 1, 2\] and float32",
        ),
        (
            {"lora_weights": WEIGHTS, "lora_config": CONFIG, "plugin": "disable"},
            "build.lora_plugin: must be set to a type, such as auto, because lora_adapters is set",
        ),
    ],
    ids=["missing", "float32", "engine without LoRA"],
)
def test_adapters_that_a_tensorrt_engine_cannot_apply_are_rejected(adapted_tensorrt, given, words):
    with pytest.raises(TandemError, match=words):
        adapted_tensorrt(**given)
