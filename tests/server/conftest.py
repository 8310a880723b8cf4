"""Live Triton servers that tests share. Tests must restore the state of their server."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import openai
import pytest
import yaml
from benchmarks import faulty
from live_triton import KilledServer
from paths import ROOT
from tokenizers import Tokenizer

from tandem.gateway import server as gateway_server
from tandem.gateway.app import create_app
from tandem.gateway.server import listen
from tandem.gateway.settings import GatewaySettings
from tandem.tools.profiles import deployment
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.triton import repository
from tandem.tools.triton.server import TritonServer

EMULATED_ZERO = ROOT / "tandem" / "profiles" / "emulated-zero.yaml"
MAX_POOL_TOKENS = 10_000
# A document of the pool team-a and a line of the pool team-b of `emulated`.
DOCUMENT = "def late_fee(days, members): return days * members * 9 if days > 3 else members - 4"
LINE = "class Invoice(Paper): sender = 'unknown'; address = 'none'; total = 0; paid = False"
CHAT_TEMPLATE = (
    "{% for m in messages %}# {{ m.role }}\n{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}# assistant\n{% endif %}"
)
FAULTY_DRAFTER = """
from tandem.bls.drafters.registry import DrafterKind
from tandem.bls.drafters.drafter import Drafter

DRAFTER = DrafterKind(name="faulty", description="an error", module=__name__)

class Faulty(Drafter):
    def propose(self, sequence, limit, engines):
        raise IndexError("what was sought")

def make(request, context):
    return Faulty()
"""


@pytest.fixture(scope="session")
def embedded(embedded_profile: Path) -> Deployment:
    """The deployment that `server` runs."""
    return deployment.load(embedded_profile)


@pytest.fixture(scope="session")
def server(embedded: Deployment, tmp_path_factory) -> Iterator[TritonServer]:
    """A server of the embedded profile: PyTorch engines, a draft model, up to 64 requests.

    `server.faults` makes models fail or slows them down.
    """
    with serving_fallibly(embedded, tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="session")
def hugging_face(embedded: Deployment) -> Any:
    """The target of `server`, loaded with transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)  # the server needs the cores
    checkpoint = embedded.profile.engines.target.checkpoint
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def tokenizer(embedded: Deployment) -> Tokenizer:
    return Tokenizer.from_file(str(embedded.tokenizer.folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def emulated(tmp_path_factory) -> Iterator[TritonServer]:
    """A server with emulated engines that answer immediately, and with all optional features.

    The server has lookup pools, two custom drafters (`repeat` and `faulty`), and capacity for 8
    running and 12 waiting requests. Engine answers include the prompt unless a call excludes it.
    `server.faults` makes models fail.
    """
    folder = tmp_path_factory.mktemp("emulated")
    shutil.copy(ROOT / "examples" / "drafters" / "repeat.py", folder)
    (folder / "faulty.py").write_text(FAULTY_DRAFTER)
    (folder / "pools" / "team-a").mkdir(parents=True)
    (folder / "pools" / "team-a" / "fees.py").write_text(DOCUMENT)
    (folder / "pools" / "team-b.jsonl").write_text(json.dumps({"text": LINE}) + "\n")
    planned = emulated_zero(
        folder,
        decoding={
            "draft_len": 10,
            "draft_ahead": False,
            "prompt_lookup": {"max_pool_tokens": MAX_POOL_TOKENS, "pools": str(folder / "pools")},
        },
        drafters=[{"module": "repeat.py", "settings": {"period": 3}}, {"module": "faulty.py"}],
        admission={"max_requests": 8, "max_queue": 12},
        engine={"exclude_input_in_output": False},
    )
    with serving_fallibly(planned, folder) as running:
        yield running


@contextmanager
def gateway_to(server: TritonServer, tokenizer: Path, **settings: Any) -> Iterator[str]:
    """Run a gateway to a server, and yield the URL of the gateway."""
    app = create_app(GatewaySettings(server.grpc_url, tokenizer, **settings))
    with listen("127.0.0.1", 0) as bound, gateway_server.serving(app, bound):
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@contextmanager
def openai_client(url: str) -> Iterator[openai.OpenAI]:
    """Yield OpenAI's client for a gateway. It never retries."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def gateway_url(server, embedded, tmp_path_factory) -> Iterator[str]:
    """The URL of a gateway to `server`, whose tokenizer has a chat template."""
    folder = tmp_path_factory.mktemp("gateway") / "tokenizer"
    shutil.copytree(embedded.tokenizer.folder, folder)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    with gateway_to(server, folder) as url:
        yield url


@pytest.fixture
def client(gateway_url) -> Iterator[openai.OpenAI]:
    with openai_client(gateway_url) as made:
        yield made


@pytest.fixture(scope="session")
def fallible(tmp_path_factory) -> Callable[..., AbstractContextManager[TritonServer]]:
    """A function that serves emulated engines with `server.faults`.

    It takes the keywords of `emulated_zero`.
    """

    @contextmanager
    def start(**sections: Any) -> Iterator[TritonServer]:
        folder = tmp_path_factory.mktemp("fallible")
        with serving_fallibly(emulated_zero(folder, **sections), folder) as running:
            yield running

    return start


def emulated_zero(
    folder: Path,
    *,
    engine: Mapping[str, Any] = MappingProxyType({}),
    step_ms: Mapping[str, float] = MappingProxyType({}),
    **sections: Any,
) -> Deployment:
    """Return a deployment with emulated engines that answer immediately.

    The draft model drafts. engine: settings of both engines. step_ms: step duration by engine, in
    milliseconds. Other keywords are sections of the profile.
    """
    profile = yaml.safe_load(EMULATED_ZERO.read_text()) | sections
    profile["decoding"] = {"drafter": "draft_model", **profile.get("decoding", {})}
    for job, section in profile["engines"].items():
        section["tokenizer"] = str(EMULATED_ZERO.parent / section["tokenizer"])
        section |= {"step_ms": step_ms.get(job, 0.0), **engine}
    file = folder / "profile.yaml"
    file.write_text(yaml.safe_dump(profile))
    return deployment.load(file)


@contextmanager
def serving_fallibly(planned: Deployment, folder: Path) -> Iterator[TritonServer]:
    """Serve a deployment whose models fail if `server.faults` says so."""
    stopped = serving(planned, folder)
    faulty.plant(stopped.repository)
    stopped.faults = faulty.Faults(stopped.repository)
    stopped.tokenizer = planned.tokenizer.folder
    with stopped as running:
        yield running


def serving(
    planned: Deployment, folder: Path, kind: type[TritonServer] = KilledServer
) -> TritonServer:
    """Render a deployment into a folder, and return a server for it that isn't started yet."""
    models = folder / "repository"
    repository.render(planned, models, link=True)
    return kind(models, thread_pool_size=planned.thread_pool_size)
