"""Serve engines, run prompts in order and stop, like NVIDIA's run.py.

The options match NVIDIA's run.py, spelled with dashes or underscores.

    tandem run --engine-dir path/to/target --input-text 'Once upon a time'
"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from tandem.contract import entry as tensors
from tandem.tools.client.client import Client, inputs_for
from tandem.tools.client.dataset import PROMPT_KEYS, read_prompts
from tandem.tools.client.terminal import PICTURES, closing_line
from tandem.tools.commands import run_options
from tandem.tools.commands.options import add_count, add_inputs, nonempty_path, read_inputs
from tandem.tools.triton.server import serving

SAMPLING = (tensors.TEMPERATURE, tensors.TOP_K, tensors.TOP_P, tensors.RANDOM_SEED)


def add_options(parser: argparse.ArgumentParser) -> None:
    run_options.add_engines(parser, required=True)
    run_options.add_drafting(parser)
    answers = parser.add_argument_group("prompts and answers")
    prompts = answers.add_mutually_exclusive_group(required=True)
    prompts.add_argument(
        "--input-text",
        nargs="+",
        action="extend",
        metavar="TEXT",
        help="Prompt; can be repeated.",
    )
    prompts.add_argument(
        "--input-file",
        type=nonempty_path,
        metavar="FILE",
        help=f"File of prompts, one per line, or JSONL with {' or '.join(PROMPT_KEYS)}.",
    )
    add_count(answers, "--max-output-len", "Maximum output tokens", 128)
    add_inputs(parser.add_argument_group("sampling"), SAMPLING)


def run(options: argparse.Namespace) -> int:
    prompts = options.input_text or [p.text for p in read_prompts(options.input_file)]
    drafting = run_options.read_drafting(options)
    deployment = run_options.make_deployment(options, drafting)
    more = {**drafting.inputs, **read_inputs(options, SAMPLING)}
    with serving(deployment) as server, Client(server.grpc_url) as client:
        entry = deployment.stream_entry.name
        for number, prompt in enumerate(prompts):
            asked = inputs_for(prompt, options.max_output_len, more, stream=False)
            answer = client.answer(entry, asked)
            print(as_run_py_prints(number, prompt, answer.text), flush=True)
            print(closing_line(answer), file=sys.stderr)
    return 0


def as_run_py_prints(number: int, prompt: str, text: str) -> str:
    """Format a prompt and its answer as `run.py` prints them."""
    shown = f'Input [Text {number}]: "{prompt}"\nOutput [Text {number} Beam 0]: "{text}"'
    # Generated control characters must not reach a terminal.
    return shown.translate(PICTURES) if Console().is_terminal else shown
