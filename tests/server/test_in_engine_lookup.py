"""Prompt lookup by the loop (V1) and inside the engine (V2): one text, the same drafts earned."""

import pytest
from entries import ask, ask_one, stream
from prompts import COMPLETIONS

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
