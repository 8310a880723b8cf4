"""Answers that must fit a form fit it, with any drafter, and say what they would say without one."""

import json
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import lark
import numpy as np
import pytest
import tritonclient.grpc as client
from entries import OUTPUTS, ask, ask_one, inputs, read, refusal, stream, tensor
from prompts import COMPLETIONS
from schemas import REFUSED, complaint, schema_of

from tandem.contract import entry

from .conftest import emulated_zero, serving

DRAFTERS = ("none", "draft_model", "prompt_lookup", "hybrid")
AT_ONCE = 16
# Seeds of schemas that nothing was tuned on: those below were.
EMULATED_SEEDS = range(50_000, 50_400)
EMBEDDED_SEEDS = range(60_000, 60_100)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("emulated")
    with serving(emulated_zero(folder), folder) as running:
        yield running


def by(kind, guide=""):
    """The inputs that a guide is."""
    return {
        entry.GUIDED_DECODING_GUIDE_TYPE: kind,
        **({entry.GUIDED_DECODING_GUIDE: guide} if guide else {}),
    }


def by_schema(schema):
    return by("json_schema", json.dumps(schema))


def prompt_of(number):
    return COMPLETIONS[number % len(COMPLETIONS)]


def whole(chunks):
    """Text, ids and finish reason of an answer in chunks."""
    ids = [token for chunk in chunks for token in chunk.ids]
    return "".join(chunk.text for chunk in chunks), ids, chunks[-1].finish_reason


def said(answers):
    return [(answer.ids, answer.text, answer.finish_reason) for answer in answers]


def answer_to(server, seed, **values):
    """A schema's answer: streamed or not, by one drafter or another, as the seed has it."""
    asked = {
        **by_schema(schema_of(seed)),
        "drafter": DRAFTERS[seed % 4],
        "temperature": 1.0,
        "seed": seed,
        **values,
    }
    if seed // 4 % 2:
        return whole(stream(server, prompt_of(seed), **asked))
    answer = ask_one(server, "bls", prompt_of(seed), **asked)
    return answer.text, answer.ids, answer.finish_reason


@pytest.mark.parametrize(
    ("served", "seeds", "max_tokens", "least"),
    [("emulated", EMULATED_SEEDS, 500, 350), ("server", EMBEDDED_SEEDS, 160, 60)],
    ids=["emulated", "embedded"],
)
def test_every_answer_that_ends_is_valid(served, seeds, max_tokens, least, request):
    server = request.getfixturevalue(served)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda s: answer_to(server, s, max_tokens=max_tokens), seeds))
    reasons = Counter(reason for *_, reason in answers)
    assert set(reasons) <= {"stop", "length"}
    assert reasons["stop"] >= least
    wrong = []
    for seed, (text, ids, reason) in zip(seeds, answers, strict=True):
        assert (reason == "length") == (len(ids) == max_tokens) or len(ids) == max_tokens
        if reason == "stop":
            wrong += filter(None, [complaint(schema_of(seed), text)])
    assert not wrong, wrong[:5]
