"""Decides how many Triton processes serve a deployment, and which command starts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for TensorRT-LLM."""
        if self.mode != "orchestrator":
            return {}
        return {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}

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
        for name, value in self.environment.items():
            argv += ["-x", f"{name}={value}"]
        for rank in range(self.world_size):
            argv += [*([":"] if rank else []), "-n", "1"]
            argv += self._rank(server, endpoints, f"{prefix}{rank}-", first=rank == 0)
        return argv

    def _rank(
        self, server: Sequence[str], endpoints: Sequence[str], prefix: str, *, first: bool
    ) -> list[str]:
        if first:
            pools = []
            if self.mode == "orchestrator":  # only the workers use GPUs
                pools = ["--pinned-memory-pool-byte-size=0", "--enable-peer-access=false"]
                pools += [f"--cuda-memory-pool-byte-size={n}:0" for n in self.devices]
            return [*server, *endpoints, _region(prefix), *pools]
        loaded = [f"--load-model={name}" for name in self.engines]
        return [*server, *NO_ENDPOINTS, "--model-control-mode=explicit", *loaded, _region(prefix)]


SINGLE = Launch()


def launch_of(profile: Profile) -> Launch:
    engines = trt_engines(profile)
    sections = tuple(engines.values())
    if not sections:
        return SINGLE
    mode: Mode = "single"
    world_size = 1
    workers = sum(engine.world_size for engine in sections)
    if len(sections) > 1 and workers > len(sections):
        mode = "orchestrator"
    elif workers > 1 and len(sections) == 1:
        mode, world_size = "leader", workers
    names = profile.models.model_dump()
    return Launch(
        mode=mode,
        world_size=world_size,
        engines=tuple(names[name] for name in engines),
        devices=tuple(sorted({number for e in sections for number in e.device_ids})),
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


def _region(prefix: str) -> str:
    return f"--backend-config=python,shm-region-prefix-name={prefix}"
