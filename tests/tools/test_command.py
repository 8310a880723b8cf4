"""The `tandem` command prints the right output and has the right exit status."""

import os
import signal
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from error_lines import error_line

from tandem.tools import cli as command
from tandem.tools.commands import doctor
from tandem.tools.commands.command_line import COMMANDS
from tandem.tools.commands.doctor import Finding
from tandem.tools.commands.gateway_options import usual_ports
from tandem.tools.commands.options import PROFILES, named_profile
from tandem.tools.errors import TandemError
from tandem.tools.folders import cache_folder
from tandem.tools.triton import install
from tandem.tools.triton.install import find_perf_analyzer
from tandem.tools.triton.server import Ports, claim_ports

# Simulates Ctrl-C during the import of a slow package.
INTERRUPTED = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == "numpy":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from tandem.tools.cli import main
print("begun", flush=True)
sys.exit(main(["generate", "x"]))
"""


def run(*arguments):
    return command.main(list(arguments))


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["upp"], 2, "command 'upp' isn't known; did you mean 'up'?"),
        (["serve-it"], 2, "command 'serve-it' isn't known; choose one of"),
        (
            ["--profile", "p", "up"],
            2,
            "'--profile' must follow the command: tandem COMMAND --profile; see tandem --help",
        ),
        (
            ["generate", "x", "--stream"],
            2,
            "unrecognized arguments: --stream; see tandem generate --help",
        ),
        (["up", "--targt", "x"], 2, "option '--targt' isn't known; did you mean '--target'?"),
        (["render"], 2, "the following arguments are required: --output; see tandem render --help"),
        (
            ["up", "--http-port", "x"],
            2,
            "argument --http-port: must be a port number, or 0 for a free one; got x",
        ),
        (
            ["up", "--http-port", "70000"],
            2,
            "argument --http-port: must be a port number, or 0 for a free one; got 70000",
        ),
        (["up", "--http-port", "9" * 5000], 2, "argument --http-port: must be a port number"),
        (["up", "--http-port", "0" * 5000], 2, "argument --http-port: must be a port number"),
        (
            ["generate", "x", "--url", f"h:{'9' * 5000}"],
            2,
            "argument --url: must be HOST:PORT",
        ),
        (
            ["bench", "--repetitions", "9" * 5000],
            2,
            "argument --repetitions: must be a whole number",
        ),
        (["up", "--address", ""], 2, "argument --address: must be an address, such as 127.0.0.1"),
        (["up", "--draft", "d"], 2, "--draft needs --target; set both"),
        (["up", "--target", "t", "--profile", "p"], 2, "set --profile or --target, not both"),
        (["up", "--target", "absent"], 1, "--target: no folder"),
        (["up", "--target", "~stranger/x"], 1, "--target: no folder ~stranger/x: "),
        (
            ["up", "--address", "a..b"],
            2,
            "argument --address: must be an address, such as 127.0.0.1",
        ),
        (["generate", "x", "--url", "h h:1"], 1, "no server responds at h h:1"),
        (
            ["generate", "x", "--url", "h:1", "--model", "\udcff"],
            1,
            "no entry '\\udcff'; the name must be UTF-8",
        ),
        (
            ["bench", "--json", "/dev/full/x"],
            2,
            "--json: can't write /dev/full/x: no folder /dev/full",
        ),
        (["render", "--profile", "absent.yaml", "--output", "o"], 1, "absent.yaml: No such file"),
    ],
)
def test_command_errors_are_one_line(arguments, status, message, capsys):
    """The exit status distinguishes wrong usage (2) from failures (1)."""
    assert run(*arguments) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("tandem: ")
    assert shown.err.count("\n") == 1
    assert message in shown.err


@pytest.mark.parametrize("option", ["--target", "--draft", "--profile", "--output"])
def test_an_empty_path_is_not_the_current_folder(option, capsys):
    assert run("render", "--output", "o", option, "") == 2
    line = f"tandem: argument {option}: must not be empty; see tandem render --help\n"
    assert capsys.readouterr().err == line


def test_line_breaks_in_a_name_are_escaped_in_errors(capsys):
    assert run("up", "--target", "a\nb\x1b[2J\udcff") == 1
    assert "no folder a\\nb\\x1b[2J\\udcff;" in capsys.readouterr().err


def closed_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("arguments", ["", "up --help", "doctor", "build --profile llama-3.1-70b"])
@pytest.mark.parametrize(
    ("opened", "status", "error"),
    [
        (closed_pipe, 141, []),
        (lambda: os.open("/dev/full", os.O_WRONLY), 1, ["tandem: No space left on device\n"]),
    ],
)
def test_output_that_cannot_be_written_is_reported_without_a_traceback(
    arguments, opened, status, error
):
    with open(opened(), "w") as output:
        ended = subprocess.run(
            [sys.executable, "-m", "tandem", *arguments.split()],
            env=os.environ | {"PYTHONUNBUFFERED": ""},
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == status
    lines = ended.stderr.splitlines(keepends=True)
    assert [line for line in lines if not line.startswith(("draft:", "target:"))] == error


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("http://127.0.0.1:8001", "must be HOST:PORT, without http://; use --url 127.0.0.1:8001"),
        ("https://h", "must be HOST:PORT, without https://; use --url h:8001"),
        ("localhost", "must be HOST:PORT, such as 127.0.0.1:8001; got 'localhost'"),
        ("h:99999", "must be HOST:PORT, such as 127.0.0.1:8001; got 'h:99999'"),
        ("a..b:1", "must be HOST:PORT, such as 127.0.0.1:8001; got 'a..b:1'"),
    ],
)
def test_the_error_for_a_wrong_url_suggests_the_right_url(given, advice, capsys):
    assert run("generate", "x", "--url", given) == 2
    assert f"argument --url: {advice}" in capsys.readouterr().err


def test_an_interrupt_during_imports_prints_no_traceback():
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False
    )
    assert done.stdout == "begun\n"
    assert done.stderr == ""
    assert done.returncode == -signal.SIGINT


def test_the_command_imports_no_slow_libraries_at_startup():
    program = "import sys, tandem.tools.cli; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    heavy = {"numpy", "grpc", "pydantic", "rich", "tritonclient", "yaml", "argparse"}
    assert not heavy & set(done.stdout.split())


@pytest.mark.parametrize("ignored", [False, True])
def test_a_hangup_ends_a_command_unless_nohup_ignores_it(monkeypatch, ignored):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    monkeypatch.setattr(doctor, "examine", lambda _: os.kill(os.getpid(), signal.SIGHUP) or [])
    try:
        assert run("doctor") == (0 if ignored else 130)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.fixture
def closed(tmp_path):
    """A folder that this process can neither read nor search, even as root."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0)
    for name in COMMANDS:
        import_module(f"tandem.tools.commands.{name}")  # import before the folder is closed
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield folder / "folder"
    if root:
        os.seteuid(0)
    folder.chmod(0o700)


