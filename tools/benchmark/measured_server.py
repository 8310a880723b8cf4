"""The server to measure: a running server, or a deployment to serve for the measurement."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tandem.bls.drafters.registry import BASELINE, DRAFTERS, DrafterKind, DrafterName
from tandem.contract.model_parameters import encode
from tandem.tools.client.client import MODEL, Client
from tandem.tools.errors import TandemError
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.triton.serving import serving


@dataclass(frozen=True)
class MeasuredServer:
    """A server, the entry to call, the drafters that requests can choose, and limits in tokens.

    name: HOST:PORT of a running server's gRPC endpoint, or the name of the deployment to serve.
    """

    name: str
    entry: str
    drafters: Mapping[DrafterName, DrafterKind]
    default_drafter: DrafterName
    max_draft_len: int
    context: int
    deployment: Deployment | None = None

    def check_drafter(self, name: DrafterName) -> None:
        """Raise TandemError if requests can't choose this drafter."""
        if name not in self.drafters:
            raise TandemError(
                f"--drafter must be one of {', '.join(self.drafters)} for {self.name}; got {name}"
            )

    def check_baseline(self) -> None:
        """Raise TandemError if requests can't turn drafts off."""
        if BASELINE.name not in self.drafters:
            raise TandemError(
                "the target drafts inside the engine, so there is no baseline to compare with; "
                "serve a second target without it, and measure each --url"
            )

    @contextmanager
    def running(self) -> Iterator[str]:
        """Yield HOST:PORT of the gRPC endpoint. Serve the deployment until the context ends."""
        if self.deployment is None:
            yield self.name
            return
        with serving(self.deployment) as server:
            yield server.grpc_url


def measured_server(
    deployment: Deployment | None, url: str | None = None, entry: str | None = None
) -> MeasuredServer:
    """Return the server to measure: the deployment, or the running server at ``url``.

    entry: the entry to call; only with ``url`` (default: MODEL). Raises TandemError.
    """
    kinds: Mapping[DrafterName, DrafterKind] = DRAFTERS
    if deployment:
        name, entry = deployment.profile.name, deployment.stream_entry.name
        kinds = deployment.drafter_kinds
        parameters: Mapping[str, str] = encode(deployment.loop_settings())
    else:
        assert url
        name = url
        with Client(url) as client:
            entry, _, parameters = client.entry(entry or MODEL)
    try:
        limits = json.loads(parameters["target"])
        return MeasuredServer(
            name=name,
            entry=entry,
            drafters={
                # A running server reports only the names of its custom drafters.
                drafter: kinds.get(drafter)
                or DrafterKind(name=drafter, description="the deployment's", module="")
                for drafter in json.loads(parameters["drafters"])
            },
            default_drafter=parameters["drafter"],
            max_draft_len=limits["max_draft_len"],
            context=limits["max_seq_len"] - limits["max_draft_len"],
            deployment=deployment,
        )
    except KeyError as error:
        raise TandemError(
            f"entry '{entry}' at {url} isn't one of Tandem's: it has no parameter "
            f"{error}; set --model to one that is"
        ) from error
