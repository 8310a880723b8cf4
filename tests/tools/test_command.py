"""The `tandem` command: what it prints, and how it ends."""

import socket
from pathlib import Path

import pytest
from tandem import __main__ as command
from tandem import doctor, triton_install
from tandem.errors import TandemError
from tandem.options import PROFILES, named_profile


def run(*arguments):
    return command.main(list(arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: VERB; see tandem --help"),
        (["upp"], "invalid choice: 'upp' (choose from"),
        (["render"], "the following arguments are required: --output; see tandem render --help"),
        (["up", "--http-port", "x"], "argument --http-port: x is no port (0 picks a free one)"),
        (["up", "--http-port", "70000"], "70000 is no port"),
        (["up", "--draft", "d"], "--draft needs --target, the model that it drafts for"),
        (["up", "--target", "t", "--profile", "p"], "--profile and --target exclude each other"),
        (["up", "--target", "absent"], "--target: no folder"),
        (["render", "--profile", "absent.yaml", "--output", "o"], "absent.yaml: No such file"),
    ],
)
def test_command_says_in_one_line_what_is_wrong(arguments, message, capsys):
    assert run(*arguments) != 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("tandem: ")
    assert shown.err.count("\n") == 1
    assert message in shown.err


@pytest.mark.parametrize("name", ["embedded", "llama-3.1-70b", "llama-2-7b-13b"])
def test_profile_is_found_by_its_name(name):
    assert named_profile(Path(name)) == PROFILES / f"{name}.yaml"


@pytest.mark.parametrize("given", ["mine.yaml", "mine.yml", "folder/mine", "3.1-mine"])
def test_profile_that_is_a_file_is_taken_as_it_is(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "3.1-mine").touch()
    assert named_profile(Path(given)) == Path(given)


def test_unknown_name_of_a_profile_names_the_nearest():
    with pytest.raises(
        TandemError, match=r"no profile 'llama-3\.1-7b'; did you mean 'llama-3\.1-70b'"
    ):
        named_profile(Path("llama-3.1-7b"))


def test_render_lists_the_models_and_how_to_serve_them(embedded_profile, tmp_path, capsys):
    assert run("render", "--profile", str(embedded_profile), "--output", str(tmp_path / "o")) == 0
    shown = capsys.readouterr().out
    assert "preprocessing, postprocessing, target, draft, bls_stream, bls, ensemble" in shown
    assert "thread-pool-size=" in shown
    assert (tmp_path / "o" / "bls_stream" / "config.pbtxt").is_file()


def test_doctor_finds_this_machine_fit(capsys):
    assert run("doctor") == 0
    shown = capsys.readouterr().out
    for subject in ("glibc", "Python", "Triton", "torch", "/dev/shm", "memory", "GPU"):
        assert subject in shown


def test_doctor_names_a_mend_when_something_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "GLIBC", (99, 0))
    assert run("doctor") == 1
    assert "lacks" in capsys.readouterr().out
    glibc = next(finding for finding in doctor.examine() if finding.subject == "glibc")
    assert not glibc.good
    assert glibc.mend == "needs 99.0: Debian 12, Ubuntu 22.04 or later"


def test_doctor_asks_no_more_of_a_machine_that_is_no_linux(monkeypatch):
    monkeypatch.setattr(doctor.platform, "system", lambda: "Darwin")
    (only,) = doctor.examine()
    assert only.good is False


def test_doctor_only_notes_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        number = busy.getsockname()[1]
        finding = doctor.examine_port("http", number)
    assert finding.good is None
    assert finding.found == f"{number} is taken"
    assert "--http-port 0" in finding.mend


def test_doctor_says_which_python_lacks_a_shared_library(monkeypatch):
    for module in (doctor, triton_install):
        monkeypatch.setattr(module, "find_libpython", lambda: None)
    findings = {finding.subject: finding for finding in doctor.examine()}
    assert findings["Python"].good is False
    assert "no shared libpython" in findings["Triton"].mend
