"""Decides how many Triton processes serve a deployment, and which command starts them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tandem.tools.errors import TandemError
from tandem.tools.profiles.profile import Profile
from tandem.tools.trtllm.engines import check_built, trt_engines

Mode = Literal["single", "leader", "orchestrator"]
NO_ENDPOINTS = ("--allow-http=false", "--allow-grpc=false", "--allow-metrics=false")
# Triton doesn't let clients register shared-memory regions that begin with
# triton_python_backend_shm_region_.
PREFIX = "triton_python_backend_shm_region_tandem-"
UNBOUND = ("--bind-to", "none")  # don't bind ranks: their threads need more than one core


@dataclass(frozen=True)
class Launch:
    """The processes to start.

    world_size: number of MPI ranks on all nodes. engines: the only models that ranks above 0 load.
    devices: the GPUs of one node.
    """

    mode: Mode = "single"
    world_size: int = 1
    engines: tuple[str, ...] = ()
    devices: tuple[int, ...] = ()

    def command(
        self, server: Sequence[str], endpoints: Sequence[str], prefix: str = PREFIX
    ) -> list[str]:
        """Return the command that starts all processes.

        server: tritonserver and the options for every rank. endpoints: the listening options, which
        only rank 0 gets. prefix: the prefix of all shared-memory region names.
        """
        if self.mode == "single":
            return [*server, *endpoints, _region(prefix)]
        argv = ["mpirun", "--allow-run-as-root", *UNBOUND]
        if self.mode == "orchestrator":
            argv += ["-x", "TRTLLM_ORCHESTRATOR=1", "-x", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES=1"]
        loaded = [f"--load-model={name}" for name in self.engines]
        worker = [*NO_ENDPOINTS, "--model-control-mode=explicit", *loaded]
        for rank in range(self.world_size):
            argv += [*([":"] if rank else []), "-n", "1", *server]
            argv += [*(worker if rank else endpoints), _region(f"{prefix}{rank}-")]
        if self.mode == "orchestrator":  # its only rank doesn't use the GPUs
            argv += ["--pinned-memory-pool-byte-size=0", "--enable-peer-access=false"]
            argv += [f"--cuda-memory-pool-byte-size={n}:0" for n in self.devices]
        return argv


SINGLE = Launch()


def launch_of(profile: Profile) -> Launch:
    engines = trt_engines(profile)
    workers = sum(engine.world_size for engine in engines.values())
    mode: Mode = "single"
    if workers > len(engines):
        mode = "leader" if len(engines) == 1 else "orchestrator"
    names = profile.models.model_dump()
    return Launch(
        mode=mode,
        world_size=workers if mode == "leader" else 1,
        engines=tuple(names[name] for name in engines),
        devices=tuple(sorted({n for engine in engines.values() for n in engine.device_ids})),
    )


def prepared_launch(profile: Profile) -> Launch:
    """Return the launch of a deployment; raise TandemError if this machine can't run it."""
    engines = trt_engines(profile)
    check_built(engines)
    for engine in engines.values():
        if engine.num_nodes > 1:
            raise TandemError(
                f"{profile.name} needs {engine.num_nodes} nodes; run tandem render, then its "
                "serve.sh in an allocation of these nodes"
            )
    return launch_of(profile)


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
