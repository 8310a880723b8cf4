"""`tandem render`: write a profile's model repository, for any Triton to serve."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from tandem.tools.commands.chosen import add_deployment, chosen_deployment
from tandem.tools.triton import repository
from tandem.tools.triton.launch import launch_of
from tandem.tools.triton.rendered_readme import SCRIPT, server_options


def add_options(parser: argparse.ArgumentParser) -> None:
    add_deployment(parser.add_argument_group("what to render"))
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        required=True,
        help="The folder to write: new, empty, or rendered before.",
    )
    output.add_argument(
        "--slurm",
        action="store_true",
        help="Print a batch script for Slurm instead of a command.",
    )


def run(options: argparse.Namespace) -> int:
    planned = chosen_deployment(options, here=False)
    repository.render(planned, options.output)
    served_from = options.output.absolute()  # the server starts in another folder
    if options.slurm:
        server = server_options(planned, served_from)
        print(launch_of(planned.profile).slurm_script(planned.profile.name, server, ()), end="")
        return 0
    names = [model.name for model in repository.models(planned)]
    print(f"{options.output}: {', '.join(names)}")
    print("To serve it, run this where Triton is installed:")
    print(shlex.join(["sh", str(served_from / SCRIPT)]))
    return 0
