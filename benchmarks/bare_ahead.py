"""Drafting ahead on a live server, beside the barest loop that drafts ahead.

    python -m benchmarks.bare_ahead
    python -m benchmarks.bare_ahead --profile profiles/emulated-405b-3b.yaml
    python -m benchmarks.bare_ahead --slower 4

The target alone, the bare loop and Tandem, with a fixed length of drafts and with `auto`, write the
same texts over emulated engines, in turns on one server. The bare loop does nothing but call the
engines: what it does not reach, no loop does in Python over Triton. Greedy; the bare loop always
asks for the same numbers of branches.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tritonclient import grpc

from benchmarks import bare
from benchmarks.slowed import slowed
from tandem.bls.draft_ahead.plan import split
from tandem.bls.draft_ahead.statistics import ALL_BRANCHES
from tandem.bls.settings import AUTO
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.client.client import Client, Value
from tandem.tools.profiles import deployment
from tandem.tools.profiles.profile import AdmissionSection, read_profile
from tandem.tools.triton import repository
from tandem.tools.triton.server import TritonServer

PROFILE = Path(__file__).resolve().parents[1] / "profiles" / "emulated-70b-1b.yaml"
FEW = AdmissionSection(max_requests=4, max_queue=4)  # idle threads of the server cost a round more
PROMPT_TOKENS = 64
ACCEPTANCE = 0.75  # for which the bare loop shares its branches out


class WrittenText(NamedTuple):
    """How one text was written. hits: rounds whose draft was there already."""

    seconds: float
    rounds: float = 0
    hits: float = 0


def main() -> None:
    """Measure in turns and print medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--profile", type=Path, default=PROFILE, help="of emulated engines")
    parser.add_argument("--draft-len", type=int, default=10, help="tokens of a branch")
    parser.add_argument("--on-miss", type=int, default=5, help="tokens of the bare loop's others")
    parser.add_argument("--texts", type=int, default=12)
    parser.add_argument("--max-tokens", type=int, default=250, help="of each text")
    parser.add_argument("--slower", type=float, default=1.0, help="times as long, engines' steps")
    options = parser.parse_args()
    profile, _ = read_profile(options.profile)
    profile = slowed(profile.model_copy(update={"admission": FEW}), times=options.slower)
    planned = deployment.check(profile)
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "repository")
        repository.render(planned, models, link=True)
        bare.add(bare.AHEAD, models)
        with TritonServer(models, thread_pool_size=planned.thread_pool_size) as server:
            _print(_measured(server.grpc_url, options), options)


def _measured(url: str, options: argparse.Namespace) -> dict[str, list[WrittenText]]:
    loops = "alone", "barest", "Tandem", "Tandem, auto"
    found: dict[str, list[WrittenText]] = {loop: [] for loop in loops}
    with Client(url) as client, grpc.InferenceServerClient(url) as connection:
        for number in track(range(options.texts + 1), transient=True):
            ids = np.random.default_rng(number).integers(2, 3000, PROMPT_TOKENS, np.int32)
            texts = (
                _ours(client, ids, options.max_tokens, 0),
                _bare(connection, ids, options),
                _ours(client, ids, options.max_tokens, options.draft_len),
                _ours(client, ids, options.max_tokens, AUTO),
            )
            if number:  # the first one warms up
                for name, text in zip(found, texts, strict=True):
                    found[name].append(text)
    return found


def _ours(client: Client, ids: NDArray[np.int32], max_tokens: int, draft_len: int) -> WrittenText:
    """Have Tandem write a text; without drafts where they are to have no length."""
    inputs: dict[Tensor, Value] = {
        tensors.INPUT_IDS: ids.tolist(),
        tensors.MAX_TOKENS: max_tokens,
        tensors.NUM_DRAFT_TOKENS: draft_len,
    }
    if draft_len:
        inputs[tensors.DRAFT_AHEAD] = "true"
    figures = client.answer("bls_stream", inputs).statistics
    assert figures is not None
    hits = figures["draft_ahead"]["num_hits"]
    return WrittenText(figures["decoding_seconds"], figures["num_rounds"], hits)


def _bare(
    connection: grpc.InferenceServerClient, ids: NDArray[np.int32], options: argparse.Namespace
) -> WrittenText:
    counts = split(ALL_BRANCHES, ACCEPTANCE, (True,) * (options.draft_len + 1))
    given = {
        "input_ids": ids,
        "max_tokens": [options.max_tokens],
        "counts": counts,
        "on_miss": [options.on_miss],
    }
    inputs = []
    for name, values in given.items():
        array = np.array(values, np.int32)[np.newaxis]
        inputs.append(grpc.InferInput(name, array.shape, "INT32"))
        inputs[-1].set_data_from_numpy(array)
    return WrittenText(*connection.infer(bare.AHEAD, inputs).as_numpy("figures")[0])


def _print(found: dict[str, list[WrittenText]], options: argparse.Namespace) -> None:
    table = Table("loop", "tokens/s", "of alone", "ms a round", "hits", title=options.profile.stem)
    alone = sum(text.seconds for text in found["alone"])
    for name, texts in found.items():
        seconds, rounds = sum(text.seconds for text in texts), sum(text.rounds for text in texts)
        table.add_row(
            name,
            f"{len(texts) * options.max_tokens / seconds:.1f}",
            f"{alone / seconds:.2f}x",
            f"{1e3 * seconds / rounds:.2f}",
            f"{sum(text.hits for text in texts) / rounds:.0%}",
        )
    Console().print(table)
    ratios = [b.seconds / o.seconds for b, o in zip(found["barest"], found["Tandem"], strict=True)]
    Console().print(f"Tandem / barest, median of the texts: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
