"""Write the model repository of a profile or of checkpoints, for another Triton server.

The server needs the engines' packages. Tandem doesn't have to be installed there.

    tandem render --output my-repository
    tandem render --target path/to/target --output my-repository
"""

from __future__ import annotations

import argparse
import shlex

from tandem.tools.commands.options import add_deployment, chosen_deployment, nonempty_path
from tandem.tools.triton import repository
from tandem.tools.triton.launch import SCRIPT


def add_options(parser: argparse.ArgumentParser) -> None:
    add_deployment(parser.add_argument_group("what to render"))
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output",
        type=nonempty_path,
        metavar="DIR",
        required=True,
        help="Output folder: new, empty, or from an earlier render.",
    )


def run(options: argparse.Namespace) -> int:
    deployment = chosen_deployment(options, here=False)
    repository.render(deployment, options.output)
    names = [model.name for model in repository.models(deployment)]
    print(f"{options.output}: {', '.join(names)}")
    if deployment.draft_tokenizer:
        print("Drafts are translated through the text, because the vocabularies differ.")
    print("To serve it on a machine with Triton, run:")
    print(shlex.join(["sh", str(options.output.absolute() / SCRIPT)]))
    return 0
