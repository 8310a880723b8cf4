"""`tandem perf` finds perf_analyzer and runs it with the right requests and options."""

import json
import os
import signal
import subprocess
import zipfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from tandem.tools import cli as command
from tandem.tools.commands import perf
from tandem.tools.errors import TandemError
from tandem.tools.triton import install
from tandem.tools.triton.install import MEMBER, find_perf_analyzer

ENTRIES, STREAMS = ("bls", "bls_stream"), ("bls_stream",)
RUNS = "#!/bin/sh\nexit 0\n"
PRINTS = '#!/bin/sh\n[ "$1" = --version ] || { echo "$@, past $no_grpc_proxy"; exit 3; }\n'


@pytest.fixture(autouse=True)
def bare(tmp_path, monkeypatch):
    """Simulate a machine without perf_analyzer, with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(install.shutil, "which", lambda _: None)


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A function that replaces the program in the downloaded wheel with a script."""
    path = tmp_path / "tritonclient-2.51.0.whl"

    def write(program):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(MEMBER, program)

    write(RUNS)
    monkeypatch.setattr(install, "_download", lambda _: path)
    return write


@pytest.fixture
def printed(wheel, monkeypatch, capfd):
    """A function that runs `tandem perf` and returns the arguments of perf_analyzer."""
    wheel(PRINTS)
    monkeypatch.setattr(
        perf, "entries_to_call", lambda names, *_: {n: n in STREAMS for n in names or ENTRIES}
    )
    monkeypatch.setattr(perf, "measured_server", MagicMock())
    monkeypatch.delenv("no_grpc_proxy", raising=False)

    def run(*arguments):
        assert command.main(["perf", *arguments]) == 3
        lines = capfd.readouterr().out.splitlines()
        return [line for line in lines if not line.startswith("$ ")]

    return run


def test_perf_analyzer_runs_with_the_same_load_for_both_entries(printed, tmp_path):
    whole, stream = printed(
        *("--url", "h:1", "--folder", str(tmp_path), "--concurrency", "4"),
        *("--requests", "9", "--", "--percentile=99"),
    )
    assert whole == (
        f"-m bls -u h:1 -i grpc --input-data {tmp_path}/bls.json --concurrency-range 4 "
        f"--request-count 9 -f {tmp_path}/bls.csv --percentile=99, past "
    )
    assert stream.startswith("-m bls_stream -u h:1 -i grpc --async --streaming ")


def test_requests_contain_only_options_that_the_user_sets(printed, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\nthree\n")
    printed(
        *("--url", "h:1", "--prompts", str(prompts), "--limit", "2", "--max-tokens", "5"),
        *("--drafter", "none", "--num-draft-tokens", "auto", "--model", "bls_stream"),
        *("--folder", str(tmp_path)),
    )
    assert json.loads((tmp_path / "bls_stream.json").read_text())["data"] == [
        {
            "text_input": [text],
            "max_tokens": [5],
            "stream": [True],
            "exclude_input_in_output": [True],
            "drafter": ["none"],
            "num_draft_tokens": [-1],
        }
        for text in ("one", "two")
    ]
    assert not (tmp_path / "bls.json").exists()


def test_perf_analyzer_ends_with_a_terminated_command(wheel, monkeypatch, tmp_path):
    script = f"echo $$ > {tmp_path}/id; kill $PPID; exec sleep 60"
    wheel(f'#!/bin/sh\n[ "$1" = --version ] || {{ {script}; }}\n')
    monkeypatch.setattr(perf, "entries_to_call", lambda *_: {"bls_stream": True})
    assert command.main(["perf", "--url", "here:1"]) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "id").read_text()), 0)


