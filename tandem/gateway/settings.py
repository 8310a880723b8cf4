"""The settings of a gateway."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MEGABYTE = 2**20


@dataclass(frozen=True)
class GatewaySettings:
    """Settings of a gateway.

    url: address and port of Triton's gRPC endpoint.
    tokenizer: folder with a tokenizer.json.
    chat_template: file with a template that replaces the tokenizer's.
    api_keys: bearer tokens, one of which clients must send; (): no authentication. Clients with
        different keys share no KV cache and no lookup pools.
    operator_keys: bearer tokens, one of which lists and empties lookup pools; (): no token does.
    max_body_bytes: maximum size of a request's body.
    allowed_origins: origins of other web pages that may call the gateway (CORS); "*": any.
    allowed_hosts: names that requests may have in `Host`, besides local ones; "*" or None: any.
    open_objects: whether objects in JSON schemas are open by default.
    traces_url: OpenTelemetry collector's endpoint for traces (OTLP over HTTP); None: no traces.
    model: name of the target, for people (default: the name of the tokenizer's folder).
    """

    url: str
    tokenizer: Path
    chat_template: Path | None = None
    api_keys: tuple[str, ...] = ()
    operator_keys: tuple[str, ...] = ()
    max_body_bytes: int = 8 * MEGABYTE
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] | None = None
    open_objects: bool = False
    traces_url: str | None = None
    model: str | None = None
