"""`tandem render`: write a profile's model repository, for any Triton to serve."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import deployment, repository
from .options import Verbs, add_profile, chosen_profile


def register(verbs: Verbs) -> None:
    """Add the verb to the command."""
    parser = verbs.add_parser("render", help="write the model repository of a profile")
    add_profile(parser)
    parser.add_argument(
        "--output", type=Path, metavar="DIR", required=True, help="new, empty or rendered before"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Render; return the exit status."""
    planned = deployment.load(chosen_profile(options))
    repository.render(planned, options.output)
    print(
        f"{options.output}: {', '.join(model.name for model in repository.models(planned))}\n"
        f"tritonserver --model-repository={options.output} --disable-auto-complete-config "
        f"--backend-config=python,thread-pool-size={planned.thread_pool_size}"
    )
    return 0
