"""Options, socket and application of the commands that start a gateway."""

from __future__ import annotations

import argparse
import codecs
import ipaddress
import os
import re
import shlex
import socket
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tandem.gateway.settings import GatewaySettings
from tandem.preprocessing.tokenizer import TokenizerError
from tandem.tools.commands.options import MAX_PORT, Options, address, nonempty_path, port
from tandem.tools.errors import TandemError, UsageError, install_extra
from tandem.tools.triton.server import EVERY_ADDRESS, LOOPBACK, Ports

if TYPE_CHECKING:
    from starlette.applications import Starlette

PORT = 8080
KEY_VARIABLE, OPERATOR_VARIABLE = "TANDEM_API_KEY", "TANDEM_OPERATOR_KEY"
HOST_NAME = re.compile(r"[\w-]+(\.[\w-]+)*", re.ASCII)
TRACES_ENDPOINT = re.compile(r"https?://[^/\s]+/\S*")
ORIGIN = re.compile(r"[\w.+-]+://([\w.-]+|\[[\d:a-fA-F]+\])(:\d+)?", re.ASCII)


def add_address(parser: Options) -> None:
    parser.add_argument(
        "--address",
        type=address,
        default=LOOPBACK,
        help="Address to listen on (default: %(default)s).",
    )


def add_base_port(parser: Options) -> None:
    parser.add_argument(
        "--base-port",
        type=port,
        metavar="N",
        help="Use N, N+1 and N+2 for Triton's http, grpc and metrics ports and N+3 for the "
        "gateway; 0: free ports.",
    )


def usual_ports(base: int | None) -> dict[str, int]:
    """Return the ports by name for a value of --base-port."""
    names = [*vars(Ports()), "gateway"]
    if base is None:
        return {**vars(Ports()), "gateway": PORT}
    if base > MAX_PORT - len(names) + 1:
        raise UsageError(f"--base-port must be at most {MAX_PORT - len(names) + 1}; got {base}")
    return {name: base and base + number for number, name in enumerate(names)}


def host_name(text: str) -> str:
    """Read a name as the gateway compares it, so that one that no client sends is an error."""
    if text != "*" and not HOST_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            "must be a name such as chat.example, without a scheme, a port or a final period; "
            f"got {text!r}"
        )
    return text.lower()


def origin(text: str) -> str:
    """Read an origin as browsers send it."""
    if text not in {"*", "null"} and not ORIGIN.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"must be an origin such as https://chat.example, without a path; got {text!r}"
        )
    return text.lower()


def traces_endpoint(text: str) -> str:
    if not TRACES_ENDPOINT.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"must be a URL with a path, such as http://localhost:4318/v1/traces; got {text!r}"
        )
    return text


def add_chat_template(parser: Options) -> None:
    parser.add_argument(
        "--chat-template",
        type=nonempty_path,
        metavar="FILE",
        help="Chat template to use instead of the tokenizer's.",
    )


def add_access(parser: Options) -> None:
    """Add the options for who may use a gateway, and how."""
    parser.add_argument(
        "--api-key-file",
        type=nonempty_path,
        metavar="FILE",
        help="Require one of the API keys (bearer tokens) in this file: one per line, "
        f"# begins a comment (default: ${KEY_VARIABLE}, one key).",
    )
    parser.add_argument(
        "--operator-key-file",
        type=nonempty_path,
        metavar="FILE",
        help="Let the keys in this file list and empty lookup pools at the gateway, one per line "
        f"(default: ${OPERATOR_VARIABLE}, one key).",
    )
    parser.add_argument(
        "--allow-host",
        type=host_name,
        action="append",
        default=[],
        metavar="NAME",
        help="Allow requests for this host name, such as a reverse proxy's; *: any; can be "
        "repeated (default: only local names, but any name if --address isn't a loopback address).",
    )
    parser.add_argument(
        "--allow-origin",
        type=origin,
        action="append",
        default=[],
        metavar="URL",
        help="Allow requests from web pages of this origin (CORS); *: any; can be repeated.",
    )
    parser.add_argument(
        "--otlp-traces-endpoint",
        type=traces_endpoint,
        metavar="URL",
        help="Send a trace of each request to this OpenTelemetry collector, such as "
        "http://localhost:4318/v1/traces (default: no traces).",
    )
    parser.add_argument(
        "--open-objects",
        action="store_true",
        help="Allow properties that a JSON schema doesn't declare, unless the schema or the "
        "request forbids them.",
    )