def test_output_that_the_terminal_cannot_show_is_replaced():
    code = "import sys; from tandem.tools import cli; cli.main([]); print('\u2713')"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=environment, check=True
    )
    assert shown.stdout.endswith(b"\n?\n")


@pytest.mark.parametrize("stream", ["stdout >&-", "stderr 2>&-"])
def test_a_closed_stream_can_be_used(stream):
    name, closing = stream.split()
    code = f"import sys; from tandem.tools import cli; cli.main([]); sys.{name}.isatty()"
    subprocess.run(f"{sys.executable} -c '{code}' {closing}", shell=True, check=True)


def test_a_closed_standard_input_is_empty():
    shell = f"{sys.executable} -m tandem generate - --url 127.0.0.1:1 <&-"
    ended = subprocess.run(shell, shell=True, capture_output=True, text=True, check=False)
    assert ended.stderr.startswith("tandem: no server responds at 127.0.0.1:1")


def test_rendering_into_a_read_only_folder_fails_with_one_line(closed, capsys):
    assert run("render", "--profile", "emulated-zero", "--output", str(closed)) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == (
        f"tandem: can't write {closed}: Permission denied; choose a writable folder\n"
    )


def test_an_unreadable_cache_is_reported_in_one_line(closed, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(closed))
    monkeypatch.setattr(install, "SYSTEM_TRITON", Path("/no/triton"))
    for find in (install.find_triton, find_perf_analyzer):
        with pytest.raises(
            TandemError,
            match="Permission denied; set XDG_CACHE_HOME to a writable",
        ):
            find()


def test_a_missing_home_folder_is_reported_in_one_line(monkeypatch):
    def no_home():
        raise RuntimeError

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(TandemError, match="there is no home folder; set XDG_CACHE_HOME to a fold"):
        cache_folder()


def test_a_deleted_current_folder_is_reported_in_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run("render", "--profile", "emulated-zero", "--output", "o") == 1
    line = "tandem: the current folder: No such file or directory\n"
    assert capsys.readouterr().err == line


def test_an_unreadable_file_is_reported_in_one_line(closed, capsys):
    assert run("bench", "--prompts", str(closed)) == 1
    assert capsys.readouterr().err == f"tandem: {closed}: Permission denied\n"


@pytest.mark.parametrize("given", ["mine.yaml", "mine.yml", "folder/mine", "3.1-mine"])
def test_a_profile_can_be_given_as_a_file(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "3.1-mine").touch()
    assert named_profile(given) == Path(given)


def test_an_unknown_profile_name_suggests_the_nearest():
    with pytest.raises(
        TandemError, match=r"profile 'llama-3\.1-7b' isn't known; did you mean 'llama-3\.1-70b'\?"
    ):
        named_profile("llama-3.1-7b")


