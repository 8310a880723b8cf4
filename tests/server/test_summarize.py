"""`tandem summarize` against a live server: the columns agree, and the verdict counts."""

import json

import pytest
from checkpoints import write_pair

from tandem.tools import cli as command

LIMIT = 3


def run(*arguments):
    return command.main(["summarize", *map(str, arguments), "--limit", str(LIMIT)])


@pytest.mark.parametrize("drafter", ["draft_model", "prompt_lookup", "hybrid"])
def test_columns_agree_on_a_running_server(server, tmp_path, capsys, drafter):
    options = ["--url", server.grpc_url, "--drafter", drafter, "--max-output-len", 16]
    written = tmp_path / "results.json"
    assert run(*options, "--json", written) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["none", drafter]
    figures = json.loads(written.read_text())
    assert figures["columns"][drafter]["num_identical_to_control"] == LIMIT
    assert figures["columns"][drafter]["against"]["none"]["rouge1"] == 100
    assert len(figures["items"]) == LIMIT


def test_accuracy_under_a_threshold_fails(server, capsys):
    options = ["--url", server.grpc_url, "--check-accuracy", "--max-output-len", 8]
    assert run(*options, "--rouge1-threshold", 0) == 0
    assert run(*options, "--rouge1-threshold", 101) == 1
    assert "too low: ROUGE-1 of default against the reference is" in capsys.readouterr().out


def test_documents_command_serves_and_agrees_with_hugging_face(tmp_path, capsys):
    write_pair(tmp_path)
    written = tmp_path / "results.json"
    status = run(
        *("--test_hf", "--test_trt_llm", "--hf_model_dir", tmp_path / "target"),
        *("--engine_dir", tmp_path / "target", "--tokenizer_dir", tmp_path / "tokenizer"),
        *("--prompt_lookup_config=[10,2,[0]]", "--kv_cache_enable_block_reuse"),
        *("--batch_size=1", "--max_output_len=24", "--json", written),
    )
    assert status == 0
    header = capsys.readouterr().out.splitlines()[0].split()
    assert header == ["none", "prompt_lookup", "hugging_face"]
    columns = json.loads(written.read_text())["columns"]
    assert columns["prompt_lookup"]["num_identical_to_control"] == LIMIT
    assert columns["hugging_face"]["num_identical_to_control"] == LIMIT
