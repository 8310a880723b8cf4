"""The server to measure: a running server, or a deployment to start for the benchmark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tandem.bls.drafters.registry import DRAFTERS, DrafterKind, DrafterName
from tandem.tools.client.client import Client
from tandem.tools.errors import TandemError
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.triton.serving import serving


@dataclass(frozen=True)
class TargetServer:
    """A running server. url: HOST:PORT of its gRPC endpoint. entry: the entry to call."""

    url: str
    entry: str

    @property
    def streams(self) -> bool:
        """Ask the server whether the entry streams; raise TandemError."""
        with Client(self.url) as client:
            return client.entry(self.entry).streams


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


def served_drafters(target: Deployment | TargetServer) -> ServedDrafters:
    """Return the drafters that requests can choose.

    Asks the server if it is running. Raises TandemError.
    """
    if isinstance(target, Deployment):
        default = target.loop_settings().drafter
        return ServedDrafters(
            server=target.profile.name,
            kinds=target.drafter_kinds,
            default=default,
            max_draft_len=target.target.max_draft_len,
            max_seq_len=target.target.max_seq_len,
        )
    with Client(target.url) as client:
        entry = client.entry(target.entry)
    try:
        limits = json.loads(entry.parameters["target"])
        return ServedDrafters(
            server=target.url,
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
            f"entry '{entry.name}' at {target.url} isn't one of Tandem's: it has no parameter "
            f"{error}; set --model to one that is"
        ) from error


@contextmanager
def target_server(target: Deployment | TargetServer) -> Iterator[TargetServer]:
    """Yield the server to measure. If it is a deployment, serve it until the context ends."""
    if isinstance(target, TargetServer):
        yield target
        return
    with serving(target) as server:
        yield TargetServer(server.grpc_url, target.stream_entry.name)


def name_of(target: Deployment | TargetServer) -> str:
    if isinstance(target, TargetServer):
        return target.url
    emulated = target.target.parameters.get("engine") == "emulated"
    return f"{target.profile.name} (emulated engines)" if emulated else target.profile.name
