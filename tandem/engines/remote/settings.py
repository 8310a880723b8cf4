"""Settings of a remote engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RemoteModel:
    """A model of other servers, and how to reach it.

    `RemoteDraft` in `tools/profiles/engines/remote.py` describes the fields. The files are on the
    serving machine.
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
