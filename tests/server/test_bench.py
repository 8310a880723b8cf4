"""`tandem bench` on a live server, in small. No figure is a promise: none is checked."""

import json
from pathlib import Path

import pytest

from tandem.tools import cli as command
from tandem.tools.profiles import deployment

from .conftest import serving

PROFILE = Path(__file__).resolve().parents[2] / "profiles" / "emulated-zero.yaml"
FEW = ("--limit", "2", "--max-tokens", "12", "--repetitions", "2")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of emulated engines that answer at once."""
    with serving(deployment.load(PROFILE), tmp_path_factory.mktemp("bench")) as running:
        yield running


def test_bench_measures_every_combination(server, tmp_path, capsys):
    written = tmp_path / "bench.json"
    arguments = (
        *("--url", server.grpc_url, *FEW, "--input-tokens", "64,200"),
        *("--drafter", "draft_model,prompt_lookup", "--num-draft-tokens", "3,auto"),
        *("--concurrency", "1,3", "--json", str(written)),
    )
    assert command.main(["bench", *arguments]) == 0
    shown = capsys.readouterr().out
    assert "different" not in shown
    assert f"{server.grpc_url}: 64 tokens" in shown
    rows = json.loads(written.read_text())["rows"]
    ways = [("none", ""), ("draft_model", "3"), ("draft_model", "auto"), ("prompt_lookup", "3")]
    assert [
        (row["scenario"], row["num_streams"], row["drafter"], row["num_draft_tokens"])
        for row in rows
    ] == [
        (f"{length} tokens", count, *way)
        for length in (64, 200)
        for count in (1, 3)
        for way in ways
    ]
    for row in rows:
        assert [r["num_answers"] for r in row["repetitions"]] == [2 * row["num_streams"]] * 2
        assert {r["num_tokens"] for r in row["repetitions"]} == {2 * 12 * row["num_streams"]}
        assert 0 < row["efficiency"]["median"] < 1
        assert row["orchestration_seconds_per_round"]["median"] > 0
        assert row["seconds_to_first_token"]["median"] > 0
        assert row["inter_token_seconds"]["p50"] >= 0
        assert (row["scaling"] is None) == (row["num_streams"] == 1)


def test_bench_measures_an_entry_that_answers_whole_without_latencies(server, capsys):
    arguments = ("--model", "bls", "--drafter", "prompt_lookup")
    assert command.main(["bench", "--url", server.grpc_url, *FEW, *arguments]) == 0
    shown = capsys.readouterr()
    assert "'bls' doesn't stream: no latencies" in shown.err
    assert "streamed" not in shown.out


def test_bench_samples_by_probability_too(server, capsys):
    arguments = ("--temperature", "1", "--use-draft-logits", "--drafter", "draft_model")
    assert command.main(["bench", "--url", server.grpc_url, *FEW, *arguments]) == 0
    assert "draft_model" in capsys.readouterr().out


def test_bench_measures_no_drafts_that_the_server_does_not_verify(server, capsys):
    arguments = ("--drafter", "draft_model", "--num-draft-tokens", "99")
    assert command.main(["bench", "--url", server.grpc_url, *FEW, *arguments]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"--num-draft-tokens 99: {server.grpc_url} verifies 32 draft tokens per round" in error
