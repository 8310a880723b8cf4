"""`tandem build` prints the commands in NVIDIA's documentation, and checks the settings."""

import json
import re
from pathlib import Path

import pytest
from golden import check_golden
from llamas import TENSORRT_PROFILES

from tandem.tools.cli import main
from tandem.tools.commands.build import check_num_tokens
from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment
from tandem.tools.trtllm import EXAMPLES, engine_steps, trt_engines

FACTS = json.loads((Path(__file__).parents[1] / "data" / "trtllm-1.2.1-flags.json").read_text())[
    "flags"
]


def engines_of(path):
    return trt_engines(deployment.load(path).profile)


def steps_of(path):
    return [
        step
        for name, engine in engines_of(path).items()
        for step in engine_steps(name, engine, EXAMPLES)
    ]


def flags(step):
    """Return the flags of a command: name -> value (None for a switch)."""
    return {
        name: value if equals else None
        for name, equals, value in (w.partition("=") for w in step.argv if w.startswith("--"))
    }


@pytest.mark.parametrize("name", TENSORRT_PROFILES)
def test_build_commands_equal_the_golden_files(name, shipped, models, tmp_path, capsys):
    assert main(["build", "--profile", str(shipped(name))]) == 0
    printed = capsys.readouterr().out
    plan = printed.replace(str(models), "/models").replace(str(tmp_path), "")
    check_golden(f"{name}/build.sh", plan)


@pytest.mark.parametrize("name", TENSORRT_PROFILES)
def test_build_commands_do_not_require_the_checkpoints(name, capsys):
    assert main(["build", "--profile", name]) == 0
    printed = capsys.readouterr()
    check_golden(f"{name}/build.sh", printed.out)
    assert "no folder /models/Llama-" in printed.err


def test_settings_are_checked_even_if_checkpoints_are_missing(changed, models, capsys):
    path = changed("llama-3.1-405b", {"engines.target.device_ids": [0, 1]})
    path.write_text(path.read_text().replace(str(models), "/absent"))
    assert main(["build", "--profile", str(path)]) == 1
    assert (
        "engines.target.device_ids: must list tp_size 4 * pp_size 1 / num_nodes 1 GPUs"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("name", TENSORRT_PROFILES)
def test_every_flag_exists_in_nvidias_tools(name, shipped):
    for step in steps_of(shipped(name)):
        for flag, value in flags(step).items():
            allowed = FACTS[step.tool][flag]
            assert allowed is None or value in allowed or (value is None and allowed == [])


def test_every_setting_becomes_a_flag_of_nvidias_tools(changed):
    """The settings include some that no shipped profile uses."""
    path = changed(
        "llama-3.1-70b",
        {
            "engines.target.build.gather_context_logits": True,
            "engines.target.convert.calib_dataset": "/data/calibration",
            "engines.target.convert.kv_cache_dtype": "int8",
            "engines.target.build.low_latency_gemm_plugin": "disable",
            "engines.target.build.max_input_len": 100,
            "engines.target.build.lora_plugin": "auto",
            "engines.target.build.lora_target_modules": ["attn_q", "attn_v"],
            "engines.target.build.max_lora_rank": 16,
        },
    )
    for step in steps_of(path):
        assert flags(step).keys() <= FACTS[step.tool].keys()
    convert, trtllm_build = (flags(s) for s in steps_of(path) if s.engine == "target")
    assert convert["--calib_dataset"] == "/data/calibration"
    assert trtllm_build["--gather_context_logits"] is None
    argv = next(step.argv for step in steps_of(path) if "--lora_target_modules" in step.argv)
    assert "--lora_target_modules attn_q attn_v" in " ".join(argv)


@pytest.mark.parametrize("draft", ["Llama-3.2-1B", "Llama-3.2-3B", "Llama-3.1-8B"])
def test_replacing_the_draft_model_changes_only_folders(draft, shipped):
    for name in ("llama-3.1-70b", "llama-3.1-405b"):
        before = [flags(step) for step in steps_of(shipped(name))]
        text = shipped(name).read_text()
        [chosen] = re.findall(r"/(Llama-3\.\d-\dB)-Instruct # draft", text)
        after = [flags(step) for step in steps_of(shipped(name, {chosen: draft}))]
        folders = {"--model_dir"}
        for one, other in zip(before, after, strict=True):
            assert {k for k in one if one[k] != other[k]} <= folders


def of_the_target(settings):
    return {f"engines.target.{key}": value for key, value in settings.items()}


@pytest.mark.parametrize(
    ("settings", "requests", "reported"),
    [
        ({}, 1, True),
        ({"build.max_num_tokens": 131072}, 1, False),
        ({"build.max_num_tokens": 131072}, 2, True),
        ({"build.max_num_tokens": 131072, "run.enable_chunked_context": False}, 32, False),
        ({"build.max_num_tokens": 352}, 32, True),  # 11 tokens per request: one token and its draft
    ],
)
def test_a_step_size_that_can_drop_draft_tokens_is_reported(changed, settings, requests, reported):
    engines = engines_of(changed("llama-3.1-70b", of_the_target(settings)))
    assert len([*check_num_tokens(engines, requests)]) == reported


def test_a_step_too_small_for_a_draft_is_rejected(changed):
    engines = engines_of(changed("llama-3.1-70b", of_the_target({"build.max_num_tokens": 351})))
    with pytest.raises(
        TandemError,
        match="target: max_num_tokens 351 leaves 10 tokens per step for each of 32 requests",
    ):
        [*check_num_tokens(engines, 32)]


def test_a_profile_without_tensorrt_engines_has_nothing_to_build(embedded_profile, capsys):
    assert main(["build", "--profile", str(embedded_profile)]) == 1
    assert "has no engine of kind 'tensorrtllm' to build" in capsys.readouterr().err


def test_a_checkpoint_without_a_converter_is_rejected(shipped, models):
    path = shipped("llama-2-13b-prompt-lookup", {"Llama-2-13b-hf": "other"})
    config = json.loads((models / "Llama-2-13b-hf" / "config.json").read_text())
    other = models / "other"
    other.mkdir(exist_ok=True)
    (other / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    (other / "tokenizer.json").write_bytes(
        (models / "Llama-2-13b-hf" / "tokenizer.json").read_bytes()
    )
    with pytest.raises(
        TandemError,
        match=r"engines\.target\.convert has no converter for model_type 'mamba' \(only for llama,",
    ):
        steps_of(path)
