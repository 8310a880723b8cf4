"""The gateway as verbs start it: its port, its key, what can be wrong with either."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.gateway.settings import GatewaySettings
from tandem.preprocessing.errors import TokenizerError
from tandem.tools import extras
from tandem.tools.commands.options import Options, port
from tandem.tools.errors import TandemError
from tandem.tools.triton.server import EVERY_ADDRESS, LOOPBACK

if TYPE_CHECKING:
    from fastapi import FastAPI

PORT = 8080
KEY_VARIABLE = "TANDEM_API_KEY"


def add_front(parser: Options) -> None:
    parser.add_argument(
        "--gateway-port",
        type=port,
        metavar="N",
        default=PORT,
        help="The port of OpenAI's API; 0 picks a free one (default: %(default)s).",
    )
    parser.add_argument("--no-gateway", action="store_true", help="Serve Triton alone.")
    add_open_objects(parser)


def add_open_objects(parser: Options) -> None:
    """Add the option that opens objects of JSON schemas by default."""
    parser.add_argument(
        "--open-objects",
        action="store_true",
        help="Allow properties that a JSON schema doesn't declare, unless the schema or the "
        "request says otherwise.",
    )


@contextmanager
def serving_before(
    bound: socket.socket, url: str, tokenizer: Path, *, open_objects: bool
) -> Iterator[str]:
    """Serve the gateway on a listening socket for as long as the context lasts; yield its address.

    url: the server's gRPC endpoint. tokenizer: the folder. open_objects: see `GatewaySettings`.
    """
    from tandem.gateway.server import serving  # noqa: PLC0415  an extra

    key = os.environ.get(KEY_VARIABLE) or None
    settings = GatewaySettings(url, tokenizer, api_key=key, open_objects=open_objects)
    with serving(application(settings), bound):
        yield url_of(bound)


def application(settings: GatewaySettings) -> FastAPI:
    """Return the application; raise TandemError where the tokenizer or its template is wrong."""
    from tandem.gateway.app import create_app  # noqa: PLC0415  an extra
    from tandem.gateway.chat_template import ChatTemplateError  # noqa: PLC0415  an extra

    try:
        return create_app(settings)
    except (TokenizerError, ChatTemplateError, OSError) as error:
        raise TandemError(" ".join(str(error).split())) from error


def listening(address: str, number: int, option: str) -> socket.socket:
    try:
        from tandem.gateway.server import listen  # noqa: PLC0415  an extra
    except ModuleNotFoundError as error:
        raise TandemError(
            f"the gateway needs the package {error.name}: {extras.install('gateway')}; "
            "tandem up does without it with --no-gateway"
        ) from error
    try:
        return listen(address, number)
    except OSError as error:
        raise TandemError(
            f"cannot listen on {address}:{number}: {error.strerror}; choose another {option} "
            "(or --address)"
        ) from error


def url_of(bound: socket.socket) -> str:
    """Return where a browser finds what listens on a socket."""
    host, number = bound.getsockname()[:2]
    host = LOOPBACK if host in EVERY_ADDRESS else host
    return f"http://[{host}]:{number}" if ":" in host else f"http://{host}:{number}"
