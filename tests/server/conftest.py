"""Live Triton servers: one that all tests share, and special ones."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import small
import yaml
from benchmarks import faulty
from checkpoints import write_pair
from live_triton import KilledServer

from tandem.gateway import server as gateway_server
from tandem.gateway.app import create_app
from tandem.gateway.server import listen
from tandem.gateway.settings import GatewaySettings
from tandem.tools.profiles import deployment
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.triton import repository
from tandem.tools.triton.server import TritonServer

EMULATED_ZERO = Path(__file__).resolve().parents[2] / "profiles" / "emulated-zero.yaml"
CHAT_TEMPLATE = (
    "{% for m in messages %}# {{ m.role }}\n{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}# assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def embedded(embedded_profile: Path) -> Deployment:
    """What the shared server serves: its lengths, ids and names."""
    return deployment.load(embedded_profile)


@pytest.fixture(scope="session")
def server(embedded: Deployment, tmp_path_factory) -> Iterator[TritonServer]:
    """The server that all tests share, on the embedded profile. Leave it as you found it."""
    with serving(embedded, tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="session")
def gateway_url(server, embedded, tmp_path_factory) -> Iterator[str]:
    """Where a gateway to the shared server is found; its tokenizer has a chat template."""
    folder = tmp_path_factory.mktemp("gateway") / "tokenizer"
    shutil.copytree(embedded.tokenizer.folder, folder)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    app = create_app(GatewaySettings(server.grpc_url, folder))
    with listen("127.0.0.1", 0) as bound, gateway_server.serving(app, bound):
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def serve(tmp_path_factory) -> Iterator[Callable[[Path | Deployment], TritonServer]]:
    """Start a server of one's own, on a profile's file or a deployment; it ends with the test."""
    with ExitStack() as servers:

        def start(served: Path | Deployment) -> TritonServer:
            planned = deployment.load(served) if isinstance(served, Path) else served
            folder = tmp_path_factory.mktemp("server")
            return servers.enter_context(serving(planned, folder))

        yield start


@pytest.fixture(scope="session")
def fallible_pair(tmp_path_factory) -> Path:
    """Small random checkpoints, and their tokenizer."""
    pair = tmp_path_factory.mktemp("pair")
    write_pair(pair)
    return pair


@pytest.fixture(scope="session")
def fallible(
    fallible_pair: Path, tmp_path_factory
) -> Callable[..., AbstractContextManager[TritonServer]]:
    """Serve small random checkpoints by models that fail on demand (`server.faults`).

    Keywords are sections of the profile.
    """

    @contextmanager
    def start(**sections: Any) -> Iterator[TritonServer]:
        folder = tmp_path_factory.mktemp("fallible")
        profile = small.write_profile(fallible_pair, folder / "profile.yaml", **sections)
        with serving_fallibly(deployment.load(profile), folder) as running:
            yield running

    return start


def emulated_zero(
    folder: Path, *, step_ms: Mapping[str, float] = MappingProxyType({}), **sections: Any
) -> Deployment:
    """Emulated engines that answer at once. Keywords are sections of the profile.

    step_ms: of engines that take their time.
    """
    profile = yaml.safe_load(EMULATED_ZERO.read_text()) | sections
    for job, section in profile["engines"].items():
        section["tokenizer"] = str(EMULATED_ZERO.parent / section["tokenizer"])
        section["step_ms"] = step_ms.get(job, 0.0)
    file = folder / "profile.yaml"
    file.write_text(yaml.safe_dump(profile))
    return deployment.load(file)


@contextmanager
def serving_fallibly(planned: Deployment, folder: Path) -> Iterator[TritonServer]:
    """Serve a deployment by models that fail on demand (`server.faults`)."""
    stopped = serving(planned, folder)
    faulty.plant(stopped.repository)
    stopped.faults = faulty.Faults(stopped.repository)
    with stopped as running:
        yield running


def serving(
    planned: Deployment, folder: Path, kind: type[TritonServer] = KilledServer
) -> TritonServer:
    """Render a deployment into a folder; return its server, not yet started."""
    models = folder / "repository"
    repository.render(planned, models, link=True)
    return kind(models, thread_pool_size=planned.thread_pool_size)
