"""A round of two torch engines follows the target's distribution, computed from its logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from distributions import Warp, fits
from engine_harness import VOCAB, prompt

from tandem.engines.request import SamplingParams

DRAWS = 1_000
CONTEXT = prompt(8, 6)


@pytest.fixture(scope="module")
def drafter(make_harness):
    return make_harness("qwen2")


@pytest.fixture(scope="module")
def logits(reference):
    """The target's logits after the context, [1, vocab], and after each next token."""
    model = reference("llama")
    with torch.inference_mode():
        first = model(torch.tensor([CONTEXT])).logits[0, -1:]
        second = model(torch.tensor([[*CONTEXT, token] for token in range(VOCAB)])).logits[:, -1]
    return first.numpy(), second.numpy()


def outcomes(harness, calls):
    """Answers to many concurrent calls, given the ids and keywords of each."""
    waiting = [harness.start(ids, new, **rest) for ids, new, rest in calls]
    return [pending.wait() for pending in waiting]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("use_draft_logits", "warp"),
    [(False, Warp(0.7, top_k=20)), (True, Warp(1.3, top_p=0.9))],
    ids=["ids", "logits"],
)
def test_sampled_tokens_have_the_targets_distribution(
    llama, drafter, logits, use_draft_logits, warp
):
    def sampling(seed):
        return SamplingParams(**vars(warp), seed=seed)

    drafts = outcomes(
        drafter,
        (
            (CONTEXT, 2, {"sampling": sampling(10**6 + n), "return_generation_logits": True})
            for n in range(DRAWS)
        ),
    )
    verified = outcomes(
        llama,
        (
            (
                CONTEXT,
                3,
                {
                    "sampling": sampling(n),
                    "drafts": draft.tokens,
                    "draft_logits": draft.last.generation_logits if use_draft_logits else None,
                },
            )
            for n, draft in enumerate(drafts)
        ),
    )
    texts = [outcome.tokens[:2] for outcome in verified]
    short = [n for n, text in enumerate(texts) if len(text) == 1]
    assert 0 < len(short) < DRAWS  # drafts were both kept and corrected
    rest = outcomes(llama, ((CONTEXT + texts[n], 1, {"sampling": sampling(n)}) for n in short))
    for n, outcome in zip(short, rest, strict=True):
        texts[n] += outcome.tokens

    counts = np.zeros((VOCAB, VOCAB))
    np.add.at(counts, tuple(np.transpose(texts)), 1)
    first, second = (warp.of(part) for part in logits)
    assert fits(counts.sum(1), first[0])
    assert fits(counts, first[0][:, None] * second)
