"""What draft logits add to a round: as many and as wide ones as Llama 3.1 drafts.

    python -m benchmarks.draft_logits

The same sampled requests by ids and by logits, in turns on one server. It prints two differences:
that of whole rounds, and that of what the engines' own clocks leave of them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.rounds import Rounds, play
from tandem.contract import entry as tensors
from tandem.tools.client.client import Client
from tandem.tools.profiles import deployment
from tandem.tools.triton import repository
from tandem.tools.triton.server import TritonServer

PROFILE = Path(__file__).resolve().parent / "wide-logits.yaml"
CONTEXT = 64


def main() -> None:
    """Measure in turns and print medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--profile", type=Path, default=PROFILE, help="of emulated engines with wide logits"
    )
    parser.add_argument("--tokens", type=int, default=200, help="of each answer")
    parser.add_argument("--turns", type=int, default=25, help="of both ways")
    options = parser.parse_args()
    planned = deployment.load(options.profile)
    by_ids, by_logits = [], []
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "repository")
        repository.render(planned, models, link=True)
        with (
            TritonServer(models, thread_pool_size=planned.thread_pool_size) as server,
            Client(server.grpc_url) as client,
        ):
            for turn in track(range(options.turns + 1), transient=True):
                ids = _play(client, options.tokens, use_draft_logits=False)
                logits = _play(client, options.tokens, use_draft_logits=True)
                if turn:  # the first one warms up
                    by_ids.append(ids)
                    by_logits.append(logits)
    _print(options.profile.stem, by_ids, by_logits)


def _play(client: Client, num_tokens: int, *, use_draft_logits: bool) -> Rounds:
    ids = np.random.default_rng(0).integers(2, 3000, CONTEXT, np.int32)
    sampled = {tensors.TEMPERATURE: 0.8, tensors.SEED: 1}
    return play(client, ids, num_tokens, {**sampled, tensors.USE_DRAFT_LOGITS: use_draft_logits})


def _print(title: str, by_ids: list[Rounds], by_logits: list[Rounds]) -> None:
    table = Table("ms a round", "by ids", "by logits", "more", "10-90 %", title=title)
    for name in ("whole", "orchestration"):
        ids = [getattr(r, name) for r in by_ids]
        logits = [getattr(r, name) for r in by_logits]
        more = [b - a for a, b in zip(ids, logits, strict=True)]
        tenths = statistics.quantiles(more, n=10, method="inclusive")
        medians = (f"{statistics.median(values):.2f}" for values in (ids, logits, more))
        table.add_row(name, *medians, f"{tenths[0]:.2f}-{tenths[-1]:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
