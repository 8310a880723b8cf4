"""Sampled answers have exactly the target's distribution."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from distributions import Warp, fits
from entries import OUTPUTS, read, tensor

from tandem.contract import entry

DRAWS = 512
ROWS = 32  # prompts per request
AT_ONCE = 2
PROMPT = "def read("
LENGTH = 2  # a draft token, and a bonus token or one from the next round


class Served:
    """Computes the exact token probabilities of the served checkpoint."""

    def __init__(self, model, prompt_ids, end_ids) -> None:
        self.prompt_ids = prompt_ids
        self.end, *self._other_ends = end_ids
        self._model = model

    def exact(self, warp):
        """Return the probabilities of the first token [vocab] and the first two [vocab, vocab].

        An answer doesn't report which end id it reached. So all end ids count as the first end id,
        followed by itself.
        """
        (first,) = self._after(warp, [self.prompt_ids])
        tokens = first.nonzero()[0]
        texts = [[*self.prompt_ids, token] for token in tokens.tolist()]
        both = np.zeros((len(first), len(first)))
        both[tokens] = first[tokens, None] * self._after(warp, texts)
        both[self.end] = 0
        both[self.end, self.end] = first[self.end]
        return first, both

    def _after(self, warp, texts):
        """Return the next-token probabilities [n, vocab] after texts of equal length."""
        import torch

        with torch.inference_mode():
            p = warp.of(self._model(torch.tensor(texts)).logits[:, -1].numpy())
        p[:, self.end] += p[:, self._other_ends].sum(-1)
        p[:, self._other_ends] = 0
        return p


@pytest.fixture(scope="module")
def served(hugging_face, tokenizer, embedded):
    return Served(hugging_face, tokenizer.encode(PROMPT).ids, embedded.end_ids)


def ask_rows(server, prompt_ids, seeds, **values):
    """Return the answers to one prompt, one row per seed."""
    import tritonclient.grpc as client

    inputs = [
        tensor(entry.INPUT_IDS, [prompt_ids] * ROWS),
        tensor(entry.SEED, [[s] for s in seeds]),
    ]
    inputs += [tensor(name, [[value]] * ROWS) for name, value in values.items()]
    with client.InferenceServerClient(server.grpc_url) as connection:
        outputs = [client.InferRequestedOutput(name) for name in OUTPUTS]
        return read(connection.infer("bls", inputs, outputs=outputs))


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
    def batch(start):
        return ask_rows(
            server,
            served.prompt_ids,
            range(start, start + ROWS),
            max_tokens=LENGTH,
            **vars(warp),
            drafter="draft_model",
            use_draft_logits=use_draft_logits,
        )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = [row for rows in pool.map(batch, range(0, DRAWS, ROWS)) for row in rows]

    first, both = served.exact(warp)
    counts = np.zeros_like(both)
    for answer in answers:
        one, two, *_ = answer.ids + [served.end] * 2
        counts[one, two] += 1
    assert counts.sum() == DRAWS
    assert fits(counts.sum(1), first)
    assert fits(counts, both)
    drafted, accepted = (
        sum(answer.number(name) for answer in answers)
        for name in (entry.TOTAL_DRAFT_TOKENS, entry.TOTAL_ACCEPTED_DRAFT_TOKENS)
    )
    assert 0 < accepted < drafted
