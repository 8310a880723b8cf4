"""The settings of a gateway."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MEGABYTE = 2**20


@dataclass(frozen=True)
class GatewaySettings:
    """Settings of a gateway.

    url: address and port of Triton's gRPC endpoint. tokenizer: folder that holds tokenizer.json.
    chat_template: a file that takes the place of the tokenizer's own template. api_key: what a
    client must send as a bearer token; None asks for none. max_body_bytes: larger requests are
    refused. allowed_origins: web pages of other hosts that browsers may let in. open_objects:
    objects of JSON schemas are open by default, for requests that don't decide it.
    """

    url: str
    tokenizer: Path
    chat_template: Path | None = None
    api_key: str | None = None
    max_body_bytes: int = 8 * MEGABYTE
    allowed_origins: tuple[str, ...] = ()
    open_objects: bool = False
