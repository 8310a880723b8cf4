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
from typing import Any

from tandem.bls.settings import AUTO
from tandem.gateway.settings import GatewaySettings
from tandem.tools.benchmark.load_generator import warm_up
from tandem.tools.client.client import MODEL
from tandem.tools.commands.gateway_options import (
    Keys,
    add_access,
    add_address,
    add_base_port,
    add_chat_template,
    allowed_hosts,
    application,
    browser_url,
    check_tracing,
    key_for_shell,
    listening,
    read_keys,
    usual_ports,
)
from tandem.tools.commands.options import DEMO, add_deployment, chosen_deployment, port
from tandem.tools.errors import TandemError, UsageError
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.profiles.engines.base import EngineSection
from tandem.tools.profiles.engines.remote import RemoteDraft
from tandem.tools.triton.server import Ports, TritonServer, claim_ports, serving

SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")  # one is set if a browser can open a window


def add_options(parser: argparse.ArgumentParser) -> None:
    served = parser.add_argument_group("what to serve")
    add_deployment(served)
    add_chat_template(served)
    served.add_argument(
        "--no-warm-up",
        action="store_true",
        help="Skip the requests, of at most 3 seconds, that warm up the engines.",
    )
    listening = parser.add_argument_group("addresses (port 0 picks a free one)")
    add_address(listening)
    add_base_port(listening)
    for name, number in usual_ports(None).items():
        what = "Port of the OpenAI API" if name == "gateway" else f"Triton's {name} port"
        listening.add_argument(
            f"--{name}-port", type=port, metavar="N", help=f"{what} (default: {number})."
        )
    listening.add_argument("--no-gateway", action="store_true", help="Serve only Triton.")
    add_access(listening)
    listening.add_argument("--open", action="store_true", help="Open the page in a browser.")


def run(options: argparse.Namespace) -> int:
    needs_gateway = {
        "--chat-template": options.chat_template,
        "--open": options.open,
        "--open-objects": options.open_objects,
        "--otlp-traces-endpoint": options.otlp_traces_endpoint,
        "--allow-host": options.allow_host,
        "--allow-origin": options.allow_origin,
        "--api-key-file": options.api_key_file,
        "--operator-key-file": options.operator_key_file,
    }
    for name, is_set in needs_gateway.items():
        if is_set and options.no_gateway:
            raise UsageError(f"set {name} or --no-gateway, not both")
    ports, gateway = _ports(options)
    keys = read_keys(options)  # an unreadable file is an error before any model is loaded
    deployment = chosen_deployment(options)
    ready = False
    with ExitStack() as stack:
        bound = None
        claim_ports(ports, options.address, gateway)  # names all that are taken, at once
        for number in gateway.values():
            bound = stack.enter_context(listening(options.address, number, "--gateway-port"))
            check_tracing(options)
            _chats(deployment, options)  # a broken template is an error before a model is loaded
        try:
            with serving(deployment, ports, options.address) as server:
                if not options.no_warm_up:
                    warm_up(server, deployment)
                ready = True
                _serve(server, deployment, bound, keys, options)
        except KeyboardInterrupt:  # the normal end, once the server is ready
            if not ready:
                raise
    return 0


def _serve(
    server: TritonServer,
    deployment: Deployment,
    bound: socket.socket | None,
    keys: Keys,
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
                chat_template=options.chat_template,
                **keys._asdict(),
                allowed_origins=tuple(options.allow_origin),
                allowed_hosts=allowed_hosts(options, bound),
                open_objects=options.open_objects,
                traces_url=options.otlp_traces_endpoint,
                model=deployment.profile.name,
            )
            stack.enter_context(gateway.serving(application(settings), bound))
            url = browser_url(bound)
        chats = url is not None and _chats(deployment, options)
        key = key_for_shell(options)
        print(greeting(server, deployment, url, chats=chats, key=key), flush=True)
        if options.open and url:
            open_page(url)
        try:
            server.wait()
        except TandemError:
            server.kill()  # before the gateway stops, so that its open requests end
            raise


