"""Run a dataset with and without speculation, and score the outputs by ROUGE.

The options match NVIDIA's summarize.py.

    tandem summarize --limit 4
    tandem summarize --url 127.0.0.1:8001 --drafter prompt_lookup --check-accuracy
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from tandem.bls.drafters.registry import BASELINE
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.benchmark.load_generator import PRIMING_TOKENS, MeasuredServer, measured_server
from tandem.tools.client.answer import Answer, Answers
from tandem.tools.client.client import MODEL, Client, Inputs, Value, inputs_for
from tandem.tools.client.dataset import Item, read_items
from tandem.tools.client.terminal import table_console
from tandem.tools.commands import run_options
from tandem.tools.commands.options import (
    DEMO,
    add_count,
    add_profile,
    add_url,
    chosen_profile,
    drafter_names,
    finite_number,
    nonempty_path,
    output_file,
    write_json,
)
from tandem.tools.commands.run_options import DraftingOptions
from tandem.tools.errors import TandemError, UsageError
from tandem.tools.evaluation import AccuracyComparison, HuggingFace, rouge_scorer
from tandem.tools.profiles.deployment import Deployment, load
from tandem.tools.profiles.engines.torch import TorchTarget

DATASET = DEMO / "summaries.jsonl"


def add_options(parser: argparse.ArgumentParser) -> None:
    dataset = parser.add_argument_group("dataset")
    dataset.add_argument(
        "--dataset",
        type=nonempty_path,
        default=DATASET,
        metavar="FILE",
        help='Dataset: JSONL of {"id", "text", "summary"}, and optionally "stop" (default: '
        "docstrings).",
    )
    add_count(dataset, "--limit", "Items to use, from the start (default: all).")
    add_count(dataset, "--max-output-len", "Maximum output tokens", 100)
    server = parser.add_argument_group("server")
    add_profile(server)
    add_url(server)
    server.add_argument(
        "--model",
        metavar="NAME",
        help=f"Entry to call; needs --url (default: {MODEL}).",
    )
    run_options.add_engines(parser, required=False)
    run_options.add_drafting(parser).add_argument(
        "--drafter",
        metavar="NAME",
        help=f"Drafter to compare with '{BASELINE.name}' (default: as served).",
    )
    columns = parser.add_argument_group("further columns")
    columns.add_argument(
        "--test-hf", action="store_true", help="Add a column for generate() of transformers."
    )
    columns.add_argument(
        "--hf-model-dir",
        type=nonempty_path,
        metavar="DIR",
        help="Checkpoint for --test-hf (default: the target's).",
    )
    columns.add_argument(
        "--test-trt-llm",
        action="store_true",
        help="No effect: the served model is always tested.",
    )
    columns.add_argument(
        "--batch-size", type=int, default=1, choices=[1], metavar="N", help="Must be 1."
    )
    accuracy = parser.add_argument_group("accuracy")
    accuracy.add_argument(
        "--check-accuracy", action="store_true", help="Fail if ROUGE-1 is below a threshold."
    )
    accuracy.add_argument(
        "--rouge1-threshold",
        type=finite_number,
        default=15.0,  # the default in NVIDIA's documents
        metavar="PERCENT",
        help="Minimum ROUGE-1 of every output against the reference (default: %(default)g).",
    )
    parser.add_argument_group("output").add_argument(
        "--json",
        type=output_file,
        metavar="FILE",
        help="Write statistics and outputs to this JSON file.",
    )


def run(options: argparse.Namespace) -> int:
    """Generate answers, score them and print a table.

    Returns 1 if `--check-accuracy` is set and a score is below its threshold.
    """
    drafting = run_options.read_drafting(options)
    rouge_scorer()  # raises TandemError if the package is missing
    items = read_items(options.dataset)[: options.limit]
    if options.model and not options.url:
        raise UsageError("--model needs --url; set both")
    deployment = _chosen_deployment(options, drafting)
    hugging_face = _hugging_face(options, deployment)
    server = measured_server(deployment, options.url, options.model)
    speculation = speculation_inputs(options.drafter, drafting, server)
    with server.running() as url, Client(url) as client:
        columns = answer_in_turns(client, server.entry, items, speculation, options)
    if hugging_face:
        hugging_face.answer(items[0].text, 1)  # loads and warms up
        answers = []
        with Console(stderr=True).status("asking") as status:
            for number, item in enumerate(items, start=1):
                status.update(escape(f"transformers: item {number} of {len(items)}: {item.id}"))
                answers.append(hugging_face.answer(item.text, options.max_output_len, item.stop))
        columns["hugging_face"] = Answers(answers)
    comparison = AccuracyComparison(items, columns)
    if options.json:  # before the table, because standard output may be full or closed
        write_json(options.json, comparison.as_json())
    console = table_console()
    console.print(comparison.table(), highlight=False)
    if not options.check_accuracy:
        return 0
    shortfalls = comparison.shortfalls(options.rouge1_threshold)
    for shortfall in shortfalls:
        console.print(f"tandem: {shortfall}", style="red", markup=False, highlight=False)
    return int(bool(shortfalls))


def speculation_inputs(
    drafter: str | None, drafting: DraftingOptions, server: MeasuredServer
) -> Inputs:
    """Return the inputs that select the speculation to compare with the baseline.

    Raises TandemError if there is no baseline or nothing to compare with it.
    """
    inputs: dict[Tensor, Value] = dict(drafting.inputs) if drafting.is_set else {}
    if drafter is not None or not inputs:
        inputs[tensors.DRAFTER] = drafter or server.default_drafter
    server.check_baseline()
    server.check_drafter(str(inputs[tensors.DRAFTER]))
    if inputs.get(tensors.DRAFTER) == BASELINE.name:
        raise TandemError(
            f"nothing to compare with drafter '{BASELINE.name}'; set --drafter to {drafter_names()}"
        )
    return inputs


def answer_in_turns(
    client: Client,
    entry: str,
    items: Sequence[Item],
    speculation: Inputs,
    options: argparse.Namespace,
) -> dict[str, Answers]:
    """Return the greedy answers of the baseline and of the speculative run, by drafter.

    The baseline and the speculative run alternate, item by item.
    """

    def answer(item: Item, inputs: Inputs, max_tokens: int) -> Answer:
        stop: Inputs = {tensors.STOP_WORDS: item.stop} if item.stop else {}
        asked = inputs_for(item.text, max_tokens, {**inputs, **stop}, stream=False)
        return client.answer(entry, asked)

    max_tokens, baseline, speculative = options.max_output_len, list[Answer](), list[Answer]()
    turns = [({tensors.DRAFTER: BASELINE.name}, baseline), (speculation, speculative)]
    with Console(stderr=True).status("asking") as status:
        for number, item in enumerate(items, start=1):
            status.update(escape(f"item {number} of {len(items)}: {item.id}"))
            answer(item, speculation, min(PRIMING_TOKENS, max_tokens))
            for inputs, answers in turns if number % 2 else reversed(turns):
                answers.append(answer(item, inputs, max_tokens))
    name = str(speculation[tensors.DRAFTER])
    return {BASELINE.name: Answers(baseline), name: Answers(speculative)}


def _chosen_deployment(options: argparse.Namespace, drafting: DraftingOptions) -> Deployment | None:
    """Return the deployment to serve, or None if --url names a running server."""
    servers = [name for name in ("url", "profile", "engine_dir") if getattr(options, name)]
    if len(servers) > 1:
        named = " and ".join(f"--{name.replace('_', '-')}" for name in servers)
        raise UsageError(f"set only one of {named}")
    if options.engine_dir:
        return run_options.make_deployment(options, drafting)
    if options.draft_engine_dir:
        raise UsageError("--draft-engine-dir needs --engine-dir; set both")
    if drafting.is_set:
        print(
            "tandem: device lists have no effect; the profile sets the devices",
            file=sys.stderr,
        )
    return None if options.url else load(chosen_profile(options))


def _hugging_face(options: argparse.Namespace, deployment: Deployment | None) -> HuggingFace | None:
    if not options.test_hf:
        return None
    target = deployment.profile.engines.target if deployment else None
    own = target.checkpoint if isinstance(target, TorchTarget) else None
    folder = options.hf_model_dir or own
    if folder is None:
        raise UsageError("--test-hf needs --hf-model-dir, the target's checkpoint")
    if deployment is None:
        return HuggingFace(folder, options.tokenizer_dir or folder)
    special = deployment.profile.tokenizer.add_special_tokens
    return HuggingFace(folder, deployment.tokenizer.folder, add_special_tokens=special)
