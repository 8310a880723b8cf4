"""The example programs, and the commands `generate`, `bench` and `perf`, on a live server."""

import io
import json
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks.soak.processes import is_at_rest
from entries import ask_one, stream
from live_triton import eventually, triton_of

from tandem.contract import entry
from tandem.tools import cli as command
from tandem.tools.client.client import Client
from tandem.tools.triton.server import TritonServer

from .conftest import ROOT

PROMPT = "def main():"
FEW = ("--limit", "2", "--max-tokens", "12", "--repetitions", "2")
FEWEST = ("--limit", "1", "--max-tokens", "8", "--repetitions", "1")


def run(verb, server, *arguments):
    return command.main([verb, *map(str, arguments), "--url", server.grpc_url])


def generate(server, *arguments):
    return run("generate", server, *arguments)


def rejected(capsys, *arguments):
    """Return the one-line error of a command that must fail."""
    assert command.main(list(arguments)) == 1
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    return shown.err.removesuffix("\n").removeprefix("tandem: ")


@pytest.mark.parametrize("drafter", ["draft_model", "none"])
def test_generate_prints_the_output_and_a_summary_line(server, capsys, drafter):
    assert generate(server, PROMPT, "--max-tokens", "24", "--drafter", drafter) == 0
    shown = capsys.readouterr()
    expected = ask_one(server, "ensemble", PROMPT, max_tokens=24)
    assert shown.out.removesuffix("\n") == expected.text.removesuffix("\n")
    assert re.fullmatch(
        r"\d+ tokens, [\d.]+ tokens/s, first token after \d+ ms, "
        r"(acceptance \d+%, [\d.]+ tokens per round|nothing drafted), (length|stop)\n",
        shown.err,
    )
    assert ("nothing drafted" in shown.err) == (drafter == "none")


def test_generate_reads_standard_input_and_passes_on_options(server, capsys, monkeypatch):
    stop = ask_one(server, "bls", PROMPT, max_tokens=40).text[5:9]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PROMPT.encode())))
    options = ["--max-tokens", "40", "--stop", stop, "--num-draft-tokens", "2"]
    assert generate(server, "-", *options) == 0
    shown = capsys.readouterr()
    expected = ask_one(server, "ensemble", PROMPT, max_tokens=40, stop_words=(stop,))
    assert shown.out.removesuffix("\n") == expected.text.removesuffix("\n")
    assert shown.err.endswith("stop\n")


def test_generate_accepts_schemas_and_regular_expressions(server, tmp_path, capsys):
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": [{"answer": "yes"}, {"answer": "no"}]}')
    assert generate(server, PROMPT, "--json-schema", schema) == 0
    assert json.loads(capsys.readouterr().out)["answer"] in {"yes", "no"}
    assert generate(server, PROMPT, "--regex", "[0-9]{4}/a") == 0
    assert re.fullmatch(r"\d{4}/a\n", capsys.readouterr().out)
    schema.write_text("{")
    for option, wrong in (("--regex", "("), ("--json-schema", schema)):
        assert generate(server, PROMPT, option, wrong) == 1
        assert capsys.readouterr().err.startswith(f"tandem: invalid_guide: {option}")


def test_stream_chunks_include_running_totals_on_request(server):
    names = (entry.NUM_ROUNDS, entry.TOTAL_DRAFT_TOKENS, entry.TOTAL_ACCEPTED_DRAFT_TOKENS)
    chunks = stream(server, PROMPT, max_tokens=32, outputs=(entry.TEXT_OUTPUT, *names))
    totals = np.array([[chunk.outputs[name].item() for name in names] for chunk in chunks])
    assert (np.diff(totals, axis=0) >= 0).all()
    assert totals[-1, 0] > totals[0, 0]
    *chunks, last = stream(server, PROMPT, max_tokens=32, outputs=())
    assert chunks
    assert not any(entry.NUM_ROUNDS in chunk.outputs for chunk in chunks)
    assert last.outputs[entry.NUM_ROUNDS].item() > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--drafter", "guess"], "--drafter must be one of"),
        (["x", "--stop", "a\udcff"], "--stop must be UTF-8; got byte 0xff at position 1"),
        (["a\udcff"], "the prompt must be UTF-8; got byte 0xff at position 1"),
    ],
)
def test_a_rejected_request_prints_one_line(server, capsys, arguments, message):
    assert generate(server, *arguments) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"tandem: {message}")
    assert shown.err.count("\n") == 1