def _ports(options: argparse.Namespace) -> tuple[Ports, dict[str, int]]:
    """Return Triton's ports, and the gateway's by name; it is empty without a gateway.

    Rejects ports that are set to the same number, because Triton's error is less clear.
    """
    numbers = usual_ports(options.base_port)
    for name in numbers:
        if (given := getattr(options, f"{name}_port")) is not None:
            numbers[name] = given
    if options.no_gateway:
        del numbers["gateway"]
    for one, other in combinations(numbers, 2):
        if numbers[one] == numbers[other] != 0:
            raise UsageError(
                f"--{one}-port and --{other}-port must be different; got {numbers[one]}"
            )
    gateway = {name: numbers.pop(name) for name in ("gateway",) if name in numbers}
    return Ports(**numbers), gateway


def open_page(url: str) -> None:
    """Open a graphical browser if there is one; a text browser would take over the terminal."""
    if any(map(os.environ.get, SCREENS)):
        webbrowser.open(url)


def greeting(
    server: TritonServer,
    deployment: Deployment,
    gateway: str | None,
    *,
    chats: bool = False,
    key: str = "",
) -> str:
    """Return a summary of the deployment, its addresses, and example commands.

    gateway: the URL of the gateway, or None without one. chats: whether it serves chats. key: see
    `key_for_shell`.
    """
    entry = deployment.stream_entry.name
    # The demo's models generate only Python.
    on_demo = deployment.tokenizer.folder.is_relative_to(DEMO)
    prompt = "def main():" if on_demo else "Once upon a time"
    model = [] if entry == MODEL else ["--model", entry]
    generate = ["tandem", "generate", "--url", server.grpc_url, *model, prompt]
    stream = f"http://{server.http_url}/v2/models/{entry}/generate_stream"
    request: dict[str, Any] = {"text_input": prompt, "max_tokens": 64, "stream": True}
    if chats:
        stream = f"{gateway}/v1/chat/completions -H 'content-type: application/json'"
        stream += f' -H "authorization: Bearer {key}"' if key else ""
        request = {"messages": [{"role": "user", "content": "Tell me a story."}], "stream": True}
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
            f"  curl -N {stream} -d {shlex.quote(json.dumps(request))}",
        )
    )


def _chats(deployment: Deployment, options: argparse.Namespace) -> bool:
    """Return whether there is a chat template. Raises TandemError if it can't be read."""
    from tandem.gateway.chat_template import (  # noqa: PLC0415  an extra
        ChatTemplateError,
        load_chat_template,
    )

    try:
        template = load_chat_template(deployment.tokenizer.folder, options.chat_template)
    except ChatTemplateError as error:
        line = " ".join(str(error).split())
        hint = "" if options.chat_template else "; set --chat-template FILE, or --no-gateway"
        raise TandemError(line + hint) from error
    return template is not None


def _choices(deployment: Deployment) -> dict[str, str]:
    loop, engines = deployment.loop_settings(), deployment.profile.engines
    others = [name for name in loop.drafters if name != loop.drafter]
    also = f" (a request may use {', '.join(others)})" if others else ""
    draft = _engine(engines.draft) if engines.draft else "none"
    if deployment.draft_tokenizer:
        draft += "; its vocabulary isn't the target's, so drafts are translated through the text"
    rows = {
        "target": f"{_engine(engines.target)}, up to {loop.target.context} tokens of context",
        "draft": draft,
        "drafter": f"{loop.drafter}{also}",
    }
    if loop.target.max_draft_len:
        usual = "auto" if loop.draft_len == AUTO else str(loop.draft_len)
        if loop.draft_len != AUTO and deployment.drafter_kinds[loop.drafter].only_looks_up:
            usual = str(loop.prompt_lookup_num_tokens)
        rows["length"] = f"{usual} draft tokens per round, at most {loop.target.max_draft_len}"
    if deployment.advice:
        rows["advice"] = deployment.advice
    rows["limits"] = (
        f"up to {loop.max_requests} sequences run and {loop.max_queue} wait; "
        f"KV cache of {loop.target.kv_cache_tokens} tokens"
    )
    return rows


def _engine(section: EngineSection) -> str:
    folder, kind = (getattr(section, name, None) for name in ("checkpoint", "kind"))
    if isinstance(section, RemoteDraft):
        folder = f"{section.model} at {', '.join(section.url)}"
    return f"{folder} ({kind})" if folder else str(kind)
