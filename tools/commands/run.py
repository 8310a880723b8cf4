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
from tandem.tools.commands.options import add_count, add_inputs, nonempty_path, read_inputs
from tandem.tools.commands.run_options import (
    DRAFT_TARGET_OPTION,
    PROMPT_LOOKUP_OPTION,
    make_deployment,
    read_drafting,
)
from tandem.tools.triton.server import serving

SAMPLING = (tensors.TEMPERATURE, tensors.TOP_K, tensors.TOP_P, tensors.RANDOM_SEED)


def add_options(parser: argparse.ArgumentParser) -> None:
    engines = parser.add_argument_group("engines")
    engines.add_argument(
        "--engine-dir",
        type=nonempty_path,
        metavar="DIR",
        required=True,
        help="Target: a Hugging Face checkpoint, or a TensorRT engine from trtllm-build.",
    )
    engines.add_argument(
        "--draft-engine-dir",
        type=nonempty_path,
        metavar="DIR",
        help="Draft model: a checkpoint or an engine.",
    )
    engines.add_argument(
        "--tokenizer-dir",
        type=nonempty_path,
        metavar="DIR",
        help="Tokenizer of target and draft (default: the target's; required for TensorRT "
        "engines).",
    )
    engines.add_argument(
        "--kv-cache-free-gpu-memory-fraction",
        type=_fraction,
        metavar="X",
        help="Fraction of free GPU memory for a TensorRT engine's KV cache.",
    )
    # Some of NVIDIA's documented commands put a standalone `=` before these strings, so each option
    # takes several arguments.
    drafts = parser.add_argument_group("drafts")
    drafts.add_argument(
        DRAFT_TARGET_OPTION,
        nargs="+",
        metavar="LIST",
        help='Draft model\'s "[draft_len,[draft devices],[target devices],use_logits]", such '
        'as "[4,[0],[1],True]".',
    )
    drafts.add_argument(
        PROMPT_LOOKUP_OPTION,
        nargs="+",
        metavar="LIST",
        help='Prompt lookup\'s "[prompt_lookup_num_tokens,max_matching_ngram_size,[devices]]", '
        'such as "[10,2,[0]]".',
    )
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
    fixed = parser.add_argument_group("options of NVIDIA's commands that Tandem ignores")
    fixed.add_argument(
        "--kv-cache-enable-block-reuse",
        action="store_true",
        help="No effect: block reuse is always on.",
    )
    fixed.add_argument(
        "--output-generation-logits",
        action="store_true",
        help="No effect: logits are sent if use_logits is true.",
    )


def run(options: argparse.Namespace) -> int:
    prompts = options.input_text or [p.text for p in read_prompts(options.input_file)]
    drafting = read_drafting(options)
    deployment = make_deployment(options, drafting)
    more = {**drafting.inputs, **read_inputs(options, SAMPLING)}
    with serving(deployment) as server, Client(server.grpc_url) as client:
        entry = deployment.stream_entry.name
        for number, prompt in enumerate(prompts):
            asked = inputs_for(prompt, options.max_output_len, more, stream=False)
            answer = client.answer(entry, asked)
            print(as_run_py_prints(number, prompt, answer.text), flush=True)
            print(closing_line(answer), file=sys.stderr)
    return 0


def _fraction(text: str) -> float:
    try:
        fraction = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number; got {text!r}") from None
    if not 0 < fraction < 1:
        raise argparse.ArgumentTypeError(f"must be between 0 and 1; got {text}")
    return fraction


def as_run_py_prints(number: int, prompt: str, text: str) -> str:
    """Format a prompt and its answer as `run.py` prints them."""
    shown = f'Input [Text {number}]: "{prompt}"\nOutput [Text {number} Beam 0]: "{text}"'
    # Generated control characters must not reach a terminal.
    return shown.translate(PICTURES) if Console().is_terminal else shown
