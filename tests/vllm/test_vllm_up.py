"""`tandem up` works with both engines on vLLM."""

import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from checkpoints import write_adapter
from entries import ask, ask_one
from live_triton import alive
from transformers import AutoModelForCausalLM
from tritonclient.utils import InferenceServerException
from up import read_greeting, stubs_of, up

pytestmark = pytest.mark.engines
PROMPTS = ["def add(", "import json\n", "x = 1\nprint(", "class Point:\n    def "]


def test_drafts_do_not_change_adapted_output_and_up_ends_if_vllm_dies(embedded_profile, tmp_path):
    """A single test covers everything, because the server takes half a minute to start."""
    profile = yaml.safe_load(embedded_profile.read_text())
    engines = profile["engines"]
    engines["draft"] = engines["target"] | {"checkpoint": engines["draft"]["checkpoint"]}
    del engines["draft"]["max_draft_len"]
    for name, engine in engines.items():
        engine["gpu_memory_fraction"] = 0.4
        engine["lora_adapters"] = {"sql": str(tmp_path / name)}
        model = AutoModelForCausalLM.from_pretrained(engine["checkpoint"])
        write_adapter(tmp_path / name, model, seed=1, targets=("q_proj", "down_proj"))
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(profile))
    with up("--profile", path, "--no-gateway") as process:
        greeting = read_greeting(process)
        server = SimpleNamespace(grpc_url=re.search(r"gRPC +(\S+)", greeting)[1])
        alone = ask(server, "ensemble", PROMPTS, max_tokens=24)
        drafted = ask(server, "bls", PROMPTS, max_tokens=24, drafter="draft_model")
        assert [answer.ids for answer in drafted] == [answer.ids for answer in alone]
        assert sum(answer.accepted_tokens for answer in drafted) > 0
        adapted = ask(server, "ensemble", PROMPTS, max_tokens=24, lora_name="sql")
        drafted = ask(server, "bls", PROMPTS, max_tokens=24, drafter="draft_model", lora_name="sql")
        assert [answer.ids for answer in drafted] == [answer.ids for answer in adapted]
        assert [answer.ids for answer in adapted] != [answer.ids for answer in alone]
        processes = stubs_of(process)
        vllm = [number for number in processes if "tandem.engines.vllm" in command_of(number)]
        assert len(vllm) == 2, [command_of(number) for number in processes]
        for number in vllm:
            os.kill(number, signal.SIGKILL)
        with pytest.raises(InferenceServerException, match="vLLM's process ended with status -9"):
            ask_one(server, "bls", "x", max_tokens=4)
        assert process.wait(120) == 1
        said = process.stderr.read()
        assert "the process of model 'target' ended, and Triton doesn't restart it" in said
        assert not any(map(alive, processes))


def command_of(number):
    return Path(f"/proc/{number}/cmdline").read_text(errors="replace")
