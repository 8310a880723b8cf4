"""Each random number decides at most one token of an answer."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from engine_harness import prompt
from played import Played
from scripted import decoding_of, play

from tandem.bls.request import Request, Sampling
from tandem.engines import noise
from tandem.engines.engine import SamplingParams
from tandem.engines.noise import Purpose
from tandem.engines.stepping import sampling

SAMPLING = SamplingParams(temperature=1.1, top_k=40)
LENGTH = 60


class Ledger:
    """Record the keys (seed, position, purpose) of all noise since the last `take`."""

    def __init__(self, key) -> None:
        self._key = key
        self.draws: list[tuple[int, int, Purpose]] = []

    def __call__(self, seed, position, purpose):
        self.draws.append((seed, position, purpose))
        return self._key(seed, position, purpose)

    def take(self) -> list[tuple[int, int, Purpose]]:
        taken, self.draws = self.draws, []
        return taken

    def number(self, key) -> int:
        return self._key(*key)


class Watched(Played):
    """Record the keys of the noise that each call uses."""

    def __init__(self, harness, ledger: Ledger) -> None:
        super().__init__(harness, SAMPLING)
        self._ledger = ledger
        self.drawn: list[list[tuple[int, int, Purpose]]] = []

    def answers(self, call):
        answers = list(super().answers(call))
        self.drawn.append(self._ledger.take())
        return iter(answers)


@pytest.fixture
def ledger(monkeypatch):
    made = Ledger(noise.hash_key)
    for module in (noise, sampling):
        monkeypatch.setattr(module, "hash_key", made)
    return made


@pytest.fixture(scope="module")
def drafter(make_harness, llama):
    """A draft engine whose drafts are often accepted and often rejected."""
    return make_harness("qwen2")


def generate(target, draft, *, draft_len, use_draft_logits, seed=5):
    """Return an answer of LENGTH tokens."""
    request = Request(
        prompt_ids=np.array(prompt(6, 10), np.int32),
        max_tokens=LENGTH,
        sampling=Sampling(top_k=0, seed=seed),
        drafter="draft_model" if draft_len else "none",
        draft_len=draft_len,
        use_draft_logits=use_draft_logits,
    )
    decoding = decoding_of(request)
    play(decoding, target, draft)
    return decoding.sequence.output.tolist()


def deciding(target: Watched, draft: Watched, *, use_draft_logits) -> dict[int, set]:
    """Return, for each position of the answer, the keys of the noise that decided its token.

    In id mode, only the target's noise decides, and a draft predicts it. In logits mode, the noise
    of a draft token also counts if the target verified that token.
    """
    proposals = dict(zip(map(_position, draft.calls), draft.drawn, strict=True))
    decided = defaultdict(set)
    for (call, tokens), drawn in zip(target.calls, target.drawn, strict=True):
        first = len(call.context)
        positions = range(first, first + len(tokens))
        looked_at = range(first, first + min(len(tokens), len(call.draft)))
        keys = [key for key in drawn if key[1] in positions]
        if use_draft_logits and len(call.draft):
            keys += [key for key in proposals[first] if key[1] in looked_at]
        for key in keys:
            decided[key[1]].add(key)
    return decided


def _position(call_and_tokens):
    return len(call_and_tokens[0].context)


@pytest.mark.parametrize("use_draft_logits", [False, True], ids=["ids", "logits"])
@pytest.mark.parametrize("draft_len", [1, 5])
def test_no_random_number_decides_two_tokens(llama, drafter, ledger, draft_len, use_draft_logits):
    target, draft = Watched(llama, ledger), Watched(drafter, ledger)
    text = generate(target, draft, draft_len=draft_len, use_draft_logits=use_draft_logits)
    assert len(target.calls) < len(text) == LENGTH  # some drafts were accepted
    decided = deciding(target, draft, use_draft_logits=use_draft_logits)
    start = _position(target.calls[0])
    assert sorted(decided) == list(range(start, start + LENGTH))
    numbers = [ledger.number(key) for keys in decided.values() for key in keys]
    assert len(set(numbers)) == len(numbers)
