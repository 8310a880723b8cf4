"""Profiles support engines of `kind: vllm`."""

import json

import pytest
from error_lines import error_line
from profile_files import plan

from tandem.engines import kinds
from tandem.tools.commands.doctor import examine_profile
from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment
from tandem.tools.triton import repository

VLLM = {"kind": "vllm"}
DRAFT = VLLM | {"gpu_memory_fraction": 0.1}


def test_a_vllm_target_supports_every_drafter(folder):
    planned = plan(folder, DRAFT, **VLLM)
    assert planned.drafters == ("hybrid", "draft_model", "prompt_lookup", "none")
    assert planned.target.max_draft_len == 16
    assert planned.target.capabilities == kinds.VLLM


def test_the_drafter_is_engine_if_vllm_speculates_by_itself(folder):
    own = {"method": "ngram", "num_speculative_tokens": 4}
    planned = plan(folder, **VLLM, speculative_config=own)
    assert json.loads(planned.target.parameters["speculative_config"]) == own
    assert planned.drafters == ("engine",)
    assert planned.target.max_draft_len == 0


def test_vllms_own_draft_model_is_suggested_if_it_could_replace_the_draft_engine(folder):
    advice = plan(folder, DRAFT, **VLLM).advice
    assert "speculative_config" in advice
    assert advice in [finding.fix for finding in examine_profile(folder / "profile.yaml")]
    assert plan(folder, VLLM | {"device_ids": [1]}, **VLLM, device_ids=[0]).advice is None
    assert plan(folder, {"kind": "torch"}, **VLLM).advice is None


def test_prompt_lookup_inside_vllm_is_suggested_if_nothing_needs_the_loop(folder):
    advice = plan(folder, **VLLM).advice
    assert "prompt lookup inside vLLM (speculative_config)" in advice
    own = {"method": "prompt_lookup", "num_speculative_tokens": 16}
    assert plan(folder, **VLLM, speculative_config=own).advice is None


def test_a_path_to_python_is_relative_to_the_profile(folder):
    assert plan(folder, **VLLM, python="venv/bin/python").target.parameters["python"] == str(
        folder / "venv" / "bin" / "python"
    )
    assert plan(folder, **VLLM, python="python3.12").target.parameters["python"] == "python3.12"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"max_batch_tokens": 1024}, "engines.target: max_batch_tokens must be greater than 2048"),
        (
            {"arguments": {"dtype": "half"}},
            "engines.target: arguments.dtype is set from other keys",
        ),
    ],
)
def test_conflicting_settings_are_rejected_with_their_key(folder, target, words):
    assert words in error_line(TandemError, plan, folder, **VLLM, **target)


def test_two_engines_that_exceed_a_gpus_memory_are_rejected(folder):
    with pytest.raises(TandemError, match=r"engines\.draft\.gpu_memory_fraction: .*; got 1\.1;"):
        plan(folder, DRAFT | {"gpu_memory_fraction": 0.2}, **VLLM, gpu_memory_fraction=0.9)
    plan(folder, {"kind": "vllm", "device_ids": [1]}, **VLLM, device_ids=[0])


def test_gpus_that_vllm_would_not_use_are_rejected(folder):
    target = VLLM | {"device_ids": [0, 1]}
    line = r"engines\.target\.device_ids: must list as many GPUs as vLLM uses, 1; got 2; set"
    with pytest.raises(TandemError, match=line):
        plan(folder, **target)
    plan(folder, **target, tensor_parallel_size=2)
    plan(folder, **target, arguments={"pipeline_parallel_size": 2})


def test_a_rendered_model_contains_no_weights(folder, tmp_path):
    repository.render(plan(folder, **VLLM), tmp_path / "models")
    version = tmp_path / "models" / "target" / "1"
    assert sorted(path.name for path in version.iterdir()) == ["model.py", "tandem"]
    assert (version / "tandem" / "engines" / "vllm" / "worker.py").is_file()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama-3.1-70b-vllm", {}),
        ("llama-3.1-70b-vllm-2gpu", {}),
        (
            "qwen2.5-7b-vllm",
            {
                "Qwen2.5-7B-Instruct": "Llama-3.1-8B-Instruct",
                "Qwen2.5-0.5B-Instruct": "Llama-3.2-1B-Instruct",
            },
        ),
    ],
)
def test_shipped_profiles_fit_both_engines_on_one_gpu(shipped, name, changes):
    planned = deployment.load(shipped(name, changes))
    engines = planned.profile.engines
    assert engines.target.gpu_memory_fraction + engines.draft.gpu_memory_fraction <= 1
    assert planned.loop_settings().drafter == "hybrid"
