"""`tandem generate` against a live server."""

import io
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest
from entries import ask_one, stream
from rich.console import Console

from tandem.contract import entry
from tandem.tools import cli as command
from tandem.tools.client.client import Answer, Client, inputs_for
from tandem.tools.client.terminal import PICTURES, show

PROMPT = "def main():"
GREEN = re.compile(r"\x1b\[32m(.*?)\x1b\[0m", re.DOTALL)


def run(server, *arguments):
    return command.main(["generate", *arguments, "--url", server.grpc_url])


def running(server):
    """How many sequences the loop decodes, as the metrics say."""
    with urllib.request.urlopen(server.metrics_url) as answer:
        found = re.search(rb"^tandem_requests_running\{.*\} (\d+)", answer.read(), re.MULTILINE)
    return int(found[1]) if found else 0


@pytest.mark.parametrize("drafter", ["draft_model", "none"])
def test_generate_prints_the_text_and_a_closing_line(server, capsys, drafter):
    assert run(server, PROMPT, "--max-tokens", "24", "--drafter", drafter) == 0
    shown = capsys.readouterr()
    expected = ask_one(server, "ensemble", PROMPT, max_tokens=24)
    assert shown.out.removesuffix("\n") == expected.text.removesuffix("\n")
    assert re.fullmatch(
        r"\d+ tokens, [\d.]+ tokens/s, first token after \d+ ms, "
        r"(acceptance \d+%, [\d.]+ tokens per round|nothing drafted), (length|stop)\n",
        shown.err,
    )
    assert ("nothing drafted" in shown.err) == (drafter == "none")


def test_options_reach_the_loop(server, capsys):
    stop = ask_one(server, "bls", PROMPT, max_tokens=40).text[5:9]
    options = ["--max-tokens", "40", "--stop", stop, "--num-draft-tokens", "2"]
    assert run(server, PROMPT, *options) == 0
    shown = capsys.readouterr()
    expected = ask_one(server, "ensemble", PROMPT, max_tokens=40, stop_words=(stop,))
    assert shown.out.removesuffix("\n") == expected.text.removesuffix("\n")
    assert shown.err.endswith("stop\n")


def test_prompt_comes_from_standard_input(server, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PROMPT.encode())))
    assert run(server, "-", "--max-tokens", "8") == 0
    expected = ask_one(server, "ensemble", PROMPT, max_tokens=8)
    assert capsys.readouterr().out.removesuffix("\n") == expected.text.removesuffix("\n")


def test_accepted_tokens_are_coloured_as_many_as_were_accepted(server):
    """Every character of the text is shown once, and the coloured ones are the accepted tokens'."""
    file, answer = io.StringIO(), Answer()
    console = Console(file=file, force_terminal=True, color_system="standard", no_color=False)
    inputs = inputs_for(PROMPT, 48, {entry.DRAFTER: "draft_model"})
    with Client(server.grpc_url) as client:
        show(client, "bls_stream", inputs, answer, console)
    shown = file.getvalue()
    assert bool(GREEN.search(shown)) == bool(answer.totals.num_accepted_tokens)
    plain = GREEN.sub(r"\1", shown).removesuffix("\n")
    assert plain == answer.text.translate(PICTURES).removesuffix("\n")


def test_an_answer_fits_the_schema_of_a_file(server, tmp_path, capsys):
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": [{"answer": "yes"}, {"answer": "no"}]}')
    assert run(server, PROMPT, "--json-schema", str(schema)) == 0
    assert json.loads(capsys.readouterr().out)["answer"] in {"yes", "no"}
    assert run(server, PROMPT, "--regex", "[0-9]{4}/a") == 0
    assert re.fullmatch(r"\d{4}/a\n", capsys.readouterr().out)
    assert run(server, PROMPT, "--regex", "(") == 1
    assert capsys.readouterr().err.startswith(
        "tandem: invalid_guide: input 'guided_decoding_guide'"
    )


def test_forced_tokens_have_a_colour_of_their_own(server):
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system="standard")
    guide = {
        entry.GUIDED_DECODING_GUIDE_TYPE: "regex",
        entry.GUIDED_DECODING_GUIDE: "the answer is [0-9]",
    }
    with Client(server.grpc_url) as client:
        answer = Answer()
        show(client, "bls_stream", inputs_for(PROMPT, 24, guide), answer, console)
    [forced] = re.findall(r"\x1b\[35m(.*?)\x1b\[0m", file.getvalue())
    assert forced.startswith("the answer ")
    assert answer.text.startswith(forced)


def test_totals_are_in_every_chunk_for_a_client_that_names_them(server):
    names = (entry.NUM_ROUNDS, entry.TOTAL_DRAFT_TOKENS, entry.TOTAL_ACCEPTED_DRAFT_TOKENS)
    wanted = (entry.TEXT_OUTPUT, *names)
    chunks = stream(server, PROMPT, max_tokens=32, outputs=wanted)
    totals = np.array([[chunk.outputs[name].item() for name in names] for chunk in chunks])
    assert (np.diff(totals, axis=0) >= 0).all()
    assert totals[-1, 0] > totals[0, 0]


def test_totals_come_at_the_end_for_a_client_that_names_nothing(server):
    *chunks, last = stream(server, PROMPT, max_tokens=32, outputs=())
    assert chunks
    assert not any(entry.NUM_ROUNDS in chunk.outputs for chunk in chunks)
    assert last.outputs[entry.NUM_ROUNDS].item() > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "input 'text_input' is empty; send at least one character"),
        (["x", "--drafter", "guess"], "input 'drafter': 'guess' given, this deployment has"),
        (["x", "--top-p", "2"], "input 'top_p': 2 given, must be at least 0 and at most 1"),
        (["a\udcff"], "input 'text_input' is not valid UTF-8: byte 0xff at position 1"),
    ],
)
def test_refusal_is_one_line(server, capsys, arguments, message):
    assert run(server, *arguments) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"tandem: {message}")
    assert shown.err.count("\n") == 1


def test_interrupt_cancels_the_request_and_says_what_came(server):
    command_line = [sys.executable, "-m", "tandem", "generate", PROMPT, "--max-tokens", "900"]
    with subprocess.Popen(
        [*command_line, "--drafter", "none", "--url", server.grpc_url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
    assert process.returncode == 130
    assert re.fullmatch(rb"[1-9]\d* tokens, .*, cancelled\n", told)
    deadline = time.monotonic() + 5
    while running(server) and time.monotonic() < deadline:
        pass
    assert running(server) == 0


def test_whole_answer_comes_as_one_chunk_when_it_is_not_streamed(server):
    inputs = inputs_for(PROMPT, 16, {}, stream=False)
    with Client(server.grpc_url) as client:
        chunks = list(client.stream("bls_stream", inputs))
        assert client.answer("bls", inputs).text == chunks[0].text
    assert len(chunks) == 1
    assert chunks[0].finish_reason == "length"
