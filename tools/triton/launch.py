"""How to start Triton: its processes and their command, for this machine and in rendered files."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from tandem.guides.errors import REQUIREMENT
from tandem.tools.errors import TandemError
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.profiles.profile import Profile
from tandem.tools.trtllm import check_built_engines, trt_engines

NO_ENDPOINTS = ("--allow-http=false", "--allow-grpc=false", "--allow-metrics=false")
# Triton doesn't let clients register shared-memory regions that begin with
# triton_python_backend_shm_region_.
PREFIX = "triton_python_backend_shm_region_tandem-"
UNBOUND = ("--bind-to", "none")  # don't bind ranks: their threads need more than one core


def launch_command(
    profile: Profile | None,
    server: Sequence[str],
    endpoints: Sequence[str],
    prefix: str = PREFIX,
) -> list[str]:
    """Return the command that starts all processes of a deployment.

    One process serves a deployment, unless it has a TensorRT engine on several GPUs. Such an engine
    has one MPI rank per GPU: with one engine in leader mode, the ranks of the command, and with two
    engines in orchestrator mode, processes that the command's only rank spawns.

    profile: None without TensorRT engines. server: tritonserver and the options for every rank.
    endpoints: the listening options, which only rank 0 gets. prefix: prefix of the names of all
    shared-memory regions.
    """
    engines = trt_engines(profile) if profile else {}
    workers = sum(engine.world_size for engine in engines.values())
    if profile is None or workers == len(engines):
        return [*server, *endpoints, _region(prefix)]
    argv = ["mpirun", "--allow-run-as-root", *UNBOUND]
    if len(engines) == 1:
        names = profile.models.model_dump()
        loaded = [f"--load-model={names[role]}" for role in engines]
        worker = [*NO_ENDPOINTS, "--model-control-mode=explicit", *loaded]
        for rank in range(workers):
            argv += [*([":"] if rank else []), "-n", "1", *server]
            argv += [*(worker if rank else endpoints), _region(f"{prefix}{rank}-")]
        return argv
    argv += ["-x", "TRTLLM_ORCHESTRATOR=1", "-x", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES=1"]
    argv += ["-n", "1", *server, *endpoints, _region(f"{prefix}0-")]
    # The orchestrator itself doesn't use the GPUs.
    argv += ["--pinned-memory-pool-byte-size=0", "--enable-peer-access=false"]
    devices = {number for engine in engines.values() for number in engine.device_ids}
    return argv + [f"--cuda-memory-pool-byte-size={number}:0" for number in sorted(devices)]


def check_launch(profile: Profile) -> None:
    """Raise TandemError if this machine can't run the TensorRT engines of a deployment."""
    engines = trt_engines(profile)
    check_built_engines(engines)
    for engine in engines.values():
        if engine.num_nodes > 1:
            raise TandemError(
                f"{profile.name} needs {engine.num_nodes} nodes; run tandem render, then its "
                "serve.sh in an allocation of these nodes"
            )


def server_command(
    program: str | Path,
    repository: str | Path,
    *,
    exit_seconds: int,
    startup_seconds: float,
    thread_pool_size: int,
) -> list[str]:
    """Return tritonserver and the options that every rank needs, except its endpoints.

    exit_seconds: how long a stopping Triton waits for requests in flight. startup_seconds: how long
    a Python model may take to load.
    """
    return [
        *(str(program), f"--model-repository={repository}"),
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={exit_seconds}",
        f"--backend-config=python,stub-timeout-seconds={math.ceil(startup_seconds)}",
        f"--backend-config=python,thread-pool-size={thread_pool_size}",
    ]


def _region(prefix: str) -> str:
    return f"--backend-config=python,shm-region-prefix-name={prefix}"


EXIT_SECONDS = 30  # how long a stopping Triton waits for requests in flight
SCRIPT = "serve.sh"  # the Dockerfile runs it
HERE, MORE = "$repository", "$@"  # shell variables: the script's folder and its arguments
SERVE = """\
#!/bin/sh
# Serves the model repository in the folder of this file. Options of tritonserver may follow:
# sh serve.sh --http-port=9000
set -eu
repository=$(cd "$(dirname "$0")" && pwd)
case $repository in
    *[[:space:]]*) echo "Triton can't serve a path with a space: $repository" >&2; exit 1 ;;
esac
# Triton's Python models import from the working directory first, so it must be empty.
[ -z "$(ls -A)" ] || cd "$(mktemp -d)"
exec {command}
"""
PACKAGES = {  # kind of engine -> Python packages that it needs
    "torch": ("torch", "transformers>=5.3"),
    "llmapi": ("tensorrt_llm",),
    "vllm": ("vllm",),
    "remote": ("tritonclient[grpc]",),
}
README = """\
# {name}

A model repository for Triton Inference Server, rendered by `tandem render`. To change it, change
the profile and render it again.

## Serve

```sh
sh {script}
```

You can move the repository to any path without a space. The script passes its options on to
`tritonserver`; paths in them must be absolute. The server needs shared memory (Docker:
`--shm-size 1g`). Its Python needs
{packages}; the repository includes Tandem.

## Send a request

```sh
curl 127.0.0.1:8000/v2/models/{entry}/generate{stream} \\
    -d '{{"text_input": "Once upon a time", "max_tokens": 32}}'
```

Entries: {entries}.
"""


def serve_script(deployment: Deployment) -> str:
    server = server_command(
        "tritonserver",
        HERE,
        exit_seconds=EXIT_SECONDS,
        startup_seconds=deployment.profile.timeouts.startup,
        thread_pool_size=deployment.thread_pool_size,
    )
    first, *words = launch_command(deployment.profile, server, (MORE,))
    for word in words:  # put each option on its own line
        first += " \\\n    " if word.startswith(("-", MORE, ":")) else " "
        first += f'"{word}"' if HERE in word or word == MORE else shlex.quote(word)
    return SERVE.format(command=first)


def readme(deployment: Deployment) -> str:
    entries = deployment.profile.entries
    whole = [entry.name for entry in entries if entry.kind == "forward"]
    engines = [engine for engine in (deployment.target, deployment.draft) if engine]
    packages = ["numpy", "tokenizers"]
    if deployment.profile.limits.max_guide_bytes:
        packages.append(REQUIREMENT)
    for engine in engines:
        packages += PACKAGES.get(engine.parameters.get("engine", ""), ())
    return README.format(
        name=deployment.profile.name,
        script=SCRIPT,
        packages=", ".join(f"`{package}`" for package in dict.fromkeys(packages)),
        entry=whole[0] if whole else deployment.stream_entry.name,
        stream="" if whole else "_stream",
        entries=", ".join(
            f"`{entry.name}` ({'streams' if entry.kind == 'stream' else 'one response'})"
            for entry in entries
        ),
    )
