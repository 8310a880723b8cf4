"""Runs third-party clients in their own environment, with `tandem up` and its gateway."""

import os
import shutil
import signal
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import openai
import pytest
from openai.types import Completion
from paths import ROOT
from up import gateway_of, read_greeting, up

CLIENTS = ROOT / ".venv" / "clients"
API_KEY = "key-of-the-clients"
PROMPT = "def main():"
# The comment makes the gateway parse tool calls.
CHAT_TEMPLATE = "{# <tool_call> #}{% for m in messages %}{{ m.content }}{% endfor %}"


class Gateway(NamedTuple):
    """A running gateway."""

    url: str

    def counters(self) -> Counter[str]:
        """Return the gateway's counters, by name and labels in Prometheus format."""
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return Counter({name: float(value) for name, _, value in samples})


@pytest.fixture(scope="session")
def pair(tmp_path_factory) -> Path:
    """The demo pair, with a chat template that renders only the content of messages."""
    folder = tmp_path_factory.mktemp("pair")
    for model in ("target", "draft"):
        shutil.copytree(ROOT / "tandem" / "demo" / model, folder / model)
        (folder / model / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


@pytest.fixture(scope="session")
def gateway(pair: Path) -> Iterator[Gateway]:
    """The gateway of a live `tandem up`. It requires an API key."""
    models = ("--target", pair / "target", "--draft", pair / "draft")
    with up(*models, TANDEM_API_KEY=API_KEY) as process:
        yield Gateway(gateway_of(read_greeting(process)))


@pytest.fixture(scope="session")
def reference(gateway: Gateway) -> Iterator[openai.OpenAI]:
    """OpenAI's client, as a reference for the other clients."""
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=API_KEY, max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def expected(reference: openai.OpenAI) -> Completion:
    """The greedy completion of `PROMPT`, which has 24 tokens."""
    return reference.completions.create(
        model="bls_stream", prompt=PROMPT, max_tokens=24, temperature=0
    )


@pytest.fixture(scope="session")
def stop(expected: Completion) -> str:
    """A stop string, because the Agents SDK raises an error if max_tokens cuts a stream."""
    return expected.choices[0].text[-4:]


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Callable[..., str]:
    """A function that runs a program of the clients' environment and returns its output."""
    if not (CLIENTS / "installed").is_file():
        pytest.skip("the clients are not installed (1.2 GB): make test-clients does it")
    home = tmp_path_factory.mktemp("home")
    environment = os.environ | {
        "HOME": str(home),
        "TMPDIR": str(home),  # aiperf leaves folders in it
        "HF_HOME": str(home / "huggingface"),
        "HF_ENDPOINT": "http://127.0.0.1:9",  # no server listens at this address
        "HF_HUB_OFFLINE": "",  # otherwise aiperf rejects tokenizer folders
        "HF_DATASETS_OFFLINE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENAI_API_KEY": API_KEY,
    }

    def ended(program: str, *arguments: object, folder: Path = home, **variables: str) -> str:
        with subprocess.Popen(
            [CLIENTS / "bin" / program, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environment | variables,
            start_new_session=True,
        ) as process:
            try:
                printed, said = process.communicate(timeout=300)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # including its child processes
                raise
        assert process.returncode == 0, printed + said
        return printed

    return ended
