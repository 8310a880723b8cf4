"""Print the script that builds the TensorRT engines of a profile.

The command fails if the settings conflict.

    tandem build --profile llama-3.1-70b
    tandem build --profile llama-3.1-70b > build.sh && sh build.sh
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping

from tandem.tools.commands.options import add_profile, chosen_profile, nonempty_path
from tandem.tools.errors import TandemError
from tandem.tools.profiles.deployment import load
from tandem.tools.profiles.engines.tensorrtllm import TensorRTLLMDraft
from tandem.tools.trtllm import EXAMPLES, UNSEEN, engine_steps, engines_to_build, script


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to build")
    add_profile(group)
    group.add_argument(
        "--examples",
        type=nonempty_path,
        metavar="DIR",
        default=EXAMPLES,
        help="Folder of TensorRT-LLM's examples, for quantize.py (default: %(default)s).",
    )


def run(options: argparse.Namespace) -> int:
    path = chosen_profile(options)
    profile, engines = engines_to_build(path)
    if not engines:
        raise TandemError(f"{path} has no engine of kind 'tensorrtllm' to build")
    absent = {name: e.checkpoint for name, e in engines.items() if not e.checkpoint.is_dir()}
    if not absent:
        load(path)  # checks the checkpoints too
    steps = [
        step for name, e in engines.items() for step in engine_steps(name, e, options.examples)
    ]
    for name, folder in absent.items():
        print(f"{name}: no folder {folder} here; assuming a {UNSEEN} model", file=sys.stderr)
    for line in check_num_tokens(engines, profile.admission.max_requests):
        print(line, file=sys.stderr)
    print(script(steps), end="")
    return 0


def check_num_tokens(engines: Mapping[str, TensorRTLLMDraft], max_requests: int) -> Iterator[str]:
    """Yield a warning for each target that would sometimes drop draft tokens silently.

    Raises TandemError if a target would always drop them.
    """
    for name, engine in engines.items():
        if not (engine.max_draft_len and engine.run.enable_chunked_context):
            continue
        room = engine.build.max_num_tokens // max_requests
        line = (
            f"{name}: max_num_tokens {engine.build.max_num_tokens} leaves {room} tokens per step "
            f"for each of {max_requests} requests; longer contexts get fewer draft tokens"
        )
        if room <= engine.max_draft_len:
            raise TandemError(f"{line}; raise max_num_tokens or lower admission.max_requests")
        if room < engine.build.max_seq_len:
            yield line
