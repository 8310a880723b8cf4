"""The section of an engine that is a model of other Triton servers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from tandem.contract.model_parameters import FACTS, ParameterError, decode
from tandem.engines.errors import LoadError, UnreachableError
from tandem.engines.remote.replica import Replica, resolve
from tandem.engines.remote.settings import RemoteModel, RemoteSettings
from tandem.tools.profiles.engines.base import (
    EngineFacts,
    EnginePlan,
    EngineSection,
    Folder,
    ProfileError,
    as_tuple,
    parameters_of,
)

NO_FOLDER = Path("/dev/null")


@dataclass(frozen=True)
class Reading:
    """What a replica says: the facts about its model, or the problem that it has."""

    name: str
    facts: str = ""
    problem: str = ""


Url = Annotated[str, Field(pattern=r"^([^:/\s\[\]]+|\[[0-9a-fA-F:.]+\]):\d{1,5}$")]


def _as_urls(value: Any) -> Any:
    return as_tuple([value] if isinstance(value, str) else value)


class RemoteDraft(EngineSection):
    """A model of other Triton servers, which serve a repository from `tandem render` or `up`."""

    kind: Literal["remote"]
    url: Annotated[tuple[Url, ...], Field(min_length=1), BeforeValidator(_as_urls)]
    """`host:port` of Triton's gRPC, or a list of replicas. A name stands for all its addresses."""
    model: Annotated[str, Field(min_length=1)] = "target"
    """Name of the engine's model there."""
    tokenizer: Folder | None = None
    """Folder of its tokenizer. A draft needs it only if its vocabulary isn't the target's."""
    tls: bool = False
    """Encrypt the connections and check the server's certificate."""
    ca_file: Folder | None = None
    """PEM file of the authority that issued the server's certificate (default: gRPC's)."""
    cert_file: Folder | None = None
    """PEM file of the client's certificate (default: none)."""
    key_file: Folder | None = None
    """PEM file of the client certificate's key (default: none)."""
    token_file: Folder | None = None
    """File with a token, which each call carries as `authorization: Bearer` (default: none)."""

    @property
    def tokenizer_folder(self) -> Path:
        return self.tokenizer or NO_FOLDER

    @property
    def devices(self) -> frozenset[str]:
        """Return a device that no other engine uses."""
        return frozenset({f"{self.model} at {', '.join(self.url)}"})

    def plan(self) -> EnginePlan:
        if self.decoupled:
            raise ProfileError(("decoupled",), "must be false, because remote engines don't stream")
        if not self.tls and (self.ca_file or self.cert_file):
            raise ProfileError(("tls",), "must be true if a certificate is set")
        if (self.cert_file is None) != (self.key_file is None):
            raise ProfileError(("cert_file",), "must be set together with key_file")
        connection = self._connection()
        text, replicas = self._read_facts(connection)
        config = {"parameters": {FACTS: {"string_value": text}}}
        try:
            facts = decode(_Facts, config, ignore_unknown=True).facts
        except ParameterError as error:
            raise ProfileError(("url",), f"the engine is from another version: {error}") from error
        facts = replace(facts, kv_cache_tokens=replicas * facts.kv_cache_tokens)
        settings = RemoteSettings(**asdict(connection), expected=text)
        return EnginePlan(
            **{f.name: getattr(facts, f.name) for f in fields(EngineFacts)},
            parameters=parameters_of(settings, self.kind, excludes_input=facts.excludes_input),
        )

    def readings(self) -> Iterator[Reading]:
        """Ask each replica."""
        connection = self._connection()
        try:
            for place in resolve(connection):
                replica = Replica(connection, *place)
                try:
                    yield Reading(replica.name, replica.read_facts())
                except (LoadError, UnreachableError) as error:
                    yield Reading(replica.name, problem=str(error))
                finally:
                    replica.client.close()
        except (LoadError, UnreachableError) as error:
            yield Reading(", ".join(self.url), problem=str(error))

    def _connection(self) -> RemoteModel:
        given = self.model_dump(include={f.name for f in fields(RemoteModel)}, mode="json")
        return RemoteModel(**given | {"url": self.url})

    def _read_facts(self, connection: RemoteModel) -> tuple[str, int]:
        """Return the facts of the first replica that answers, and the number of all replicas."""
        reason = ""
        try:
            found = list(resolve(connection))
            for place in found:
                replica = Replica(connection, *place)
                try:
                    return replica.read_facts(), len(found)
                except UnreachableError as error:
                    reason = reason or str(error)
                finally:
                    replica.client.close()
        except (LoadError, UnreachableError) as error:
            reason = str(error)
        raise ProfileError(("url",), f"{reason}; rendering needs the running engine")


class RemoteTarget(RemoteDraft):
    """A remote engine that verifies drafts."""

    tokenizer: Folder
    """Folder of its tokenizer."""


@dataclass(frozen=True)
class _Facts:
    """The parameter with an engine's facts, for `decode`."""

    facts: EngineFacts
