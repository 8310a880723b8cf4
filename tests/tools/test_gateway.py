"""`tandem gateway` reports why it can't start, and has few dependencies."""

import socket
import subprocess
import sys

import pytest
from paths import TOKENIZER

from tandem.tools.cli import main


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        ([], 2, "the following arguments are required: --tokenizer"),
        (["--tokenizer", "absent"], 1, "tokenizer folder 'absent' doesn't exist"),
        (
            ["--tokenizer", TOKENIZER, "--chat-template", "absent"],
            1,
            "absent: No such file or direct",
        ),
        (
            ["--tokenizer", TOKENIZER, "--chat-template", "/bin/sh"],
            1,
            "can't read /bin/sh: it isn't",
        ),
        (
            ["--tokenizer", TOKENIZER, "--max-body-mb", "0"],
            2,
            "argument --max-body-mb: must be a whole number of at least 1; got '0'",
        ),
        (["--tokenizer", TOKENIZER, "--api-key-file", "absent"], 1, "can't read absent: No such"),
        (["--tokenizer", TOKENIZER, "--api-key-file", "/dev/null"], 1, "has no keys"),
    ],
)
def test_gateway_errors_are_one_line(capsys, options, status, message):
    assert main(["gateway", "--port", "0", *map(str, options)]) == status
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1


def test_the_error_for_a_port_in_use_names_the_address(capsys):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        number = busy.getsockname()[1]
        assert main(["gateway", "--tokenizer", str(TOKENIZER), "--port", str(number)]) == 1
    assert f"can't listen on 127.0.0.1:{number}: " in capsys.readouterr().err


def test_up_rejects_a_port_in_use_before_it_starts_the_server(capsys):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        number = busy.getsockname()[1]
        arguments = ["up", "--profile", "emulated-zero", "--gateway-port", str(number)]
        assert main(arguments) == 1
    printed = capsys.readouterr().err
    assert "use --gateway-port 0, or another --base-port" in printed
    assert "starting Triton" not in printed


def test_the_error_for_a_missing_package_names_the_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "tandem.gateway.server", raising=False)
    assert main(["gateway", "--tokenizer", str(TOKENIZER), "--port", "0"]) == 1
    assert "install Tandem with the extra 'gateway' (README, Install)" in capsys.readouterr().err


def test_the_gateway_imports_neither_torch_nor_transformers():
    code = (
        "import sys, tandem.tools.cli, tandem.tools.commands.gateway, tandem.gateway.app\n"
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert completed.stdout == "set()\n"
