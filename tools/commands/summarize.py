"""`tandem summarize`: does speculation keep the accuracy? With the options of `summarize.py`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from tandem.bls import drafter_registry
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.benchmark.target_server import served_drafters
from tandem.tools.client.client import Answer, Client, Inputs, Value
from tandem.tools.client.dataset import Item, read_items
from tandem.tools.client.request import MODEL, inputs_for
from tandem.tools.client.terminal import console_of_width
from tandem.tools.commands import run_options
from tandem.tools.commands.measuring import check_drafter
from tandem.tools.commands.options import (
    DEMO,
    add_profile,
    add_url,
    at_least_one,
    chosen_profile,
    drafter_names,
)
from tandem.tools.commands.run_options import DraftingOptions
from tandem.tools.errors import TandemError
from tandem.tools.evaluation.accuracy import AccuracyComparison, AnswerColumn
from tandem.tools.evaluation.rouge import Rouge
from tandem.tools.profiles import deployment
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.profiles.engines.torch import TorchTarget
from tandem.tools.triton.serving import serving

if TYPE_CHECKING:
    from tandem.tools.evaluation.hugging_face import HuggingFace

CONTROL = drafter_registry.CONTROL.name  # the drafter that every other is compared with
DATASET = DEMO / "summaries.jsonl"
WIDTH = 100  # where the output is not a terminal
SERVERS_OWN = "default"  # the drafter of a request that names none
HUGGING_FACE = "hugging_face"
ROUGE1_THRESHOLD = 15.0  # percent, the documents'
CONTROL_THRESHOLD = 95.0  # percent: greedy texts part only where two tokens tie
PRIMING_TOKENS = 2  # the fewest that make the draft model see the prompt


class Speculation(NamedTuple):
    """The name of the column, and what its requests carry."""

    name: str
    inputs: Inputs


def add_options(parser: argparse.ArgumentParser) -> None:
    dataset = parser.add_argument_group("dataset")
    dataset.add_argument(
        "--dataset",
        type=Path,
        default=DATASET,
        metavar="FILE",
        help='The dataset: JSONL of {"id", "text", "summary"}, and "stop" if wanted (default: '
        "docstrings).",
    )
    dataset.add_argument(
        "--limit",
        type=at_least_one,
        metavar="N",
        help="The number of items to take from the start (default: all).",
    )
    dataset.add_argument(
        "--max-output-len",
        type=at_least_one,
        default=100,
        metavar="N",
        help="The longest answer, in tokens (default: %(default)s).",
    )
    _add_server(parser)
    _add_columns(parser)
    _add_accuracy(parser)
    parser.add_argument_group("output").add_argument(
        "--json", type=Path, metavar="FILE", help="The file to write statistics and texts to."
    )


def run(options: argparse.Namespace) -> int:
    drafting = _checked(options)
    rouge = Rouge()
    items = read_items(options.dataset)[: options.limit]
    planned = _plan(options, drafting)
    speculation = speculation_of(options.drafter, drafting, planned)
    hugging_face = _hugging_face(options, planned)
    with _asked(options, planned) as (client, entry):
        columns = list(
            DatasetRunner(client, entry, options.max_output_len).columns(items, speculation)
        )
    if hugging_face:
        columns.append(_answered_by(hugging_face, items, options.max_output_len))
    comparison = AccuracyComparison(items, columns, rouge)
    console = console_of_width(WIDTH)
    console.print(comparison.table(), highlight=False)
    if options.json:
        _write(options.json, comparison)
    return _verdict(options, comparison, console)


def speculation_of(
    drafter: str | None, drafting: DraftingOptions, planned: Deployment | None
) -> Speculation:
    """Return who is compared with the control; raise TandemError where that is the control itself.

    The strings decide, then `--drafter`, then the deployment's own default.
    """
    inputs: dict[Tensor, Value] = dict(drafting.inputs) if drafting.given else {}
    if drafter is None and not inputs and planned:
        drafter = planned.loop_settings().drafter
    if drafter is not None:
        inputs[tensors.DRAFTER] = drafter
    name = str(inputs.get(tensors.DRAFTER, SERVERS_OWN))
    if planned and CONTROL not in planned.drafters:
        raise TandemError(
            "the target drafts by itself, so a request cannot have the control; serve a second "
            "target that does not, and compare them by --url"
        )
    if planned and drafter is not None:
        check_drafter(served_drafters(planned), drafter)
    if name == CONTROL:
        raise TandemError(
            f"nothing to compare with drafter '{CONTROL}'; say --drafter {drafter_names()}"
        )
    return Speculation(name, inputs)


class DatasetRunner:
    """Puts a dataset to a server, greedily, with speculation and without it."""

    def __init__(self, client: Client, entry: str, max_tokens: int) -> None:
        self._client = client
        self._entry = entry
        self._max_tokens = max_tokens

    def columns(
        self, items: Sequence[Item], speculation: Speculation
    ) -> tuple[AnswerColumn, AnswerColumn]:
        """Return the control's answers and the speculative ones.

        An item is asked in turns, and each has had its prompt once before, so that no answer finds
        in the KV caches what the other had to compute.
        """
        control = Speculation(CONTROL, {tensors.DRAFTER: CONTROL})
        answers: dict[str, list[Answer]] = {control.name: [], speculation.name: []}
        with Console(stderr=True).status("asking") as status:
            for number, item in enumerate(items, start=1):
                status.update(f"item {number} of {len(items)}: {item.id}")
                self._answer(item, speculation, min(PRIMING_TOKENS, self._max_tokens))
                turns = (control, speculation) if number % 2 else (speculation, control)
                for turn in turns:
                    answers[turn.name].append(self._answer(item, turn, self._max_tokens))
        return AnswerColumn(control.name, answers[control.name]), AnswerColumn(
            speculation.name, answers[speculation.name]
        )

    def _answer(self, item: Item, speculation: Speculation, max_tokens: int) -> Answer:
        more = dict(speculation.inputs)
        if item.stop:
            more[tensors.STOP_WORDS] = item.stop
        return self._client.answer(
            self._entry, inputs_for(item.text, max_tokens, more, stream=False)
        )


def _add_server(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("server")
    add_profile(server)
    add_url(server, "The gRPC port of a running server to ask, instead of starting one.")
    server.add_argument(
        "--model",
        metavar="NAME",
        default=MODEL,
        help="The entry of that server to ask (default: %(default)s).",
    )
    run_options.add_engines(parser, required=False)


def _add_columns(parser: argparse.ArgumentParser) -> None:
    drafts = run_options.add_drafting(parser)
    drafts.add_argument(
        "--drafter",
        metavar="NAME",
        help=f"The drafter to compare with '{CONTROL}': {drafter_names()} (default: as served).",
    )
    columns = parser.add_argument_group("further columns")
    columns.add_argument(
        "--test-hf", action="store_true", help="Add a column for the generate of transformers."
    )
    columns.add_argument(
        "--hf-model-dir",
        type=Path,
        metavar="DIR",
        help="The checkpoint of that column (default: the target's).",
    )
    columns.add_argument(
        "--test-trt-llm",
        action="store_true",
        help="Accepted without effect: what is served is always tested.",
    )
    columns.add_argument("--batch-size", type=int, default=1, metavar="N", help="Must be 1.")


def _add_accuracy(parser: argparse.ArgumentParser) -> None:
    accuracy = parser.add_argument_group("accuracy")
    accuracy.add_argument(
        "--check-accuracy", action="store_true", help="Fail if ROUGE-1 is below a threshold."
    )
    accuracy.add_argument(
        "--rouge1-threshold",
        type=float,
        default=ROUGE1_THRESHOLD,
        metavar="PERCENT",
        help="The threshold of all texts against the reference (default: %(default)g).",
    )
    accuracy.add_argument(
        "--control-threshold",
        type=float,
        default=CONTROL_THRESHOLD,
        metavar="PERCENT",
        help=f"The threshold of the speculative texts against those of '{CONTROL}' (default: "
        "%(default)g).",
    )


def _checked(options: argparse.Namespace) -> DraftingOptions:
    servers = [name for name in ("url", "profile", "engine_dir") if getattr(options, name)]
    if len(servers) > 1:
        named = " and ".join(f"--{name.replace('_', '-')}" for name in servers)
        raise TandemError(f"{named} exclude each other")
    if options.draft_engine_dir and not options.engine_dir:
        raise TandemError("--draft-engine-dir needs --engine-dir, the model that it drafts for")
    if options.batch_size != 1:
        raise TandemError(
            f"--batch-size {options.batch_size}: prompts are asked one by one; say --batch-size 1"
        )
    run_options.refuse_unsupported(options)
    return run_options.read_drafting(options)


def _plan(options: argparse.Namespace, drafting: DraftingOptions) -> Deployment | None:
    if options.engine_dir:
        planned = run_options.plan(options, drafting)
        _note(planned.notes)
        return planned.deployment
    if drafting.given:
        _note(["device lists have no effect: the engines are where the profile puts them"])
    return None if options.url else deployment.load(chosen_profile(options))


def _note(lines: Sequence[str]) -> None:
    for line in lines:
        print(f"tandem: {line}", file=sys.stderr)


def _hugging_face(options: argparse.Namespace, planned: Deployment | None) -> HuggingFace | None:
    if not options.test_hf:
        return None
    try:
        from tandem.tools.evaluation.hugging_face import HuggingFace  # noqa: PLC0415
    except ImportError as error:
        raise TandemError(
            f"cannot import {error.name}; --test-hf needs: pip install torch transformers"
        ) from error
    folder = options.hf_model_dir or _checkpoint(planned)
    if folder is None:
        raise TandemError("--test-hf needs --hf-model-dir, the target's checkpoint")
    if planned is None:
        return HuggingFace(folder, options.tokenizer_dir or folder)
    special = planned.profile.tokenizer.add_special_tokens
    return HuggingFace(folder, planned.tokenizer.folder, add_special_tokens=special)


def _checkpoint(planned: Deployment | None) -> Path | None:
    target = planned.profile.engines.target if planned else None
    return target.checkpoint if isinstance(target, TorchTarget) else None


@contextmanager
def _asked(options: argparse.Namespace, planned: Deployment | None) -> Iterator[tuple[Client, str]]:
    if planned is None:
        with Client(options.url) as client:
            yield client, client.entry(options.model).name
        return
    with serving(planned) as server, Client(server.grpc_url) as client:
        yield client, planned.stream_entry.name


def _answered_by(model: HuggingFace, items: Sequence[Item], max_tokens: int) -> AnswerColumn:
    model.answer(items[0].text, 1)  # loads and warms up
    answers = []
    with Console(stderr=True).status("asking") as status:
        for number, item in enumerate(items, start=1):
            status.update(f"transformers: item {number} of {len(items)}: {item.id}")
            answers.append(model.answer(item.text, max_tokens, item.stop))
    return AnswerColumn(HUGGING_FACE, answers)


def _write(path: Path, comparison: AccuracyComparison) -> None:
    try:
        path.write_text(json.dumps(comparison.as_json(), indent=2) + "\n")
    except OSError as error:
        raise TandemError(f"cannot write {path}: {error.strerror}") from error


def _verdict(options: argparse.Namespace, comparison: AccuracyComparison, console: Console) -> int:
    if not options.check_accuracy:
        return 0
    shortfalls = comparison.shortfalls(options.rouge1_threshold, options.control_threshold)
    for shortfall in shortfalls:
        console.print(f"too low: {shortfall}", style="red", markup=False, highlight=False)
    return int(bool(shortfalls))
