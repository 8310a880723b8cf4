"""Distill the draft from the shipped target: `python -m benchmarks.demo_models.distil`.

The draft learns the target's distribution on the corpus and on text that the target generates. In
use, the draft only sees contexts that the target generated, which differ from the corpus.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch.nn import functional

from benchmarks.demo_models.checkpoint import load_checkpoint, new_model, save_checkpoint
from benchmarks.demo_models.corpus import STATE, Ids, batch, load_corpus
from benchmarks.demo_models.train import (
    JobProgress,
    Optimizer,
    compile_for_gpu,
    device,
    hidden_states,
    load_state,
    rate_share,
    save_state,
    slices,
)

LENGTH, CONTEXT = 256, 32
WRITERS, WRITTEN = 2048, 160  # rows per batch of generation; tokens per row, context included
TEMPERATURES = (0.0, 0.0, 0.5, 0.8)
NOTE_EVERY, SAVE_EVERY = 10, 500


@torch.no_grad()
def write(target: Any, temperature: float, contexts: torch.Tensor) -> torch.Tensor:
    """Continue contexts [rows, n] to [rows, 160]; temperature 0 is greedy."""
    noise = torch.Generator(contexts.device).manual_seed(int(contexts.sum()))
    ids, step, cache = contexts, contexts, None
    while ids.shape[1] < WRITTEN:
        out = target(input_ids=step, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, logits = out.past_key_values, out.logits[:, -1].float()
        if temperature == 0:
            step = logits.argmax(-1, keepdim=True)
        else:
            step = torch.multinomial((logits / temperature).softmax(-1), 1, generator=noise)
        ids = torch.cat([ids, step], dim=1)
    return ids


def own_text(target: Any, train: Ids, batches: int) -> Ids:
    """Return text that the target generates after training contexts: ids [rows, 160], cached."""
    cached = STATE / "own_text.npy"
    written = list(np.load(cached)) if cached.exists() else []
    with JobProgress("target writes", batches, len(written)) as progress:
        for index in range(len(written), batches):
            contexts = batch(train, index, WRITERS, LENGTH, seed=1)[:, :CONTEXT].to(device())
            temperature = TEMPERATURES[index % len(TEMPERATURES)]
            rows = write(target, temperature, contexts)
            written.append(rows.cpu().numpy().astype(np.uint16))
            np.save(cached, np.stack(written))
            progress.complete_step()
            progress.milestone(f"own text: {index + 1} of {batches}")
    return np.concatenate(written)


def distillation_loss(draft: Any, target: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the mean KL(target || draft) over ids [rows, length], in nats per token."""
    with torch.no_grad():
        wanted = hidden_states(target, ids)
    hidden = hidden_states(draft, ids)
    total = hidden.new_zeros((), dtype=torch.float32)
    for h, w in slices(hidden, wanted):
        with torch.no_grad(), torch.autocast(h.device.type, dtype=torch.bfloat16):
            teacher = target.lm_head(w)
        with torch.autocast(h.device.type, dtype=torch.bfloat16):
            student = draft.lm_head(h)
        total = total + functional.kl_div(
            student.float().log_softmax(-1),
            teacher.float().log_softmax(-1),
            reduction="sum",
            log_target=True,
        )
    return total / len(hidden)


def rows_for(step: int, tokens: int, train: Ids, own: Ids) -> torch.Tensor:
    """Return the ids [rows, length] of a step; corpus and target's text alternate."""
    if step % 2 == 0:
        return batch(train, step // 2, tokens // LENGTH, LENGTH, seed=2)[:, :LENGTH]
    rows = tokens // WRITTEN
    epoch, first = divmod(step // 2 * rows, len(own) - rows)
    order = np.random.default_rng((3, epoch)).permutation(len(own))
    return torch.from_numpy(own[order[first : first + rows]].astype(np.int64))


def distil(steps: int, tokens: int, own_batches: int, muon_rate: float, adam_rate: float) -> Any:
    """Train the draft for `steps` steps of `tokens` tokens, continuing an earlier run."""
    train = load_corpus().train
    target = load_checkpoint("target", torch.bfloat16).to(device()).requires_grad_(False)
    draft = new_model("draft").to(device())
    own = own_text(target, train, own_batches)
    compile_for_gpu(target)
    compile_for_gpu(draft)
    optimizer = Optimizer(draft, muon_rate, adam_rate)
    state = STATE / "draft.pt"
    first, smooth = load_state(draft, optimizer, state), math.nan
    with JobProgress("draft", steps, first) as progress:
        for step in range(first, steps):
            loss = distillation_loss(draft, target, rows_for(step, tokens, train, own).to(device()))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step(rate_share(step, steps))
            if step % NOTE_EVERY == 0:
                smooth = loss.item() if math.isnan(smooth) else 0.8 * smooth + 0.2 * loss.item()
            progress.complete_step(f"KL {smooth:.3f}")
            if (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
                progress.milestone(f"step {step + 1}: KL {smooth:.3f} nats/token")
                save_state(draft, optimizer, step + 1, state)
    return draft


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--steps", type=int, default=9750, help="optimizer steps (default %(default)s)"
    )
    parser.add_argument(
        "--tokens", type=int, default=65_536, help="tokens per step (default %(default)s)"
    )
    parser.add_argument(
        "--own-batches", type=int, default=32, help="batches of 2,048 rows that the target writes"
    )
    parser.add_argument("--muon-rate", type=float, default=0.02)
    parser.add_argument("--adam-rate", type=float, default=0.004)
    options = parser.parse_args()
    draft = distil(
        options.steps,
        options.tokens,
        options.own_batches,
        options.muon_rate,
        options.adam_rate,
    )
    Console().print(f"saved {save_checkpoint(draft, 'draft')}")


if __name__ == "__main__":
    main()
