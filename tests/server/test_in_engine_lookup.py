"""Prompt lookup by the loop (V1) and inside the engine (V2): one text, the same drafts earned."""

import json

import pytest
from entries import OUTPUTS, ask, ask_one, stream
from prompts import COMPLETIONS
from schemas import complaint, schema_of

from tandem.contract import entry
from tandem.tools.profiles import deployment
from tandem.tools.profiles.engines.lookup import LookupSection
from tandem.tools.profiles.profile import DecodingSection

from .conftest import serving

SOME = COMPLETIONS[::5]
COPYING = "def add(a, b):\n    return a + b\n\n" * 3 + "def add(a, b):\n"
LENGTH = 32


@pytest.fixture(scope="module")
def in_engine(embedded, tmp_path_factory):
    """A server of the embedded target alone, which looks drafts up by itself."""
    profile = embedded.profile
    target = profile.engines.target.model_copy(update={"prompt_lookup": LookupSection()})
    engines = profile.engines.model_copy(update={"target": target, "draft": None})
    entries = tuple(entry for entry in profile.entries if entry.drafter != "none")
    changes = {"engines": engines, "decoding": DecodingSection(), "entries": entries}
    planned = deployment.check(profile.model_copy(update=changes))
    with serving(planned, tmp_path_factory.mktemp("in-engine")) as running:
        yield running


def v1(server, prompts, **values):
    return ask(server, "bls", prompts, max_tokens=LENGTH, drafter="prompt_lookup", **values)


def v2(in_engine, prompts, **values):
    return ask(in_engine, "bls", prompts, max_tokens=LENGTH, **values)


def said(answers):
    return [(answer.ids, answer.text, answer.finish_reason) for answer in answers]


@pytest.mark.parametrize("sampling", [{}, {"seed": 7, "temperature": 0.8, "top_p": 0.95}])
def test_text_is_one(server, in_engine, sampling):
    assert said(v2(in_engine, SOME, **sampling)) == said(v1(server, SOME, **sampling))


@pytest.mark.parametrize(
    "values",
    [
        {"repetition_penalty": 1.2},
        {"min_tokens": 28},
        {"stop_words": ["return", "\n\n"]},
        {"bad_words": [" a", "("]},
    ],
    ids=lambda values: next(iter(values)),
)
def test_text_is_one_whatever_was_asked_for(server, in_engine, values):
    prompts = [COPYING, *COMPLETIONS[:2]]
    assert said(v2(in_engine, prompts, **values)) == said(v1(server, prompts, **values))


def test_both_earn_the_same_drafts_where_the_answer_copies(server, in_engine):
    [loop] = v1(server, [COPYING], end_id=-1)
    [engine] = v2(in_engine, [COPYING], end_id=-1)
    figures = ("num_rounds", "total_draft_tokens", "total_accepted_draft_tokens")
    told = [[int(answer.number(name)) for name in figures] for answer in (loop, engine)]
    assert told[0] == told[1]
    assert told[1][2] > 0


def test_streamed_chunks_join_to_the_same_text(server, in_engine):
    [expected] = v1(server, [COPYING])
    chunks = stream(in_engine, COPYING, max_tokens=LENGTH)
    assert "".join(chunk.text for chunk in chunks) == expected.text


def test_log_probs_are_the_same(server, in_engine):
    outputs = ("text_output", "output_log_probs", "cum_log_probs")
    asked = {"max_tokens": LENGTH, "return_log_probs": True, "outputs": outputs}
    loop = ask_one(server, "bls", COPYING, drafter="prompt_lookup", **asked)
    engine = ask_one(in_engine, "bls", COPYING, **asked)
    for name in outputs[1:]:
        assert engine.outputs[name] == pytest.approx(loop.outputs[name], abs=1e-3)


GUIDED = range(80_000, 80_008)  # seeds of schemas


def guided(seed):
    """A guide's inputs."""
    schema = json.dumps(schema_of(seed))
    return {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": schema}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("sampling", "method"),
    [
        ({}, "repair"),
        ({"temperature": 0.9, "seed": 5}, "repair"),
        ({"temperature": 0.9, "top_p": 0.9, "seed": 5}, "token_by_token"),
    ],
    ids=["greedy", "sampled", "top-p"],
)
def test_an_engine_without_masks_repairs_to_the_text_of_one_that_has_them(
    server, in_engine, sampling, method
):
    repaired = 0
    for seed in GUIDED:
        asked = {**guided(seed), "max_tokens": 60, **sampling}
        masked = ask_one(server, "bls", SOME[0], **asked)
        asked["outputs"] = (*OUTPUTS, entry.SPEC_DECODE_STATISTICS)
        answer = ask_one(in_engine, "bls", SOME[0], **asked)
        assert said([answer]) == said([masked])
        if answer.finish_reason == "stop":
            assert not complaint(schema_of(seed), answer.text)
        told = json.loads(answer.outputs[entry.SPEC_DECODE_STATISTICS][0])["guide"]
        assert told["method"] == method
        repaired += told["num_repaired_tokens"]
    assert (repaired > 0) == (method == "repair")