def test_a_folder_with_the_name_of_a_shipped_profile_does_not_hide_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "embedded").mkdir()
    assert named_profile("embedded") == PROFILES / "embedded.yaml"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("mine", "Is a directory"),
        ("mine/", "Is a directory"),
        ("./mine", "Is a directory"),
        (".", "Is a directory"),
        ("./absent", "No such file or directory"),
        ("absent/", "No such file or directory"),
    ],
)
def test_a_profile_path_without_a_file_is_reported(given, reason, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert run("build", "--profile", given) == 1
    assert capsys.readouterr().err == f"tandem: can't read {Path(given)}: {reason}\n"


def test_render_lists_the_models_and_how_to_serve_them_from_any_folder(
    embedded_profile, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert run("render", "--profile", str(embedded_profile), "--output", "o") == 0
    shown = capsys.readouterr().out
    assert "preprocessing, postprocessing, target, draft, bls_stream, bls, ensemble" in shown
    *_, said, served = shown.splitlines()
    assert said == "To serve it on a machine with Triton, run:"
    assert served == f"sh {tmp_path / 'o' / 'serve.sh'}"
    assert (tmp_path / "o" / "bls_stream" / "config.pbtxt").is_file()


def test_doctor_finds_no_problem_on_this_machine(capsys):
    assert run("doctor") == 0
    shown = capsys.readouterr().out
    for subject in ("glibc", "Python", "Triton", "torch", "/dev/shm", "memory", "GPU"):
        assert subject in shown


def test_doctor_suggests_a_fix_if_something_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "GLIBC", (99, 0))
    assert run("doctor") == 1
    assert "missing" in capsys.readouterr().out
    glibc = next(
        finding for finding in doctor.examine(usual_ports(None)) if finding.subject == "glibc"
    )
    assert not glibc.good
    assert glibc.fix == "needs 99.0: Debian 12, Ubuntu 22.04 or later"


def test_doctor_prints_square_brackets_literally(monkeypatch, capsys):
    missing = Finding("torch", "[none]", good=False, fix="install 'x[y]'")
    monkeypatch.setattr(doctor, "examine", lambda _: [missing])
    assert run("doctor") == 1
    shown = capsys.readouterr().out
    assert missing.fix in shown
    assert missing.found in shown


def test_doctor_reports_an_nvidia_smi_that_lists_no_gpu(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda _: "/bin/true")
    gpu = next(finding for finding in doctor.examine(usual_ports(None)) if finding.subject == "GPU")
    assert gpu.good is None
    assert gpu.fix == "fix the driver, or serve on the CPU"


def test_doctor_skips_other_checks_if_the_system_is_not_linux(monkeypatch):
    monkeypatch.setattr(doctor.platform, "system", lambda: "Darwin")
    (only,) = doctor.examine(usual_ports(None))
    assert only.good is False


@pytest.mark.parametrize("name", ["http", "gateway"])
def test_a_port_in_use_does_not_fail_doctor(name):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        number = busy.getsockname()[1]
        finding = doctor.examine_port(name, number)
    assert finding.good is None
    assert finding.found == f"{number} is taken"
    assert f"--{name}-port; 0" in finding.fix


def test_doctor_reports_a_python_without_a_shared_library(monkeypatch):
    for module in (doctor, install):
        monkeypatch.setattr(module, "find_libpython", lambda: None)
    findings = {finding.subject: finding for finding in doctor.examine(usual_ports(None))}
    assert findings["Python"].good is False
    assert "no shared libpython" in findings["Triton"].fix


def test_an_error_names_all_ports_in_use():
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        http, metrics = (bound.getsockname()[1] for bound in (one, other))
        line = error_line(TandemError, claim_ports, Ports(http, 0, metrics), "127.0.0.1")
    assert line == (
        f"can't listen on 127.0.0.1:{http} (http), 127.0.0.1:{metrics} (metrics): "
        "Address already in use; "
        "use --http-port 0 --metrics-port 0, or another --base-port or --address"
    )


def test_up_names_all_ports_in_use(capsys):
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        grpc, gateway = (bound.getsockname()[1] for bound in (one, other))
        given = ["--base-port", "0", "--grpc-port", str(grpc), "--gateway-port", str(gateway)]
        assert command.main(["up", *given]) == 1
    error = capsys.readouterr().err
    assert f"127.0.0.1:{grpc} (grpc), 127.0.0.1:{gateway} (gateway): " in error
    assert "use --grpc-port 0 --gateway-port 0, or another --base-port" in error


def test_doctor_examines_the_ports_that_up_would_use(capsys):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        base = busy.getsockname()[1] - 3  # the gateway's port is taken
        command.main(["doctor", "--base-port", str(base)])
        assert f"{base + 3} is taken" in " ".join(capsys.readouterr().out.split())
        given = ["--base-port", str(base), "--http-port", "0", "--grpc-port", "0"]
        assert command.main(["up", *given, "--metrics-port", "0"]) == 1
        assert f"can't listen on 127.0.0.1:{base + 3} (gateway)" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["up", "doctor"])
def test_a_base_port_that_is_too_large_is_rejected(name, capsys):
    assert command.main([name, "--base-port", "65533"]) == 2
    assert capsys.readouterr().err == "tandem: --base-port must be at most 65532; got 65533\n"
