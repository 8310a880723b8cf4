"""With unkeyed noise, guided answers have exactly the probabilities of masked sampling."""

from dataclasses import replace

import numpy as np
import pytest
from guided import (
    ENDS,
    MASKS,
    UNKEYED,
    WIDTH,
    RandomDraft,
    RandomEngine,
    decoding_of,
    distribution,
    masked,
)
from scripted import ids, play, with_engines
from small_guides import encoded, matcher

from tandem.bls.guidance import ByGuide
from tandem.bls.request import Request, Sampling
from tandem.contract.guide import Guide

A, B, X = (encoded(letter)[0] for letter in "abx")
P = {A: 0.2, B: 0.3, X: 0.5}
Q = {A: 0.4, B: 0.1, X: 0.5}
PATTERN = Guide("regex", "(ab?|bb?b?|aaa)")


def row_of(table, context):
    """Probabilities, shape [WIDTH], of three letters, rotated by the length of the context."""
    turned = np.zeros(WIDTH)
    letters, shares = list(table), list(table.values())
    for letter, share in zip(letters, shares[len(context) % 3 :] + shares, strict=False):
        turned[letter] = share
    turned[ENDS[0]] = 0.1
    return turned / turned.sum()


def target_row(context):
    return row_of(P, context)


def draft_row(context):
    return row_of(Q, context)


def exact(request) -> dict:
    """Return the probability of each answer with masked sampling, one token at a time."""
    found: dict = {}

    def go_on(new, probability):
        guide = matcher(*request.guide, ends=request.end_ids)
        guide.advance(list(new))
        if len(new) == request.max_tokens or guide.complete:
            found[new] = found.get(new, 0) + probability
            return
        row = masked(target_row([*request.prompt_ids.tolist(), *new]), guide.walk([]).masks[0])
        for token in np.flatnonzero(row).tolist():
            if token in request.end_ids:
                found[new] = found.get(new, 0) + probability * row[token]
            else:
                go_on((*new, token), probability * row[token])

    go_on((), 1.0)
    return found


def drawn(request, engine) -> dict:
    """Return the probability of each answer of the loop."""

    def run(chooser):
        decoding = decoding_of(request, engine)
        play(decoding, RandomEngine(target_row, chooser), RandomDraft(draft_row, chooser))
        return tuple(decoding.sequence.output.tolist())

    return distribution(run)


def total_variation(one, other) -> float:
    return sum(abs(one.get(key, 0) - other.get(key, 0)) for key in {*one, *other}) / 2


def random_request(max_tokens=3, **fields):
    return Request(
        prompt_ids=ids(5),
        max_tokens=max_tokens,
        end_ids=ENDS[:1],
        guide=PATTERN,
        sampling=Sampling(top_k=0, seed=1),
        max_draft_len=16,
        **fields,
    )


FRESH = with_engines(MASKS, target={"keyed_randomness": False})
CASES = [
    {"drafter": "none"},
    {"drafter": "draft_model", "draft_len": 2},
    {"drafter": "draft_model", "draft_len": 2, "use_draft_logits": True},
]


@pytest.mark.parametrize(
    ("engine", "max_tokens"), [(FRESH, 3), (UNKEYED, 2)], ids=["masks", "repair"]
)
@pytest.mark.parametrize("fields", CASES, ids=["none", "ids", "logits"])
def test_guided_answers_have_the_probabilities_of_masked_sampling(fields, engine, max_tokens):
    request = random_request(max_tokens, **fields)
    found = drawn(request, engine)
    assert sum(found.values()) == pytest.approx(1)
    assert total_variation(found, exact(request)) < 1e-12


def test_cutting_a_draft_with_logits_would_bias_the_output(monkeypatch):
    request = random_request(**CASES[2])
    cut = ByGuide.legal_prefix

    def cut_always(self, draft):
        legal, masks = cut(self, replace(draft, logits=None))
        return replace(draft, tokens=legal.tokens), masks

    monkeypatch.setattr(ByGuide, "legal_prefix", cut_always)
    assert total_variation(drawn(request, FRESH), exact(request)) > 0.01
