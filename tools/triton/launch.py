"""Decides how many Triton processes serve a deployment, and which command starts them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from tandem.tools.errors import TandemError
from tandem.tools.profiles.profile import Profile
from tandem.tools.trtllm.engines import check_built_engines, trt_engines

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
