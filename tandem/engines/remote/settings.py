"""Settings of a remote engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RemoteModel:
    """A model of other servers, and how to reach it.

    url: `host:port` of each server. A host name stands for all its addresses. model: name of the
    model there. The files are PEM files on the serving machine. token_file: a file with a token,
    which each call carries as `Bearer`.
    """

    url: tuple[str, ...]
    model: str
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    token_file: str | None = None


@dataclass(frozen=True, kw_only=True)
class RemoteSettings(RemoteModel):
    """Settings of a remote engine.

    expected: the parameter `facts` of the remote model when this model was rendered.
    """

    expected: str