def test_perf_analyzer_ends_even_if_the_signal_arrives_while_it_starts(wheel, monkeypatch):
    started = []

    class InterruptedPopen(subprocess.Popen):
        def __init__(self, arguments, **options):
            super().__init__(arguments, **options)
            if "--version" not in arguments:
                started.append(self)
                signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", InterruptedPopen)
    monkeypatch.setattr(perf, "entries_to_call", lambda *_: {"bls_stream": True})
    wheel('#!/bin/sh\n[ "$1" = --version ] || exec sleep 60\n')
    assert command.main(["perf", "--url", "here:1"]) == 130
    assert [process.returncode for process in started] == [-signal.SIGKILL]


def test_no_proxy_is_used_for_a_server_on_this_machine(printed):
    assert [line.rpartition(" past ")[2] for line in printed("--url", "127.0.0.1:1")] == [
        *["127.0.0.1"] * 2
    ]


def test_perf_reports_that_triton_died(wheel, monkeypatch, capsys):
    wheel(PRINTS)

    def check():
        raise TandemError("Triton was killed by signal 9; log: x")

    server = SimpleNamespace(grpc_url="127.0.0.1:1", check=check)
    monkeypatch.setattr(perf, "serving", lambda _: nullcontext(server))
    assert command.main(["perf", "--profile", "emulated-zero"]) == 1
    assert capsys.readouterr().err == "tandem: Triton was killed by signal 9; log: x\n"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (
            ["--concurrency", "1:4:2"],  # perf_analyzer would reject it with --request-count
            2,
            "argument --concurrency: must be a whole number of at least 1; got '1:4:2'",
        ),
        (["--prompts", "absent.jsonl"], 1, "absent.jsonl: No such file or directory"),
        (
            ["--url", "127.0.0.1:1"],
            1,
            "no server responds at 127.0.0.1:1; start one with: tandem up",
        ),
        (
            ["--profile", "embedded", "--model", "x"],
            1,
            "entry 'x' isn't known; choose one of: bls, bls_stream",
        ),
    ],
)
def test_perf_errors_are_one_line(arguments, status, message, capsys):
    assert command.main(["perf", *arguments]) == status
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("wheel")
def test_perf_analyzer_is_unpacked_once_with_its_libraries(tmp_path, monkeypatch):
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    ours = find_perf_analyzer()
    program = Path(ours[-1])
    assert program.is_relative_to(tmp_path / "cache" / "tandem")
    libraries = program.parent / "lib"
    assert {path.name for path in libraries.iterdir()} == {"libb64.so.0d", "libcudart.so.12"}
    assert all(path.is_file() for path in libraries.iterdir())
    assert ours[:2] == ["env", f"LD_LIBRARY_PATH={libraries}"]
    monkeypatch.setattr(install, "_download", None)
    assert find_perf_analyzer() == ours


@pytest.mark.usefixtures("wheel")
def test_libraries_of_a_deleted_environment_are_replaced(tmp_path, monkeypatch):
    libraries = Path(find_perf_analyzer()[-1]).parent / "lib"
    for path in libraries.iterdir():
        path.unlink()
        path.symlink_to(tmp_path / "deleted" / path.name)
    monkeypatch.setattr(install, "_download", None)
    find_perf_analyzer()
    assert all(path.is_file() for path in libraries.iterdir())


@pytest.mark.usefixtures("wheel")
def test_a_working_perf_analyzer_on_the_path_is_preferred(tmp_path, monkeypatch):
    program = tmp_path / "perf_analyzer"
    program.write_text(RUNS)
    program.chmod(0o755)
    monkeypatch.setattr(install.shutil, "which", lambda _: str(program))
    assert find_perf_analyzer() == [str(program)]
    program.write_text("#!/bin/sh\nexit 1\n")
    assert find_perf_analyzer() != [str(program)]


def test_a_failed_download_is_reported_in_one_line(monkeypatch):
    monkeypatch.setattr(install, "CLIENT", "no such package")
    with pytest.raises(
        TandemError,
        match="can't download no such package: ERROR: Invalid requirement: 'no such package'",
    ):
        find_perf_analyzer()
