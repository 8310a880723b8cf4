"""`tandem run` works with the options of NVIDIA's documentation."""

import os
import re
import signal
from pathlib import Path

import pytest
import torch
from benchmarks.soak.processes import stub_pid
from checkpoints import write_pair
from live_triton import leftovers
from transformers import AutoModelForCausalLM, AutoTokenizer

from tandem.tools import cli as command
from tandem.tools.client.client import Client, inputs_for
from tandem.tools.errors import TandemError
from tandem.tools.triton.launch import PREFIX
from tandem.tools.triton.server import serving

from .conftest import emulated_zero

pytestmark = pytest.mark.heavy

PROMPTS = ["How does Draft-Sampling work?", "def add(first, second):", "x = 1\nprint("]
OURS = f"{PREFIX}{os.getpid()}-"
SHOWN = 'Input [Text {}]: "{}"\nOutput [Text {} Beam 0]: "{}"\n'


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A folder with small random checkpoints."""
    folder = tmp_path_factory.mktemp("pair")
    write_pair(folder)
    return folder


@pytest.fixture
def controls_output(pair):
    """A function that returns the target's output by Hugging Face, without drafts."""

    def output(max_tokens):
        tokenizer = AutoTokenizer.from_pretrained(pair / "tokenizer")
        target = AutoModelForCausalLM.from_pretrained(pair / "target", dtype=torch.float32).eval()
        shown = ""
        for at, prompt in enumerate(PROMPTS):
            inputs = tokenizer(prompt, return_tensors="pt")
            ids = target.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)[0]
            new = ids[inputs["input_ids"].shape[1] :]
            text = tokenizer.decode(new, skip_special_tokens=True)
            shown += SHOWN.format(at, prompt, at, text)
        return shown

    return output


def test_the_draft_target_command_prints_the_output_of_the_target(pair, controls_output, capsys):
    before = set(leftovers(OURS))
    arguments = [
        *("--tokenizer_dir", str(pair / "tokenizer"), "--engine_dir", str(pair / "target")),
        *("--draft_engine_dir", str(pair / "draft"), "--max_output_len=40"),
        *("--draft_target_model_config", "=", "[4,[0],[0],False]", "--kv_cache_enable_block_reuse"),
        *(f"--input_text={prompt}" for prompt in PROMPTS),
    ]
    assert command.main(["run", *arguments]) == 0
    shown = capsys.readouterr()
    assert shown.out == controls_output(40)
    accepted = re.findall(r"acceptance (\d+)%", shown.err)
    assert len(accepted) == len(PROMPTS)
    assert max(map(int, accepted)) > 0
    assert set(leftovers(OURS)) <= before


def test_an_interrupted_command_stops_its_server(pair, monkeypatch):
    before = set(leftovers(OURS))

    def interrupt(*_):
        assert set(leftovers(OURS)) - before
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "answer", interrupt)
    arguments = ["--engine-dir", str(pair / "target"), "--tokenizer-dir", str(pair / "tokenizer")]
    assert command.main(["run", *arguments, "--input-text", "x"]) == 130
    assert set(leftovers(OURS)) <= before


def test_a_request_fails_with_the_reason_if_the_server_loses_its_model(tmp_path):
    """Triton itself would let the client wait forever."""

    def ask():
        with serving(planned) as server, Client(server.grpc_url) as asking:
            for number, _ in enumerate(asking.stream("bls_stream", inputs_for("x", 2000, {}))):
                if number == 0:
                    os.kill(stub_pid(server, "bls_stream"), signal.SIGKILL)

    planned = emulated_zero(tmp_path, step_ms={"target": 5.0})
    with pytest.raises(TandemError) as failed:
        ask()
    reason, _, log = str(failed.value).partition("; log: ")
    # If the killed process held a lock of Triton's shared memory, Triton ends first.
    assert reason.startswith(("the process of model 'bls_stream' ended", "Triton "))
    Path(log).unlink()
