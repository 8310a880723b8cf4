"""`tandem generate`: stream the output for one prompt from a running server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from tandem.bls.drafters.registry import ENGINE
from tandem.bls.settings import AUTO, DRAFT_AHEAD
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.client.client import MODEL, URL, Answer, Client, Inputs, inputs_for
from tandem.tools.client.explain import explanation
from tandem.tools.client.terminal import closing_line, show
from tandem.tools.commands.options import add_url, drafter_names
from tandem.tools.errors import TandemError

# group of options -> input -> help of the option that sets it
GROUPS: Mapping[str, Mapping[Tensor, str]] = {
    "drafts": {
        tensors.DRAFTER: f"Drafter: {drafter_names(baseline=True)}.",
        tensors.NUM_DRAFT_TOKENS: "Maximum draft tokens per round, or auto.",
        tensors.DRAFT_AHEAD: "Draft the next round while the target verifies: "
        f"{', '.join(DRAFT_AHEAD)}.",
        tensors.PROMPT_LOOKUP_NUM_TOKENS: "Maximum draft tokens per round of prompt lookup.",
        tensors.MAX_MATCHING_NGRAM_SIZE: "Longest n-gram for prompt lookup to match.",
        tensors.LOOKUP_POOL: "Lookup pool to copy from and to join.",
        tensors.USE_DRAFT_LOGITS: "Accept draft tokens by probability instead of comparing ids.",
        tensors.DRAFT_ACCEPTANCE_THRESHOLD: "Accept every draft token with at least this target "
        "probability. Lossy.",
    },
    "sampling": {
        tensors.TEMPERATURE: "Temperature; 0 is greedy.",
        tensors.TOP_K: "Sample from the k most likely tokens.",
        tensors.TOP_P: "Sample from the most likely tokens that together reach this probability.",
        tensors.MIN_P: "Exclude tokens less likely than this fraction of the most likely one.",
        tensors.SEED: "Seed for sampling; the same seed gives the same output.",
        tensors.REPETITION_PENALTY: "Penalize tokens that already occurred; 1 is no penalty.",
        tensors.PRESENCE_PENALTY: "Subtract this from the logits of tokens that already occurred.",
        tensors.FREQUENCY_PENALTY: "Subtract this from a token's logit for each time it occurred.",
    },
    "text": {
        tensors.LORA_NAME: "LoRA adapter of the target.",
        tensors.MIN_TOKENS: "Minimum output tokens.",
        tensors.STOP_WORDS: "End the output before this text; can be repeated.",
        tensors.BAD_WORDS: "Never generate this text; can be repeated.",
    },
}
STANDARD_INPUT = "-"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", help="Prompt; - reads standard input.")
    server = parser.add_argument_group("server")
    add_url(server, URL)
    server.add_argument(
        "--model", metavar="NAME", default=MODEL, help="Entry to call (default: %(default)s)."
    )
    groups = {
        name: parser.add_argument_group(name) for name in ("text", "sampling", "drafts", "output")
    }
    groups["text"].add_argument(
        "--max-tokens",
        type=_whole_number(tensors.MAX_TOKENS),
        default=128,
        metavar="N",
        help="Maximum output tokens (default: %(default)s).",
    )
    for group, inputs in GROUPS.items():
        for tensor, text in inputs.items():
            name = f"--{tensor.removesuffix('_words').replace('_', '-')}"
            groups[group].add_argument(name, dest=str(tensor), help=text, **_reading(tensor))
    guides = groups["text"].add_mutually_exclusive_group()
    guides.add_argument(
        "--json-schema",
        metavar="FILE",
        help="Generate JSON that fits the schema in this file; - reads standard input.",
    )
    guides.add_argument(
        "--regex",
        metavar="TEXT",
        help="Generate text that matches this whole regular expression.",
    )
    groups["drafts"].add_argument(
        "--prediction",
        metavar="FILE",
        type=Path,
        help="File with the expected output, which prompt lookup copies from first.",
    )
    groups["output"].add_argument(
        "--explain", action="store_true", help="Show what each round drafted and accepted."
    )


def run(options: argparse.Namespace) -> int:
    prompt = _prompt(options)
    more = inputs_of(options)
    answer, status = Answer(), 0
    with Client(options.url) as client:
        streams = client.entry(options.model).streams
        inputs = inputs_for(prompt, options.max_tokens, more, stream=streams)
        try:
            show(client, options.model, inputs, answer, Console())
        except KeyboardInterrupt:
            status = 130
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
    return status


def inputs_of(options: argparse.Namespace) -> Inputs:
    """Return the inputs that the options set, except the prompt's."""
    values = {tensor: getattr(options, tensor) for inputs in GROUPS.values() for tensor in inputs}
    inputs = {tensor: value for tensor, value in values.items() if value is not None}
    guide: tuple[str, str] | None = None
    if options.regex is not None:
        guide = "regex", options.regex
    if options.json_schema is not None:
        guide = "json_schema", _content("--json-schema", options.json_schema)
    if guide:
        inputs[tensors.GUIDED_DECODING_GUIDE_TYPE], inputs[tensors.GUIDED_DECODING_GUIDE] = guide
    if options.prediction is not None:
        inputs[tensors.PREDICTION] = _content("--prediction", options.prediction)
    return inputs


def _content(option: str, path: str | Path) -> str:
    """Return the text of the file that an option names."""
    try:
        raw = sys.stdin.buffer.read() if path == STANDARD_INPUT else Path(path).read_bytes()
        return raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        where = "standard input" if path == STANDARD_INPUT else path
        reason = error.strerror if isinstance(error, OSError) else "it isn't UTF-8"
        raise TandemError(f"{option}: can't read {where}: {reason}") from error


def _prompt(options: argparse.Namespace) -> str:
    """Return the prompt. Bytes that aren't UTF-8 become surrogates, as in `sys.argv`."""
    if options.prompt != STANDARD_INPUT:
        return str(options.prompt)
    if options.json_schema == STANDARD_INPUT:
        raise TandemError("set the prompt or --json-schema to -, not both")
    return sys.stdin.buffer.read().decode(errors="surrogateescape")


def _reading(tensor: Tensor) -> dict[str, Any]:
    if tensor.dtype == "BOOL":
        return {"action": argparse.BooleanOptionalAction}
    if tensor.dtype == "STRING":
        action = "append" if tensor.dims == (-1,) else "store"
        return {"action": action, "metavar": "TEXT" if action == "append" else "NAME"}
    if tensor.dtype == "FP32":
        return {"type": float, "metavar": "X"}
    return {"type": _whole_number(tensor), "metavar": "N"}


def _whole_number(tensor: Tensor) -> Callable[[str], int]:
    """Return an argparse type that reads whole numbers within the range of the tensor's type."""
    bounds = np.iinfo(tensor.dtype.lower())

    def read(text: str) -> int:
        if text == "auto" and tensor == tensors.NUM_DRAFT_TOKENS:
            return AUTO
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number; got {text!r}") from None
        if not bounds.min <= number <= bounds.max:
            bound = f"between {bounds.min} and {bounds.max}"
            raise argparse.ArgumentTypeError(f"must be {bound}; got {number}")
        return number

    return read
