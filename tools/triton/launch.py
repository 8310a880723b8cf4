"""How many Tritons serve a deployment, and what starts them.

single: one process; every engine runs on one GPU. leader: a process a GPU, and each runs its part
of the one engine. orchestrator: one Triton that spawns workers for each of two engines, because
ranks that an engine leads can not load a second. prespawned: the same, its workers started beside
it, as fast logits want it.
"""

from __future__ import annotations

import shlex
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tandem.tools.errors import TandemError
from tandem.tools.profiles.profile import Profile
from tandem.tools.trtllm.engines import check_built, trt_engines

Mode = Literal["single", "leader", "orchestrator", "prespawned"]
SPAWN = "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES"
DEAF = ("--allow-http=false", "--allow-grpc=false", "--allow-metrics=false")
# Triton guards regions of this beginning from its clients; whatever follows is free.
PREFIX = "triton_python_backend_shm_region_tandem-"
PLAIN = frozenset(string.ascii_letters + string.digits + "@%+=:,./-_")  # to any shell
UNBOUND = ("--bind-to", "none")  # a rank has threads, which one core would not carry


@dataclass(frozen=True)
class Launch:
    """Who is started. engines: names of the models that ranks above 0 load; they load no other.

    world_size: MPI ranks, over all nodes. spawned: those that an orchestrator adds. devices: the
    GPUs of one node.
    """

    mode: Mode = "single"
    world_size: int = 1
    spawned: int = 0
    nodes: int = 1
    engines: tuple[str, ...] = ()
    devices: tuple[int, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """What TensorRT-LLM reads in the environment."""
        if self.mode in ("single", "leader"):
            return {}
        return {"TRTLLM_ORCHESTRATOR": "1", SPAWN: str(int(self.mode == "orchestrator"))}

    def command(
        self, server: Sequence[str], endpoints: Sequence[str], prefix: str = PREFIX
    ) -> list[str]:
        """Return the one command that starts everything on one node.

        server: tritonserver and the options of every rank. endpoints: where rank 0 listens. prefix:
        that the names of all shared-memory regions begin with.
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

    def slurm_script(
        self, name: str, server: Sequence[str], endpoints: Sequence[str], prefix: str = PREFIX
    ) -> str:
        """Return a batch script for sbatch; its arguments are those of ``command``."""
        ranks = self.world_size + self.spawned  # mpirun spawns no more than the job has tasks
        lines = [
            "#!/bin/bash",
            f"#SBATCH --job-name={name}",
            f"#SBATCH --nodes={self.nodes}",
            f"#SBATCH --ntasks-per-node={ranks // self.nodes}",
            f"#SBATCH --gpus-per-node={max(self.devices, default=0) + 1}",
            "#SBATCH --exclusive",
            "set -euo pipefail",
        ]
        if self.mode in ("single", "orchestrator"):
            lines.append(shlex.join(self.command(server, endpoints, prefix)))
            return "\n".join(lines) + "\n"
        lines += [f"export {name}={value}" for name, value in self.environment.items()]
        first = self._rank(server, endpoints, f"{prefix}0-", first=True)
        other = self._rank(server, endpoints, f"{prefix}$SLURM_PROCID-", first=False)
        lines += [
            "srun --mpi=pmix --kill-on-bad-exit=1 bash -c '",
            'if [ "$SLURM_PROCID" -eq 0 ]; then',
            f"  exec {_within_quotes(first)}",
            "else",
            f"  exec {_within_quotes(other)}",
            "fi'",
        ]
        return "\n".join(lines) + "\n"

    def _rank(
        self, server: Sequence[str], endpoints: Sequence[str], prefix: str, *, first: bool
    ) -> list[str]:
        if first:
            pools = []
            if self.mode == "orchestrator":  # it leaves the GPUs to its spawned workers
                pools = ["--pinned-memory-pool-byte-size=0", "--enable-peer-access=false"]
                pools += [f"--cuda-memory-pool-byte-size={n}:0" for n in self.devices]
            return [*server, *endpoints, _region(prefix), *pools]
        loaded = [f"--load-model={name}" for name in self.engines]
        return [*server, *DEAF, "--model-control-mode=explicit", *loaded, _region(prefix)]


SINGLE = Launch()


def launch_of(profile: Profile) -> Launch:
    engines = trt_engines(profile)
    sections = tuple(engines.values())
    if not sections:
        return SINGLE
    mode: Mode = "single"
    world_size, spawned = 1, 0
    workers = sum(engine.world_size for engine in sections)
    if any(engine.run.speculative_decoding_fast_logits for engine in sections):
        mode, world_size = "prespawned", 1 + workers
    elif len(sections) > 1 and workers > len(sections):
        mode, spawned = "orchestrator", workers
    elif workers > 1 and len(sections) == 1:
        mode, world_size = "leader", workers
    names = profile.models.model_dump()
    return Launch(
        mode=mode,
        world_size=world_size,
        spawned=spawned,
        nodes=sections[0].num_nodes,
        engines=tuple(names[name] for name in engines),
        devices=tuple(sorted({number for e in sections for number in e.device_ids})),
    )


def prepared_launch(profile: Profile) -> Launch:
    """Return how `tandem up` launches it; raise TandemError where it cannot, from here.

    Its engines must be built, and on one node.
    """
    check_built(trt_engines(profile))
    launch = launch_of(profile)
    if launch.nodes > 1:
        raise TandemError(
            f"{profile.name} runs on {launch.nodes} nodes; submit what tandem render --slurm prints"
        )
    return launch


def _region(prefix: str) -> str:
    return f"--backend-config=python,shm-region-prefix-name={prefix}"


def _within_quotes(argv: Sequence[str]) -> str:
    """A command inside a script's single quotes; only $SLURM_PROCID is expanded there."""
    return " ".join(f'"{word}"' if set(word) - PLAIN else word for word in argv)
