"""Start Triton and serve until Ctrl-C.

A profile names the models, or --target and --draft do: folders, Hugging Face Hub models or GGUF
files with one tokenizer. Without --draft, Tandem uses prompt lookup.

    tandem up
    tandem up --profile emulated-70b-1b --grpc-port 9001
    tandem up --target path/to/target --draft path/to/draft
    tandem up --target Qwen/Qwen2.5-1.5B-Instruct --draft Qwen/Qwen2.5-0.5B-Instruct
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import socket
import webbrowser
from contextlib import ExitStack
from itertools import combinations

from tandem.bls.settings import AUTO
from tandem.gateway.settings import GatewaySettings
from tandem.tools.client.client import MODEL
from tandem.tools.commands.deployment_options import add_deployment, chosen_deployment
from tandem.tools.commands.gateway_options import (
    KEY_VARIABLE,
    PORT,
    add_access,
    add_address,
    application,
    browser_url,
    listening,
)
from tandem.tools.commands.options import DEMO, port
from tandem.tools.errors import TandemError, UsageError
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.profiles.engines.base import EngineSection
from tandem.tools.triton.server import Ports, TritonServer
from tandem.tools.triton.serving import serving

SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")  # one is set if a browser can open a window


def add_options(parser: argparse.ArgumentParser) -> None:
    add_deployment(parser.add_argument_group("what to serve"))
    listening = parser.add_argument_group("addresses (port 0 picks a free one)")
    add_address(listening)
    for name, number in vars(Ports()).items():
        listening.add_argument(
            f"--{name}-port",
            type=port,
            metavar="N",
            default=number,
            help=f"Triton's {name} port (default: %(default)s).",
        )
    listening.add_argument(
        "--gateway-port",
        type=port,
        metavar="N",
        default=PORT,
        help="Port of the OpenAI API (default: %(default)s).",
    )
    listening.add_argument("--no-gateway", action="store_true", help="Serve only Triton.")
    add_access(listening)
    listening.add_argument("--open", action="store_true", help="Open the page in a browser.")


def run(options: argparse.Namespace) -> int:
    needs_gateway = {
        "--open": options.open,
        "--open-objects": options.open_objects,
        "--api-key": options.api_key not in (None, os.environ.get(KEY_VARIABLE)),
    }
    for name, is_set in needs_gateway.items():
        if is_set and options.no_gateway:
            raise UsageError(f"set {name} or --no-gateway, not both")
    _check_ports(options)
    deployment = chosen_deployment(options)
    ports = Ports(options.http_port, options.grpc_port, options.metrics_port)
    ready = False
    with ExitStack() as stack:
        bound = None
        if not options.no_gateway:  # before the server starts, so that a busy port fails at once
            bound = stack.enter_context(
                listening(options.address, options.gateway_port, "--gateway-port")
            )
        try:
            with serving(deployment, ports, options.address) as server:
                ready = True
                _serve(server, deployment, bound, options)
        except KeyboardInterrupt:  # the normal end, once the server is ready
            if not ready:
                raise
    return 0


def _serve(
    server: TritonServer,
    deployment: Deployment,
    bound: socket.socket | None,
    options: argparse.Namespace,
) -> None:
    """Serve until Ctrl-C. bound: the gateway's socket; None: no gateway."""
    with ExitStack() as stack:
        url = None
        if bound:
            from tandem.gateway import server as gateway  # noqa: PLC0415  an extra

            settings = GatewaySettings(
                server.grpc_url,
                deployment.tokenizer.folder,
                api_key=options.api_key,
                open_objects=options.open_objects,
                model=deployment.profile.name,
            )
            stack.enter_context(gateway.serving(application(settings), bound))
            url = browser_url(bound)
        print(greeting(server, deployment, url), flush=True)
        if options.open and url:
            open_page(url)
        try:
            server.wait()
        except TandemError:
            server.kill()  # before the gateway stops, so that its open requests end
            raise


def _check_ports(options: argparse.Namespace) -> None:
    """Reject ports that are set to the same number, because Triton's error is less clear."""
    names = ["http_port", "grpc_port", "metrics_port"]
    if not options.no_gateway:
        names.append("gateway_port")
    for one, other in combinations(names, 2):
        number = getattr(options, one)
        if number == getattr(options, other) != 0:
            named = f"--{one} and --{other}".replace("_", "-")
            raise UsageError(f"{named} must be different; got {number}")


def open_page(url: str) -> None:
    """Open a graphical browser if there is one; a text browser would take over the terminal."""
    if any(map(os.environ.get, SCREENS)):
        webbrowser.open(url)


def greeting(server: TritonServer, deployment: Deployment, gateway: str | None) -> str:
    """Return a summary of the deployment, its addresses, and example commands.

    gateway: the URL of the gateway, or None without one.
    """
    entry = deployment.stream_entry.name
    # The demo's models generate only Python.
    on_demo = deployment.tokenizer.folder.is_relative_to(DEMO)
    prompt = "def main():" if on_demo else "Once upon a time"
    model = [] if entry == MODEL else ["--model", entry]
    generate = ["tandem", "generate", "--url", server.grpc_url, *model, prompt]
    stream = f"http://{server.http_url}/v2/models/{entry}/generate_stream"
    request = json.dumps({"text_input": prompt, "max_tokens": 64, "stream": True})
    # NVIDIA's backend needs special processes and options, so show the command.
    backends = [engine.backend for engine in (deployment.target, deployment.draft) if engine]
    command = {"command": shlex.join(server.command)} if "tensorrtllm" in backends else {}
    rows = {
        **_choices(deployment),
        **({"OpenAI": f"{gateway}/v1", "page": gateway} if gateway else {}),
        "HTTP": f"http://{server.http_url}",
        "gRPC": server.grpc_url,
        "metrics": server.metrics_url,
        "log": str(server.log.path),
        **command,
    }
    return "\n".join(
        (
            f"serving {deployment.profile.name}; stop with Ctrl-C",
            *(f"  {name:<9}{text}" for name, text in rows.items()),
            "try:",
            f"  {shlex.join(generate)}",
            f"  curl -N {stream} -d {shlex.quote(request)}",
        )
    )


def _choices(deployment: Deployment) -> dict[str, str]:
    loop, engines = deployment.loop_settings(), deployment.profile.engines
    others = [name for name in loop.drafters if name != loop.drafter]
    also = f" (a request may use {', '.join(others)})" if others else ""
    draft = _engine(engines.draft) if engines.draft else "none"
    if deployment.draft_tokenizer:
        draft += "; its vocabulary isn't the target's, so drafts are translated through the text"
    rows = {
        "target": f"{_engine(engines.target)}, up to {loop.target.max_seq_len} tokens of context",
        "draft": draft,
        "drafter": f"{loop.drafter}{also}",
    }
    if loop.target.max_draft_len:
        usual = "auto" if loop.draft_len == AUTO else str(loop.draft_len)
        if deployment.drafter_kinds[loop.drafter].only_looks_up:
            usual = str(loop.prompt_lookup_num_tokens)
        rows["length"] = f"{usual} draft tokens per round, at most {loop.target.max_draft_len}"
    loops = f", in {loop.instances} loops" if loop.instances > 1 else ""
    rows["limits"] = (
        f"up to {loop.max_requests} sequences run and {loop.max_queue} wait{loops}; "
        f"KV cache of {loop.target.kv_cache_tokens} tokens"
    )
    return rows


def _engine(section: EngineSection) -> str:
    folder, kind = (getattr(section, name, None) for name in ("checkpoint", "kind"))
    return f"{folder} ({kind})" if folder else str(kind)