def test_ctrl_c_cancels_the_request_and_prints_a_summary(server):
    command_line = [sys.executable, "-m", "tandem", "generate", PROMPT, "--max-tokens", "3600"]
    with (
        server.faults.inject("target", "late"),  # so the answer can't end before the signal
        subprocess.Popen(
            [*command_line, "--url", server.grpc_url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process,
    ):
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, summary = process.communicate(timeout=30)
    assert process.returncode == 130
    assert re.fullmatch(rb"[1-9]\d* tokens, .*, cancelled\n", summary)
    assert eventually(lambda: is_at_rest(server))


def test_bench_measures_every_combination(emulated, tmp_path, capsys):
    written = tmp_path / "bench.json"
    arguments = (
        *(*FEW, "--input-tokens", "64,200", "--concurrency", "1,3"),
        *("--drafter", "draft_model,prompt_lookup", "--num-draft-tokens", "3,auto"),
        *("--temperature", "1", "--use-draft-logits", "--json", written),
    )
    assert run("bench", emulated, *arguments) == 0
    shown, progress = capsys.readouterr()
    assert "different" not in shown
    assert "speedup: over drafter none" in shown
    total = re.search(r"tandem: (\d+) of \1 requests\n$", progress)
    assert total
    assert progress.count(f" of {total[1]} requests\n") == 10
    assert f"{emulated.grpc_url}: 64 tokens" in shown
    rows = json.loads(written.read_text())["rows"]
    drafters = ("draft_model", "prompt_lookup")
    ways = [("none", ""), *((name, n) for name in drafters for n in ("3", "auto"))]
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


def test_bench_reports_that_triton_died(monkeypatch, capsys):
    servers, start, stream = [], TritonServer.start, Client.stream

    def started(server):
        start(server)
        servers.append(server)

    def killing(client, *inputs, **options):
        os.kill(triton_of(servers[0]), signal.SIGKILL)
        return stream(client, *inputs, **options)

    monkeypatch.setattr("tandem.tools.triton.server.EXIT_GRACE_SECONDS", 60.0)
    monkeypatch.setattr(TritonServer, "start", started)
    monkeypatch.setattr(Client, "stream", killing)
    assert command.main(["bench", "--profile", "emulated-zero", *FEWEST]) == 1
    log = servers[0].log.path
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"tandem: Triton was killed by signal 9; log: {log}"
    )
    log.unlink()


def test_bench_names_what_the_server_lacks(emulated, capsys):
    url = emulated.grpc_url
    assert run("bench", emulated, *FEWEST, "--model", "bls", "--drafter", "prompt_lookup") == 0
    assert "no latencies: 'bls' doesn't stream" in capsys.readouterr().err
    assert rejected(capsys, "bench", "--url", url, *FEWEST, "--drafter", "oracle") == (
        "--drafter must be one of hybrid, draft_model, prompt_lookup, repeat, faulty, none for "
        f"{url}; got oracle"
    )
    arguments = ("--drafter", "draft_model", "--num-draft-tokens", "99")
    assert run("bench", emulated, *FEWEST, *arguments) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"must be at most 32, the maximum of {url}; got 99" in error


@pytest.mark.parametrize("verb", ["generate", "bench", "perf"])
def test_the_error_for_an_unknown_entry_lists_the_served_entries(emulated, capsys, verb):
    url = emulated.grpc_url
    prompt = ["x"] if verb == "generate" else []
    entries = f"{url} has bls, bls_stream, ensemble"
    assert rejected(capsys, verb, *prompt, "--url", url, "--model", "blss") == (
        f"no entry 'blss'; {entries}"
    )
    if prompt:
        assert rejected(capsys, verb, *prompt, "--url", url, "--model", "target") == (
            f"'target' isn't an entry: it has no text input; {entries}"
        )


def test_the_error_for_a_wrong_port_names_its_kind(emulated, capsys):
    metrics = emulated.metrics_url.removeprefix("http://").partition("/")[0]
    for url, kind in ((emulated.http_url, "Triton's HTTP port"), (metrics, "an HTTP port")):
        assert rejected(capsys, "generate", "x", "--url", url) == (
            f"{url} is {kind}; set --url to the gRPC port, such as 127.0.0.1:8001"
        )


def test_generate_works_with_an_entry_that_does_not_stream(emulated, capsys):
    said = []
    for model in ("bls", "bls_stream"):
        assert generate(emulated, "x", "--model", model, "--max-tokens", "8") == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


@pytest.mark.parametrize(
    "program", sorted(Path(ROOT, "examples").glob("*.py")), ids=lambda path: path.name
)
def test_every_example_program_prints_an_answer(server, monkeypatch, capsys, program):
    words = [str(program), "--url", server.grpc_url, "--max-tokens", "8", PROMPT]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(str(program), run_name="__main__")
    text, _, last = capsys.readouterr().out.rstrip().rpartition("\n")
    assert text.strip()
    assert last.startswith("[")
