"""`tandem render`: write a profile's model repository, for any Triton to serve."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from . import deployment, repository
from .options import Verbs, add_profile, chosen_profile
from .server import READY_SECONDS
from .trtllm.launch import launch_of

EXIT_SECONDS = 30  # for requests in flight when it is asked to stop


def register(verbs: Verbs) -> None:
    """Add the verb to the command."""
    parser = verbs.add_parser("render", help="write the model repository of a profile")
    add_profile(parser)
    parser.add_argument(
        "--output", type=Path, metavar="DIR", required=True, help="new, empty or rendered before"
    )
    parser.add_argument(
        "--slurm", action="store_true", help="print a batch script for Slurm, not a command"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Render; return the exit status."""
    planned = deployment.load(chosen_profile(options))
    repository.render(planned, options.output)
    launch = launch_of(planned.profile)
    server = (
        *("tritonserver", f"--model-repository={options.output}"),
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={EXIT_SECONDS}",
        f"--backend-config=python,stub-timeout-seconds={READY_SECONDS:.0f}",
        f"--backend-config=python,thread-pool-size={planned.thread_pool_size}",
    )
    if options.slurm:
        print(launch.slurm_script(planned.profile.name, server, ()), end="")
        return 0
    print(f"{options.output}: {', '.join(model.name for model in repository.models(planned))}")
    print(shlex.join(launch.command(server, ())))
    return 0
