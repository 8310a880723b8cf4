"""Prompt lookup in the engine gives the same output and drafts as prompt lookup in the loop."""

import json

import pytest
from crowd import ask as ask_crowd
from entries import OUTPUTS, ask, ask_one, stream
from metrics import scrape, total, until
from prompts import COMPLETIONS
from schemas import complaint, schema_of

from tandem.contract import entry

SOME = COMPLETIONS[::20]
END = "<|endoftext|>"
COPYING = "def add(a, b):\n    return a + b\n\n" * 3 + "def add(a, b):\n"
LENGTH = 32


def by_loop(server, prompts, **values):
    return ask(server, "bls", prompts, max_tokens=LENGTH, drafter="prompt_lookup", **values)


def by_engine(in_engine, prompts, **values):
    return ask(in_engine, "bls", prompts, max_tokens=LENGTH, **values)


def said(answers):
    return [(answer.ids, answer.text, answer.finish_reason) for answer in answers]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"seed": 7, "temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.2},
        {"min_tokens": 28, "bad_words": [" a", "("]},
        {"stop_words": ["return", "\n\n"]},
    ],
    ids=lambda values: "-".join(values) or "greedy",
)
def test_output_equals_prompt_lookup_in_the_loop(server, in_engine, values):
    prompts = [COPYING, *SOME]
    assert said(by_engine(in_engine, prompts, **values)) == said(by_loop(server, prompts, **values))


def test_drafts_chunks_and_log_probs_equal_prompt_lookup_in_the_loop(server, in_engine):
    [loop] = by_loop(server, [COPYING], end_id=-1)
    [engine] = by_engine(in_engine, [COPYING], end_id=-1)
    for name in (entry.NUM_ROUNDS, entry.TOTAL_DRAFT_TOKENS, entry.TOTAL_ACCEPTED_DRAFT_TOKENS):
        assert engine.number(name) == loop.number(name)
    assert engine.number(entry.TOTAL_ACCEPTED_DRAFT_TOKENS) > 0
    chunks = stream(in_engine, COPYING, max_tokens=LENGTH, end_id=-1)
    assert "".join(chunk.text for chunk in chunks) == loop.text
    outputs = ("text_output", "output_log_probs", "cum_log_probs")
    asked = {"max_tokens": LENGTH, "return_log_probs": True, "outputs": outputs}
    loop = ask_one(server, "bls", COPYING, drafter="prompt_lookup", **asked)
    engine = ask_one(in_engine, "bls", COPYING, **asked)
    for name in outputs[1:]:
        assert engine.outputs[name] == pytest.approx(loop.outputs[name], abs=1e-3)


def counters(server):
    return {
        key: value
        for key, value in scrape(server).items()
        if key[0].endswith(("_total", "_count", "_sum", "_bucket"))
        and key[0].startswith(("tandem_", "spec_decode_"))
    }


@pytest.mark.parametrize("prompt", [f"a{END}a", f"{END}{END}a{END}{END}a"])
def test_an_end_of_sequence_in_engine_drafts_decreases_no_counter(in_engine, prompt):
    before = counters(in_engine)
    bias = {"embedding_bias_words": [END], "embedding_bias_weights": [1e9]}
    for model in ("bls", "bls_stream"):
        stream = {"stream": False} if model == "bls_stream" else {}
        answer = ask_crowd(
            in_engine, prompt, model=model, end_id=0, max_tokens=16, **stream, **bias
        )
        assert (answer.error, answer.ids) == ("", ())
    drafted = "spec_decode_num_draft_tokens_total"
    until(
        lambda: total(in_engine, drafted) > sum(before[key] for key in before if key[0] == drafted)
    )
    now = counters(in_engine)
    assert [key for key, value in before.items() if now[key] < value] == []


GUIDED = range(80_000, 80_003)  # seeds of schemas


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
def test_guided_output_is_the_same_without_token_masks(server, in_engine, sampling, method):
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
