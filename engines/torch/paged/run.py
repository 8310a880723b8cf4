"""Steps over the paged cache whose tokens stay on the device until all of them have run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tandem.engines.torch.attention import Packed
from tandem.engines.torch.paged.batch import rows_of
from tandem.engines.torch.paged.choosing import Chosen, TokenChoice, TokenChooser
from tandem.engines.torch.paged.runner import PagedRunner
from tandem.engines.torch.scores import StepLogits


def run_steps(
    runner: PagedRunner,
    ids: NDArray[np.int64],
    segments: Sequence[Packed],
    choices: Sequence[TokenChoice | None],
    steps: int,
) -> list[StepLogits]:
    """Run the segments' tokens, ids [all tokens], then up to `steps` - 1 times what each chose.

    choices: of each segment, or None: the call chooses from its logits itself. Where there is more
    than one step, each segment is one row and has a choice. What is chosen comes to the host in one
    copy.
    """
    ahead = runner.prepare(rows_of(segments), steps - 1) if steps > 1 else None
    count = 1 + ahead.steps if ahead else 1
    counts = [segment.rows for segment in segments]
    chooser = TokenChooser(choices, counts, count, runner.device)
    logits, best = runner.step(ids, segments)
    if not any(choices):
        return [StepLogits(logits)]
    rows, chosen = [logits], [chooser.choose(0, logits, best)]
    for step in range(1, count):
        assert ahead is not None
        logits, best = runner.step_ahead(ahead, step - 1, chosen[-1].tokens)
        rows.append(logits)
        chosen.append(chooser.choose(step, logits, best))
    return _on_host(rows, chosen)


def _on_host(rows: Sequence[torch.Tensor], chosen: Sequence[Chosen]) -> list[StepLogits]:
    """Copy the tokens of all steps, and how likely they are, at once."""
    parts = [torch.stack([step.tokens for step in chosen]).int()]
    rated = [step.log_probs for step in chosen if step.log_probs is not None]
    if rated:
        parts.append(torch.stack(rated).view(torch.int32))
    tokens, *log_probs = torch.stack(parts).cpu().numpy()  # and waits until all of it has run
    values = log_probs[0].view(np.float32).tolist() if log_probs else [None] * len(rows)
    return list(map(StepLogits, rows, tokens.tolist(), values))
