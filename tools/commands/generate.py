"""Stream the output for a prompt from a running server.

On a terminal, accepted draft tokens are green. A summary goes to standard error.

    tandem generate "def main():" --max-tokens 64
    tandem generate "def main():" --drafter none --url 127.0.0.1:9001
    tandem generate - --temperature 0.7 --seed 1 --explain < prompt.txt
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from rich.console import Console

from tandem.bls.drafters.registry import ENGINE
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.client.answer import Answer
from tandem.tools.client.client import MODEL, URL, Client, Inputs, inputs_for
from tandem.tools.client.terminal import LEGEND, closing_line, explanation, show
from tandem.tools.commands.options import (
    add_inputs,
    add_url,
    nonempty,
    nonempty_path,
    option_name,
    read_inputs,
    whole_number,
)
from tandem.tools.errors import TandemError, UsageError

GROUPS: Mapping[str, tuple[Tensor, ...]] = {
    "text": (
        tensors.LORA_NAME,
        tensors.MIN_TOKENS,
        tensors.STOP_WORDS,
        tensors.BAD_WORDS,
    ),
    "sampling": (
        tensors.TEMPERATURE,
        tensors.TOP_K,
        tensors.TOP_P,
        tensors.MIN_P,
        tensors.SEED,
        tensors.REPETITION_PENALTY,
        tensors.PRESENCE_PENALTY,
        tensors.FREQUENCY_PENALTY,
    ),
    "drafts": (
        tensors.DRAFTER,
        tensors.NUM_DRAFT_TOKENS,
        tensors.DRAFT_AHEAD,
        tensors.PROMPT_LOOKUP_NUM_TOKENS,
        tensors.MAX_MATCHING_NGRAM_SIZE,
        tensors.LOOKUP_POOL,
        tensors.USE_DRAFT_LOGITS,
        tensors.DRAFT_ACCEPTANCE_THRESHOLD,
    ),
}
STANDARD_INPUT = "-"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", help="Prompt; - reads standard input.")
    server = parser.add_argument_group("server")
    add_url(server, URL)
    server.add_argument(
        "--model", metavar="NAME", default=MODEL, help="Entry to call (default: %(default)s)."
    )
    groups = {name: parser.add_argument_group(name) for name in GROUPS}
    groups["text"].add_argument(
        "--max-tokens",
        type=whole_number(tensors.MAX_TOKENS),
        default=128,
        metavar="N",
        help="Maximum output tokens (default: %(default)s).",
    )
    for name, inputs in GROUPS.items():
        add_inputs(groups[name], inputs)
    guides = groups["text"].add_mutually_exclusive_group()
    guides.add_argument(
        "--json-schema",
        type=nonempty,
        metavar="FILE",
        help="Generate JSON that fits the schema in this file; - reads standard input.",
    )
    guides.add_argument(
        "--regex",
        type=nonempty,
        metavar="TEXT",
        help="Generate text that matches this whole regular expression.",
    )
    groups["drafts"].add_argument(
        "--prediction",
        metavar="FILE",
        type=nonempty_path,
        help="File with the expected output, which prompt lookup copies from first.",
    )
    parser.add_argument_group("output").add_argument(
        "--explain", action="store_true", help="Show what each round drafted and accepted."
    )


def run(options: argparse.Namespace) -> int:
    prompt = _prompt(options)
    more = inputs_from_options(options)
    answer, status = Answer(), 0
    with Client(options.url) as client:
        streams = client.entry(options.model).streams
        inputs = inputs_for(prompt, options.max_tokens, more, stream=streams)
        try:
            show(client, options.model, inputs, answer, Console())
        except KeyboardInterrupt:
            status = 130
        except TandemError as error:
            raise TandemError(use_option_names(str(error), options)) from error
    print(closing_line(answer), file=sys.stderr)
    statistics = answer.statistics or {}
    for warning in (statistics.get("guide") or {}).get("warnings", ()):
        print(f"warning: {warning}", file=sys.stderr)
    if options.explain and statistics:
        if ENGINE.name in statistics["by_drafter"]:
            print(
                "the target drafts inside the engine and doesn't report its rounds", file=sys.stderr
            )
        else:
            Console(stderr=True).print(explanation(statistics))
            print(LEGEND, file=sys.stderr)
    return status


def inputs_from_options(options: argparse.Namespace) -> Inputs:
    """Return the inputs that the options set, except the prompt's."""
    inputs = {**read_inputs(options, chain(*GROUPS.values()))}
    if options.regex is not None:
        inputs[tensors.GUIDED_DECODING_GUIDE_TYPE] = "regex"
        inputs[tensors.GUIDED_DECODING_GUIDE] = options.regex
    if options.json_schema is not None:
        schema = _content("--json-schema", options.json_schema)
        if not schema:
            raise TandemError("--json-schema must not be empty")
        inputs[tensors.GUIDED_DECODING_GUIDE_TYPE] = "json_schema"
        inputs[tensors.GUIDED_DECODING_GUIDE] = schema
    if options.prediction is not None:
        inputs[tensors.PREDICTION] = _content("--prediction", options.prediction)
    return inputs


def use_option_names(message: str, options: argparse.Namespace) -> str:
    """Return an error message of the server with the user's options instead of inputs."""
    guide = "--json-schema" if options.regex is None else "--regex"
    names: dict[str, str] = {
        **{tensor: option_name(tensor) for tensor in chain(*GROUPS.values())},
        tensors.TEXT_INPUT: "the prompt",
        tensors.MAX_TOKENS: "--max-tokens",
        tensors.GUIDED_DECODING_GUIDE_TYPE: guide,
        tensors.GUIDED_DECODING_GUIDE: guide,
        tensors.PREDICTION: "--prediction",
    }

    def rename(found: re.Match[str]) -> str:
        quoted = r"(?:\binputs? )?'(\w+)'"
        return re.sub(quoted, lambda name: names.get(name[1], name[0]), found[0])

    # Only these quoted words are names of inputs. Later ones may be the user's own text.
    return re.sub(r"\binputs? '\w+'(?: (?:and|requires) '\w+')?", rename, message, count=1)


def _content(option: str, path: str | Path) -> str:
    """Return the text of the file that an option names."""
    try:
        raw = sys.stdin.buffer.read() if path == STANDARD_INPUT else Path(path).read_bytes()
        return raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        where = "standard input" if path == STANDARD_INPUT else path
        reason = error.strerror if isinstance(error, OSError) else "it isn't UTF-8"
        raise TandemError(f"{option}: can't read {where}: {reason}") from error


def _prompt(options: argparse.Namespace) -> str:
    """Return the prompt. Bytes that aren't UTF-8 become surrogates, as in `sys.argv`."""
    if options.prompt != STANDARD_INPUT:
        return str(options.prompt)
    if options.json_schema == STANDARD_INPUT:
        raise UsageError("set the prompt or --json-schema to -, not both")
    return sys.stdin.buffer.read().decode(errors="surrogateescape")
