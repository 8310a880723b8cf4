"""`tandem perf`: the commands of the load generators, and where perf_analyzer comes from."""

import json
import shlex
import zipfile

import pytest

from tandem.tools import cli as command
from tandem.tools.commands import perf
from tandem.tools.errors import TandemError
from tandem.tools.triton import perf_analyzer
from tandem.tools.triton.perf_analyzer import MEMBER, PerfAnalyzer, find_perf_analyzer

RUNS = "#!/bin/sh\nexit 0\n"


@pytest.fixture(autouse=True)
def bare(tmp_path, monkeypatch):
    """No load generator on this machine, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(perf_analyzer.shutil, "which", lambda _: None)


@pytest.fixture
def wheel(tmp_path):
    """A wheel whose program is a script."""
    path = tmp_path / "tritonclient-2.51.0.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, RUNS)
    return path


def dry_run(capsys, *arguments):
    """Return the lines that it prints, split as a shell would."""
    assert command.main(["perf", "--dry-run", *arguments]) == 0
    return [shlex.split(line) for line in capsys.readouterr().out.splitlines()]


def test_commands_ask_both_entries_of_the_profile(capsys, tmp_path):
    whole, stream = dry_run(
        capsys,
        *("--profile", "emulated-zero", "--folder", str(tmp_path), "--concurrency", "1:4:2"),
        *("--requests", "9", "--", "--percentile=99"),
    )
    at = whole.index("-m")
    assert whole[at:] == [
        *("-m", "bls", "-u", "127.0.0.1:8001", "-i", "grpc"),
        *("--input-data", str(tmp_path / "bls.json"), "--concurrency-range", "1:4:2"),
        *("--request-count", "9", "-f", str(tmp_path / "bls.csv"), "--percentile=99"),
    ]
    assert stream[at : at + 8] == [
        *("-m", "bls_stream", "-u", "127.0.0.1:8001", "-i", "grpc"),
        *("--async", "--streaming"),
    ]


def test_requests_are_flat_lists_of_what_was_asked_for(capsys, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\nthree\n")
    dry_run(
        capsys,
        *("--url", "h:1", "--prompts", str(prompts), "--limit", "2", "--max-tokens", "5"),
        *("--drafter", "none", "--entry", "bls_stream", "--folder", str(tmp_path)),
    )
    assert json.loads((tmp_path / "bls_stream.json").read_text())["data"] == [
        {
            "text_input": [text],
            "max_tokens": [5],
            "stream": [True],
            "exclude_input_in_output": [True],
            "drafter": ["none"],
        }
        for text in ("one", "two")
    ]
    assert not (tmp_path / "bls.json").exists()


def test_draft_length_may_be_auto(capsys, tmp_path):
    dry_run(capsys, "--url", "h:1", "--num-draft-tokens", "auto", "--folder", str(tmp_path))
    assert json.loads((tmp_path / "bls.json").read_text())["data"][0]["num_draft_tokens"] == [-1]


def test_dry_run_names_no_program_that_is_not_there(capsys, tmp_path):
    assert command.main(["perf", "--dry-run", "--url", "h:1", "--folder", str(tmp_path / "f")]) == 0
    shown = capsys.readouterr()
    assert {line.split()[0] for line in shown.out.splitlines()} == {"perf_analyzer"}
    assert shown.err == "tandem: perf_analyzer is not here yet; tandem perf fetches it\n"
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--concurrency", "1:x"], "argument --concurrency: '1:x' is neither a number nor begin"),
        (["--drafter", "magic"], "--drafter magic: embedded does not have it; it has draft_model"),
        (["--prompts", "absent.jsonl"], "--prompts absent.jsonl: no such file"),
        (["--dry-run"], "--dry-run needs --folder DIR: the printed commands read the requests"),
        (["--url", "127.0.0.1:1"], "no server answers at 127.0.0.1:1"),
        (["--profile", "embedded", "--entry", "x"], "no entry 'x'; the profile has bls, bls_str"),
    ],
)
def test_perf_says_in_one_line_what_is_wrong(arguments, message, capsys):
    assert command.main(["perf", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_program_is_unpacked_once_with_its_libraries(wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(perf_analyzer, "_download", lambda folder: wheel)
    ours = find_perf_analyzer()
    assert ours.binary.is_relative_to(tmp_path / "cache" / "tandem")
    assert {path.name for path in ours.libraries.iterdir()} == {"libb64.so.0d", "libcudart.so.12"}
    assert all(path.is_file() for path in ours.libraries.iterdir())
    assert ours.command[:2] == ["env", f"LD_LIBRARY_PATH={ours.libraries}"]
    monkeypatch.setattr(perf_analyzer, "_download", None)
    assert find_perf_analyzer() == ours


def test_program_on_the_path_is_preferred_if_it_runs(tmp_path, monkeypatch):
    program = tmp_path / "perf_analyzer"
    program.write_text(RUNS)
    program.chmod(0o755)
    monkeypatch.setattr(perf_analyzer.shutil, "which", lambda _: str(program))
    assert find_perf_analyzer() == PerfAnalyzer(program)
    program.write_text("#!/bin/sh\nexit 1\n")
    assert perf_analyzer.expected_perf_analyzer().binary != program


def test_failed_download_is_one_line(monkeypatch):
    monkeypatch.setattr(perf_analyzer, "PACKAGE", "no such package")
    with pytest.raises(TandemError, match=r"pip cannot download no such package: .*; put a perf"):
        find_perf_analyzer()


@pytest.fixture
def load_generator(wheel, monkeypatch):
    """One that says which entry it asks, and past which proxy, and ends with 3."""
    program = '#!/bin/sh\n[ "$1" = --version ] || { echo "$2 by $no_grpc_proxy"; exit 3; }\n'
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, program)
    monkeypatch.setattr(perf_analyzer, "_download", lambda folder: wheel)
    monkeypatch.setattr(perf, "_check_entries", lambda *_: None)
    monkeypatch.delenv("no_grpc_proxy", raising=False)


@pytest.mark.usefixtures("load_generator")
@pytest.mark.parametrize(("url", "direct"), [("h:1", ""), ("127.0.0.1:1", "127.0.0.1")])
def test_exit_status_is_the_load_generators_and_no_proxy_is_near(capfd, url, direct):
    assert command.main(["perf", "--url", url]) == 3
    shown = capfd.readouterr().out.splitlines()
    asked = [line for line in shown if not line.startswith("$ ")]
    assert asked == [f"bls by {direct}", f"bls_stream by {direct}"]
