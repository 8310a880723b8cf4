"""Train the target: `python -m benchmarks.demo_models.train`. Resumes from `.train/target.pt`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.nn import functional

from benchmarks.demo_models.checkpoint import new_model, save_checkpoint
from benchmarks.demo_models.corpus import STATE, Ids, batch, load_corpus

NOTE_EVERY, SAVE_EVERY = 10, 500
LOSS_ROWS = {"cpu": 1024, "cuda": 65_536}  # positions per slice; the logits fit a CPU's caches


class Optimizer:
    """Muon for the hidden matrices, AdamW for all other parameters.

    Muon (Jordan et al., 2024) learns more per token than AdamW, and the corpus is small.
    """

    def __init__(self, model: Any, muon_rate: float, adam_rate: float) -> None:
        hidden = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
        self.parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(hidden, lr=muon_rate, weight_decay=0.05),
            torch.optim.AdamW(others, lr=adam_rate, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self.peaks = [muon_rate, adam_rate]

    def step(self, share: float) -> None:
        """Apply the gradients and clear them. share: fraction (0..1) of the peak learning rates."""
        for part, peak in zip(self.parts, self.peaks, strict=True):
            part.param_groups[0]["lr"] = peak * share
            part.step()
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


def rate_share(step: int, steps: int, warmup: int = 40, decay: float = 0.5) -> float:
    """Return the fraction of the peak learning rate at a step.

    The rate rises for `warmup` steps, stays constant, and falls linearly to zero over the last
    `decay` (a fraction) of all `steps`.
    """
    return min(1.0, (step + 1) / warmup, (steps - step) / (decay * steps))


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def compile_for_gpu(model: Any) -> None:
    """Compile each layer if there is a GPU.

    The model isn't compiled as a whole, because attention would then get a mask.
    """
    if device().type == "cuda":
        for layer in model.model.layers:
            layer.compile(dynamic=False)


class JobProgress(Progress):
    """A bar for `total` steps, of which an earlier run completed `done`."""

    def __init__(self, title: str, total: int, done: int) -> None:
        super().__init__(
            TextColumn(title),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
        )
        self.task = self.add_task("", total=total, completed=done)

    def complete_step(self, note: str = "") -> None:
        """Advance the bar by one step, and show `note` next to it."""
        self.update(self.task, advance=1, description=note)

    def milestone(self, line: str) -> None:
        """Print a permanent line, with the seconds since this run began."""
        self.console.print(f"{line} ({self.tasks[0].elapsed or 0:.0f} s)")


def window(step: int, steps: int) -> int:
    """Return the tokens per row at `step`. Rows are short at first, because they are cheaper."""
    done = step / steps
    return 512 if done < 0.7 else 1024 if done < 0.9 else 2048


def hidden_states(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the last hidden states of `ids` [rows, length]: [rows * length, width]."""
    with torch.autocast(ids.device.type, dtype=torch.bfloat16):
        return model.model(input_ids=ids, use_cache=False).last_hidden_state.flatten(0, 1)  # type: ignore[no-any-return]


def slices(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Split all `tensors` into slices of at most LOSS_ROWS rows, which limits memory for logits."""
    runs = -(-len(tensors[0]) // LOSS_ROWS[tensors[0].device.type])
    return zip(*(tensor.chunk(runs) for tensor in tensors), strict=True)


def token_loss(model: Any, rows: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of ids [rows, length + 1] in nats per token."""
    hidden = hidden_states(model, rows[:, :-1])
    labels = rows[:, 1:].flatten()
    total = hidden.new_zeros((), dtype=torch.float32)
    for h, y in slices(hidden, labels):
        with torch.autocast(h.device.type, dtype=torch.bfloat16):
            logits = model.lm_head(h)
        total = total + functional.cross_entropy(logits.float(), y, reduction="sum")
    return total / labels.numel()


@torch.no_grad()
def validation_loss(model: Any, held_out: Ids, tokens: int = 131_072, length: int = 512) -> float:
    """Return the mean cross entropy of `tokens` held-out tokens (a fixed choice), in nats/token."""
    model.eval()
    rows = torch.split(batch(held_out, 0, tokens // length, length).to(model.device), 16)
    losses = [token_loss(model, part).item() * len(part) for part in rows]
    model.train()
    return sum(losses) / sum(map(len, rows))


def train(steps: int, tokens: int, muon_rate: float, adam_rate: float, state: Path) -> Any:
    """Train the target for `steps` steps of `tokens` tokens, resuming from the file `state`."""
    corpus = load_corpus()
    model = new_model("target").to(device())
    optimizer = Optimizer(model, muon_rate, adam_rate)
    first = load_state(model, optimizer, state)
    compile_for_gpu(model)
    smooth = math.nan
    with JobProgress("target", steps, first) as progress:
        for step in range(first, steps):
            length = window(step, steps)
            rows = batch(corpus.train, step, tokens // length, length).to(device())
            loss = token_loss(model, rows)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step(rate_share(step, steps))
            if step % NOTE_EVERY == 0:  # reading the loss waits for the GPU
                smooth = loss.item() if math.isnan(smooth) else 0.8 * smooth + 0.2 * loss.item()
            progress.complete_step(f"loss {smooth:.3f}")
            if (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
                held_out = validation_loss(model, corpus.held_out)
                progress.milestone(f"step {step + 1}: train {smooth:.3f}, held out {held_out:.3f}")
                save_state(model, optimizer, step + 1, state)
    return model


def save_state(model: Any, optimizer: Optimizer, step: int, state: Path) -> None:
    """Write the state of a training run atomically."""
    partial = state.with_suffix(".partial")
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, partial
    )
    partial.replace(state)


def load_state(model: Any, optimizer: Optimizer, state: Path) -> int:
    """Restore the state of a training run; return the number of completed steps (0 if none)."""
    if not state.exists():
        return 0
    saved = torch.load(state, map_location=device())
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--steps", type=int, default=1750, help="optimizer steps (default %(default)s)"
    )
    parser.add_argument(
        "--tokens", type=int, default=131_072, help="tokens per step (default %(default)s)"
    )
    parser.add_argument("--muon-rate", type=float, default=0.02)
    parser.add_argument("--adam-rate", type=float, default=0.004)
    parser.add_argument("--ship", action="store_true", help="only export the last saved state")
    options = parser.parse_args()
    STATE.mkdir(exist_ok=True)
    steps = 0 if options.ship else options.steps
    model = train(steps, options.tokens, options.muon_rate, options.adam_rate, STATE / "target.pt")
    Console().print(f"saved {save_checkpoint(model, 'target')}")


if __name__ == "__main__":
    main()
