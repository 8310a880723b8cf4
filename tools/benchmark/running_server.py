"""The server to measure: a running server, or a deployment to start for the benchmark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from tandem.bls.drafters.registry import DRAFTERS, DrafterKind, DrafterName
from tandem.tools.client.client import Client
from tandem.tools.errors import TandemError
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.triton.serving import serving


class RunningServer(NamedTuple):
    """A running server. url: HOST:PORT of its gRPC endpoint. entry: the entry to call."""

    url: str
    entry: str


@dataclass(frozen=True)
class ServedDrafters:
    """The drafters that requests to a server can choose, and its limits, in tokens.

    server: its name, for errors.
    """

    server: str
    kinds: Mapping[DrafterName, DrafterKind]
    default: DrafterName
    max_draft_len: int
    max_seq_len: int

    def check(self, name: DrafterName) -> None:
        """Raise TandemError if requests can't choose this drafter."""
        if name not in self.kinds:
            raise TandemError(
                f"--drafter must be one of {', '.join(self.kinds)} for {self.server}; got {name}"
            )


def served_drafters(measured: Deployment | RunningServer) -> ServedDrafters:
    """Return the drafters that requests can choose.

    Queries the server unless ``measured`` is a deployment. Raises TandemError.
    """
    if isinstance(measured, Deployment):
        return ServedDrafters(
            server=measured.profile.name,
            kinds=measured.drafter_kinds,
            default=measured.loop_settings().drafter,
            max_draft_len=measured.target.max_draft_len,
            max_seq_len=measured.target.max_seq_len,
        )
    with Client(measured.url) as client:
        entry = client.entry(measured.entry)
    try:
        limits = json.loads(entry.parameters["target"])
        return ServedDrafters(
            server=measured.url,
            kinds={
                # The server reports only the names of the deployment's custom drafters.
                name: DRAFTERS.get(name)
                or DrafterKind(name=name, description="the deployment's", module="")
                for name in json.loads(entry.parameters["drafters"])
            },
            default=entry.parameters["drafter"],
            max_draft_len=limits["max_draft_len"],
            max_seq_len=limits["max_seq_len"],
        )
    except KeyError as error:
        raise TandemError(
            f"entry '{entry.name}' at {measured.url} isn't one of Tandem's: it has no parameter "
            f"{error}; set --model to one that is"
        ) from error


@contextmanager
def running_server(measured: Deployment | RunningServer) -> Iterator[RunningServer]:
    """Yield the server to measure. If it is a deployment, serve it until the context ends."""
    if isinstance(measured, RunningServer):
        yield measured
        return
    with serving(measured) as server:
        yield RunningServer(server.grpc_url, measured.stream_entry.name)


def name_of(measured: Deployment | RunningServer) -> str:
    if isinstance(measured, RunningServer):
        return measured.url
    emulated = measured.target.parameters.get("engine") == "emulated"
    return f"{measured.profile.name} (emulated engines)" if emulated else measured.profile.name
