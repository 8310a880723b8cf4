"""Live Triton servers: one that all tests share, and special ones."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import small
from benchmarks import faulty
from checkpoints import write_pair

from tandem.tools.profiles import deployment
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.triton import repository
from tandem.tools.triton.server import TritonServer


@pytest.fixture(scope="session")
def embedded(embedded_profile: Path) -> Deployment:
    """What the shared server serves: its lengths, ids and names."""
    return deployment.load(embedded_profile)


@pytest.fixture(scope="session")
def server(embedded: Deployment, tmp_path_factory) -> Iterator[TritonServer]:
    """The server that all tests share, on the embedded profile. Leave it as you found it."""
    with serving(embedded, tmp_path_factory.mktemp("server")) as running:
        yield running


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
    """Serve small random checkpoints by models that fail when told to (`server.faults`).

    Keywords are sections of the profile.
    """

    @contextmanager
    def start(**sections: Any) -> Iterator[TritonServer]:
        folder = tmp_path_factory.mktemp("fallible")
        profile = small.write_profile(fallible_pair, folder / "profile.yaml", **sections)
        stopped = serving(deployment.load(profile), folder)
        faulty.plant(stopped.repository)
        stopped.faults = faulty.Faults(stopped.repository)
        with stopped as running:
            yield running

    return start


def serving(planned: Deployment, folder: Path) -> TritonServer:
    """Render a deployment into a folder; return its server, not yet started."""
    models = folder / "repository"
    repository.render(planned, models, link=True)
    return TritonServer(models, thread_pool_size=planned.thread_pool_size)
