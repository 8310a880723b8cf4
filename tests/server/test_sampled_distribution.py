"""Sampled answers have exactly the target's distribution."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as client
from distributions import Warp, fits
from entries import OUTPUTS, read, tensor

from tandem.contract import entry

DRAWS = 512
ROWS = 32  # prompts per request
AT_ONCE = 2
PROMPT = "def read("
LENGTH = 2  # a draft token, and a bonus token or one from the next round


def exact(model, prompt_ids, ends, warp):
    """Return the probabilities of the first token [vocab] and the first two [vocab, vocab].

    An answer doesn't report which end id it reached. So all end ids count as the first end id,
    followed by itself.
    """
    import torch

    end, *other_ends = ends

    def after(texts):
        """Return the next-token probabilities [n, vocab] after texts of equal length."""
        with torch.inference_mode():
            p = warp.of(model(torch.tensor(texts)).logits[:, -1].numpy())
        p[:, end] += p[:, other_ends].sum(-1)
        p[:, other_ends] = 0
        return p

    [first] = after([prompt_ids])
    tokens = first.nonzero()[0]
    both = np.zeros((len(first), len(first)))
    both[tokens] = first[tokens, None] * after([[*prompt_ids, t] for t in tokens.tolist()])
    both[end] = 0
    both[end, end] = first[end]
    return first, both


@pytest.fixture(scope="module")
def served(hugging_face, tokenizer, embedded):
    """The served checkpoint, the prompt's ids, and the end ids."""
    return hugging_face, tokenizer.encode(PROMPT).ids, list(embedded.end_ids)


@pytest.mark.parametrize(
    ("use_draft_logits", "warp"),
    [
        (True, Warp(1.0, top_p=0.9)),
        pytest.param(False, Warp(0.7, top_k=20), marks=pytest.mark.heavy),
        pytest.param(True, Warp(1.3, min_p=0.1), marks=pytest.mark.heavy),
    ],
    ids=["logits", "ids", "min_p"],
)
def test_sampled_tokens_have_the_targets_distribution(server, served, use_draft_logits, warp):
    _, prompt_ids, ends = served
    values = {"max_tokens": LENGTH, "drafter": "draft_model", "use_draft_logits": use_draft_logits}

    def batch(start):
        inputs = [
            tensor(entry.INPUT_IDS, [prompt_ids] * ROWS),
            tensor(entry.SEED, [[seed] for seed in range(start, start + ROWS)]),
            *(tensor(n, [[value]] * ROWS) for n, value in (vars(warp) | values).items()),
        ]
        with client.InferenceServerClient(server.grpc_url) as connection:
            outputs = [client.InferRequestedOutput(name) for name in OUTPUTS]
            return read(connection.infer("bls", inputs, outputs=outputs))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = [row for rows in pool.map(batch, range(0, DRAWS, ROWS)) for row in rows]

    first, both = exact(*served, warp)
    counts = np.zeros_like(both)
    for answer in answers:
        one, two, *_ = answer.ids + ends[:1] * 2
        counts[one, two] += 1
    assert counts.sum() == DRAWS
    assert fits(counts.sum(1), first)
    assert fits(counts, both)
    drafted = sum(answer.draft_tokens for answer in answers)
    assert 0 < sum(answer.accepted_tokens for answer in answers) < drafted
