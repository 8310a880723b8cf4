"""What a newcomer types wrong, or leaves out, against a live server: each answer says what to do.

The server has no draft model, as one that `tandem up --target` starts without `--draft`.
"""

import re

import pytest
import yaml
from tritonclient.grpc import InferenceServerClient

from tandem.tools import cli as command
from tandem.tools.client.client import Client
from tandem.tools.commands.options import PROFILES
from tandem.tools.profiles import deployment
from tandem.tools.triton.install import find_triton

from .conftest import serving

FEW = ("--limit", "1", "--max-tokens", "8", "--repetitions", "1")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of emulated engines, without a draft."""
    profile = yaml.safe_load((PROFILES / "emulated-zero.yaml").read_text())
    del profile["engines"]["draft"], profile["decoding"]
    engine = profile["engines"]["target"]
    engine["tokenizer"] = str(PROFILES / engine["tokenizer"])
    folder = tmp_path_factory.mktemp("lookup")
    (folder / "profile.yaml").write_text(yaml.safe_dump(profile))
    with serving(deployment.load(folder / "profile.yaml"), folder) as running:
        yield running


def refused(capsys, *arguments):
    """The one line that a command ends with."""
    assert command.main(list(arguments)) == 1
    shown = capsys.readouterr()
    line = shown.err.splitlines()[-1]
    assert shown.err.count("\n") == 1
    return line.removeprefix("tandem: ")


def generate(capsys, url, *arguments):
    return refused(capsys, "generate", "x", "--url", url, *arguments)


def test_bench_measures_the_drafter_that_the_server_has(server, capsys):
    assert command.main(["bench", "--url", server.grpc_url, *FEW]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^prompt_lookup ", shown, re.MULTILINE)
    assert "draft_model" not in shown


def test_bench_refuses_a_drafter_that_the_server_does_not_have(server, capsys):
    arguments = ("bench", "--url", server.grpc_url, *FEW, "--drafter", "draft_model")
    assert refused(capsys, *arguments) == (
        f"--drafter draft_model: {server.grpc_url} does not have it; it has prompt_lookup, none"
    )


@pytest.mark.parametrize("verb", ["bench", "summarize", "perf"])
def test_entry_that_is_not_there_is_answered_with_those_that_are(server, capsys, verb):
    option = "--entry" if verb == "perf" else "--model"
    assert refused(capsys, verb, "--url", server.grpc_url, option, "blss") == (
        f"no entry 'blss'; {server.grpc_url} has bls, bls_stream, ensemble"
    )


def test_generate_names_the_entries_when_it_gets_a_wrong_one(server, capsys):
    assert generate(capsys, server.grpc_url, "--model", "blss") == (
        f"no entry 'blss'; {server.grpc_url} has bls, bls_stream, ensemble"
    )
    assert generate(capsys, server.grpc_url, "--model", "target") == (
        f"'target' takes no text, so it is not an entry; {server.grpc_url} has bls, bls_stream, "
        "ensemble"
    )


def test_generate_shows_the_whole_answer_of_an_entry_that_does_not_stream(server, capsys):
    said = []
    for model in ("bls", "bls_stream"):
        arguments = ["generate", "x", "--url", server.grpc_url, "--model", model]
        assert command.main([*arguments, "--max-tokens", "8"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


def test_http_port_is_distinguished_from_the_grpc_port(server, capsys):
    assert generate(capsys, server.http_url) == (
        f"{server.http_url} is Triton's HTTP port; use the gRPC port, as in --url 127.0.0.1:8001"
    )


def test_metrics_port_is_distinguished_from_the_grpc_port(server, capsys):
    url = server.metrics_url.removeprefix("http://").partition("/")[0]
    assert generate(capsys, url) == (
        f"{url} is an HTTP port; use the gRPC port, as in --url 127.0.0.1:8001"
    )


def test_error_of_a_server_that_answers_is_reported(server):
    """A status that also stands for a lost connection does not make it one."""
    with Client(server.grpc_url) as client:
        lost = type("Lost", (), {"status": lambda _: "StatusCode.UNAVAILABLE"})
        lost.message = lambda _: "all 2 places\nare taken"
        assert str(client._failure(lost())) == "all 2 places are taken"


def test_rounds_are_explained_within_80_columns(server, capsys):
    prompt = "x = 1\n" * 8
    arguments = ["generate", prompt, "--url", server.grpc_url, "--explain", "--max-tokens", "24"]
    assert command.main(arguments) == 0
    table = capsys.readouterr().err.splitlines()[1:]
    assert table[0].split() == [
        *("#", "drafter", "ahead", "asked", "stop", "drafted", "accepted"),
        *("draft", "ms", "target", "ms"),
    ]
    assert max(len(line.rstrip()) for line in table) <= 80
    assert all(line.split()[0].isdecimal() for line in table[1:] if line.strip())


def test_version_of_the_server_is_the_one_that_doctor_shows(server):
    with InferenceServerClient(server.grpc_url) as connection:
        assert connection.get_server_metadata().version == find_triton().version