class Keys(NamedTuple):
    """The keys that clients must send, and those for lookup pools; (): none."""

    api_keys: tuple[str, ...]
    operator_keys: tuple[str, ...]


def read_keys(options: argparse.Namespace) -> Keys:
    return Keys(
        _keys(options.api_key_file, KEY_VARIABLE),
        _keys(options.operator_key_file, OPERATOR_VARIABLE),
    )


def _keys(path: Path | None, variable: str) -> tuple[str, ...]:
    if path is None:
        return tuple(filter(None, [os.environ.get(variable)]))
    try:
        content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise TandemError(f"can't read {path}: {error.strerror}") from error
    lines = map(str.strip, os.fsdecode(content).splitlines())
    keys = tuple(dict.fromkeys(line for line in lines if line and not line.startswith("#")))
    if not keys:
        raise TandemError(f"{path} has no keys; write one per line")
    return keys


def key_for_shell(options: argparse.Namespace) -> str:
    """Return what a shell replaces by one of the keys, within double quotes; "" without keys."""
    if options.api_key_file is not None:
        return f"$(grep -m1 '^[^#]' {shlex.quote(str(options.api_key_file))})"
    return f"${KEY_VARIABLE}" if read_keys(options).api_keys else ""


def allowed_hosts(options: argparse.Namespace, bound: socket.socket) -> tuple[str, ...] | None:
    """Return the names that requests may have in `Host`, besides local ones; None: any.

    bound: the gateway's socket. Without --allow-host, only a gateway for this machine knows which
    names its clients use.
    """
    if options.allow_host or ipaddress.ip_address(bound.getsockname()[0]).is_loopback:
        return tuple(options.allow_host)
    return None


def check_tracing(options: argparse.Namespace) -> None:
    """Raise TandemError if traces are wanted and their package is missing."""
    if options.otlp_traces_endpoint is None:
        return
    try:
        import tandem.gateway.tracing  # noqa: F401, PLC0415  an extra
    except ModuleNotFoundError as error:
        raise TandemError(
            f"--otlp-traces-endpoint needs the package {error.name}; {install_extra('otel')}"
        ) from error


def application(settings: GatewaySettings) -> Starlette:
    """Return the gateway; raise TandemError or OSError if it can't load its files."""
    from tandem.gateway.app import create_app  # noqa: PLC0415  an extra
    from tandem.gateway.chat_template import ChatTemplateError  # noqa: PLC0415  an extra

    try:
        return create_app(settings)
    except (TokenizerError, ChatTemplateError) as error:
        raise TandemError(" ".join(str(error).split())) from error


def listening(host: str, number: int, option: str) -> socket.socket:
    try:
        from tandem.gateway.server import listen  # noqa: PLC0415  an extra
    except ModuleNotFoundError as error:
        raise TandemError(
            f"the gateway needs the package {error.name}; {install_extra('gateway')}, "
            "or use --no-gateway"
        ) from error
    try:
        return listen(host, number)
    except OSError as error:
        raise TandemError(
            f"can't listen on {host}:{number}: {error.strerror}; use another {option} or --address"
        ) from error


def browser_url(bound: socket.socket) -> str:
    """Return the URL to open in a browser."""
    host, number = bound.getsockname()[:2]
    host = LOOPBACK if host in EVERY_ADDRESS else host
    return f"http://[{host}]:{number}" if ":" in host else f"http://{host}:{number}"
