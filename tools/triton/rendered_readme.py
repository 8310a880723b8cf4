"""Writes the README and the start script of a rendered repository."""

from __future__ import annotations

import shlex

from tandem.guides.library import REQUIREMENT
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.triton.launch import launch_command, server_command

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
