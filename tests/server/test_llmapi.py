"""The llmapi engine works on a live server, with the stand-in for TensorRT-LLM."""

import pytest
import standin
import yaml
from checkpoints import LLAMA, write_adapter_of, write_empty, write_tokenizer
from entries import ask, ask_one, rejection, stream
from metrics import Change

from tandem.tools.profiles import deployment

from .conftest import serving

PROMPTS = ["def add(a, b):\n    return a", "import json\nimport", "for i in range(10):"]
LENGTH = 60
CYCLE = 7


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with a single engine, which does prompt lookup by itself."""
    folder = tmp_path_factory.mktemp("llmapi")
    size = write_tokenizer(folder / "target")
    write_empty(folder / "target", size, **LLAMA)
    write_adapter_of(folder / "target", folder / "sql")
    profile = {
        "name": "llmapi",
        "engines": {
            "target": {
                "kind": "llmapi",
                "checkpoint": "target",
                "max_seq_len": 512,
                "prompt_lookup": {"max_matching_ngram_size": 3},
                "lora_adapters": {"sql": "sql"},
            }
        },
        "entries": [{"name": "bls_stream", "kind": "stream"}, {"name": "bls", "kind": "forward"}],
    }
    (folder / "profile.yaml").write_text(yaml.safe_dump(profile))
    stopped = serving(deployment.load(folder / "profile.yaml"), folder)
    standin.plant(stopped.repository, version="1.3.0rc15")
    with stopped as running:
        yield running


def test_the_engine_drafts_by_itself_and_its_drafts_are_counted(server):
    answers = ask(server, "bls", PROMPTS, max_tokens=LENGTH, end_id=-1)
    for answer in answers:
        assert len(answer.ids) == LENGTH
        period = len(set(answer.ids))  # the stand-in's text repeats a few ids
        assert period <= CYCLE
        assert answer.ids[period:] == answer.ids[:-period]
        assert answer.finish_reason == "length"
        drafted, accepted = (
            answer.number(f"total_{kind}_tokens") for kind in ("draft", "accepted_draft")
        )
        assert LENGTH * 2 / 3 < accepted <= drafted
        assert answer.rounds == LENGTH - accepted


def test_chunks_stop_strings_and_metrics_work_as_with_other_engines(server):
    asked = {"max_tokens": LENGTH, "end_id": -1}
    change = Change(server, drafter="engine")
    whole = ask_one(server, "bls", PROMPTS[0], **asked)
    change.until_ended(1)
    accepted = whole.accepted_tokens
    assert change.of("spec_decode_num_accepted_tokens_total", drafter="engine") == accepted > 0
    chunks = stream(server, PROMPTS[0], **asked)
    assert len(chunks) > 1
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [token for chunk in chunks for token in chunk.ids] == whole.ids
    stop = whole.text[10:14]
    stopped = ask_one(server, "bls", PROMPTS[0], **asked, stop_words=[stop])
    assert stopped.text == whole.text[: whole.text.index(stop)]
    assert stopped.finish_reason == "stop"
    asked["end_id"] = whole.ids[4]
    ended = ask_one(server, "bls", PROMPTS[0], **asked)
    assert (ended.ids, ended.finish_reason) == (whole.ids[:4], "stop")
    assert len(ask_one(server, "bls", PROMPTS[0], **asked, min_tokens=9).ids) >= 9


def test_requests_name_adapters_that_the_engine_applies_with_its_drafts(server):
    asked = {"max_tokens": LENGTH, "end_id": -1}
    base = ask_one(server, "bls", PROMPTS[0], **asked)
    adapted = ask_one(server, "bls", PROMPTS[0], **asked, lora_name="sql")
    assert adapted.ids != base.ids == ask_one(server, "bls", PROMPTS[0], **asked).ids
    assert adapted.accepted_tokens > 0


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"drafter": "none"}, "drafter"),
        ({"drafter": "prompt_lookup"}, "drafter"),
        ({"num_draft_tokens": 3}, "num_draft_tokens"),
        ({"repetition_penalty": 1.2}, "repetition_penalty isn't supported by this engine"),
        ({"return_context_logits": True}, "return_context_logits isn't supported"),
    ],
)
def test_unsupported_inputs_are_rejected(server, asked, words):
    assert words in rejection(server, "bls", max_tokens=8, **asked)
