"""Serve the OpenAI API and a web page for a running server.

The server must have Tandem's models. The page shows which tokens were drafted. `tandem up` already
includes a gateway.

    tandem gateway --tokenizer path/to/target
    tandem gateway --url triton.example:8001 --tokenizer path/to/target --port 80
"""

from __future__ import annotations

import argparse
from contextlib import suppress

from tandem.gateway.settings import MEGABYTE, GatewaySettings
from tandem.tools.client.client import URL
from tandem.tools.commands.gateway_options import (
    PORT,
    add_access,
    add_address,
    add_chat_template,
    allowed_hosts,
    application,
    browser_url,
    check_tracing,
    listening,
    read_keys,
)
from tandem.tools.commands.options import add_url, at_least, nonempty_path, port


def add_options(parser: argparse.ArgumentParser) -> None:
    serves = parser.add_argument_group("what to serve")
    add_url(serves, URL)
    serves.add_argument(
        "--tokenizer",
        type=nonempty_path,
        required=True,
        metavar="DIR",
        help="Folder of the target's tokenizer.",
    )
    add_chat_template(serves)
    listens = parser.add_argument_group("addresses (port 0 picks a free one)")
    add_address(listens)
    listens.add_argument(
        "--port",
        type=port,
        metavar="N",
        default=PORT,
        help="Port (default: %(default)s).",
    )
    admits = parser.add_argument_group("requests")
    add_access(admits)
    admits.add_argument(
        "--max-body-mb",
        type=at_least(1),
        default=GatewaySettings.max_body_bytes // MEGABYTE,
        metavar="MB",
        help="Maximum size of a request body, in MB (default: %(default)s).",
    )


def run(options: argparse.Namespace) -> int:
    with (
        listening(options.address, options.port, "--port") as bound,
        suppress(KeyboardInterrupt),  # uvicorn raises the signal again after shutdown
    ):
        from tandem.gateway.server import serve  # noqa: PLC0415  an extra

        check_tracing(options)
        settings = GatewaySettings(
            url=options.url,
            tokenizer=options.tokenizer,
            chat_template=options.chat_template,
            **read_keys(options)._asdict(),
            max_body_bytes=options.max_body_mb * MEGABYTE,
            allowed_origins=tuple(options.allow_origin),
            allowed_hosts=allowed_hosts(options, bound),
            open_objects=options.open_objects,
            traces_url=options.otlp_traces_endpoint,
        )
        app = application(settings)
        greeting = f"serving {browser_url(bound)} for {options.url}; stop with Ctrl-C"
        serve(app, bound, on_ready=lambda: print(greeting, flush=True))
    return 0
