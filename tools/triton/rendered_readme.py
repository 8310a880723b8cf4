"""How a rendered repository is served: the script in it, and the README that says so."""

from __future__ import annotations

import shlex
from pathlib import Path

from tandem.guides.library import REQUIREMENT
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.triton.launch import launch_of

EXIT_SECONDS = 30  # for requests in flight when it is asked to stop
SCRIPT = "serve.sh"  # the image of the Dockerfile runs it
HERE, MORE = "$repository", "$@"  # of the script: where it lies, and options of whoever calls it
SERVE = """\
#!/bin/sh
# Serves the model repository that this file lies in, wherever it was copied or mounted. More
# options of tritonserver may follow: sh serve.sh --http-port=9000
set -eu
repository=$(cd "$(dirname "$0")" && pwd)
case $repository in
    *[[:space:]]*) echo "Triton serves no path with a space: $repository" >&2; exit 1 ;;
esac
# Triton's Python models import from the working directory first: nothing may be there.
[ -z "$(ls -A)" ] || cd "$(mktemp -d)"
exec {command}
"""
PACKAGES = {  # of the Python that runs the models, by the engine in them
    "torch": ("torch", "transformers>=5"),
    "llmapi": ("tensorrt_llm",),
    "vllm": ("vllm",),
}
README = """\
# {name}

A model repository for Triton Inference Server, rendered by `tandem render`. To change it, change
the profile and render it again.

## Serve

```sh
sh {script}
```

The script may lie anywhere, together with the models, but in no path with a space. It starts
`tritonserver`, and hands on more of its options; paths in these must be absolute. Give the server
shared memory (Docker: `--shm-size 1g`). Its Python needs
{packages}; Tandem is in the repository.

## Ask

```sh
curl 127.0.0.1:8000/v2/models/{entry}/generate{stream} \\
    -d '{{"text_input": "Once upon a time", "max_tokens": 32}}'
```

## Models

| model | for |
|---|---|
{models}
"""


def server_options(planned: Deployment, folder: str | Path) -> list[str]:
    """Return the tritonserver command of every process that serves the repository."""
    return [
        *("tritonserver", f"--model-repository={folder}"),
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={EXIT_SECONDS}",
        f"--backend-config=python,stub-timeout-seconds={planned.profile.timeouts.startup:.0f}",
        f"--backend-config=python,thread-pool-size={planned.thread_pool_size}",
    ]


def serve_script(planned: Deployment) -> str:
    launch = launch_of(planned.profile)
    first, *words = launch.command(server_options(planned, HERE), (MORE,))
    for word in words:  # each option begins a line
        first += " \\\n    " if word.startswith(("-", MORE, ":")) else " "
        first += f'"{word}"' if HERE in word or word == MORE else shlex.quote(word)
    return SERVE.format(command=first)


def readme(planned: Deployment) -> str:
    whole = [entry.name for entry in planned.profile.entries if entry.kind == "forward"]
    return README.format(
        name=planned.profile.name,
        script=SCRIPT,
        packages=", ".join(f"`{package}`" for package in _packages(planned)),
        entry=whole[0] if whole else planned.stream_entry.name,
        stream="" if whole else "_stream",
        models="\n".join(f"| `{name}` | {purpose} |" for name, purpose in _purposes(planned)),
    )


def _packages(planned: Deployment) -> list[str]:
    engines = [engine for engine in (planned.target, planned.draft) if engine]
    kinds = [engine.parameters.get("engine", "") for engine in engines]
    own = [package for kind in kinds for package in PACKAGES.get(kind, ())]
    guides = (REQUIREMENT,) if planned.profile.limits.max_guide_bytes else ()
    return [*dict.fromkeys(("numpy", "tokenizers", *guides, *own))]


def _purposes(planned: Deployment) -> list[tuple[str, str]]:
    names, profile = planned.profile.models, planned.profile
    streams = "clients: answers in chunks, by gRPC streaming or `generate_stream`"
    if profile.instances > 1:
        streams += f"; {profile.instances} processes"
    once = "clients: answers once, by `infer` or `generate`"
    entries = [
        (
            entry.name,
            (streams if entry.kind == "stream" else once)
            + (f"; drafter `{entry.drafter}` by default" if entry.drafter else ""),
        )
        for entry in profile.entries
    ]
    return [
        *entries,
        (names.target, "the target"),
        *([(names.draft, "the draft")] if planned.draft else []),
        (names.preprocessing, "text to token ids"),
        (names.postprocessing, "token ids to text"),
    ]
