"""The llmapi check for GPU machines runs with a stand-in for TensorRT-LLM."""

import json
import re
import sys
from pathlib import Path

import pytest
import standin
from benchmarks import llmapi_check
from checkpoints import LLAMA, write_adapter_of, write_empty

IGNORED = ("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "bad_token_ids")

ADAPTER = (
    "the adapter changes the output",
    "greedy output equals the baseline's with it",
    "calls without it have the base model's output",
    "calls without it reuse none of its KV blocks",
    "calls with it reuse its KV blocks",
    "reused KV blocks don't change the output",
)


@pytest.fixture
def report(monkeypatch, tmp_path, capsys):
    """The rows of the check's report: for each name, "yes" or "no" per table."""
    monkeypatch.syspath_prepend(str(Path(standin.__file__).parent))
    write_empty(tmp_path / "model", 131, **LLAMA)
    config = {"decoding_type": "NGram", "max_draft_len": 4, "max_matching_ngram_size": 2}
    write_adapter_of(tmp_path / "model", tmp_path / "sql")
    given = ["--model", str(tmp_path / "model"), "--speculative-config", json.dumps(config)]
    given += ["--lora-adapter", str(tmp_path / "sql")]
    monkeypatch.setattr(sys, "argv", ["llmapi_check", *given])
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("tensorrt_llm.STEP_SECONDS", 0)
    monkeypatch.setattr("tensorrt_llm.__version__", "1.3.0rc15")
    llmapi_check.main()
    rows = {}
    for line in capsys.readouterr().out.splitlines():
        if found := re.match(r" *(.+?) +(yes|no)\b", line):
            rows.setdefault(found[1], []).append(found[2])
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]
    return rows


def test_the_report_has_a_row_per_promise_and_per_rejected_input(report):
    assert report["greedy output equals the baseline's"] == ["yes", "yes"]
    assert report["each token has a log-probability"] == ["yes", "yes"]
    assert report["a bias bans a token at every position"] == ["yes", "yes"]
    for name in ADAPTER:
        assert report[name] == ["yes", "yes"]
    assert [report[name] for name in IGNORED] == [["no"]] * len(IGNORED)
