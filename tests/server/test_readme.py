"""Commands and programs in README.md, CONTRIBUTING.md and docs/ work."""

import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest
from paths import ROOT

from tandem.tools import cli
from tandem.tools.commands.command_line import read

PAGES = [*sorted(ROOT.glob("[A-Z]*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NO_CODE = {"text", "yaml", "toml", "mermaid"}
TANDEM = re.compile(r"^(\.venv/bin/)?tandem\b")
NEEDS_PROCESS = re.compile("[|<>&;$`]|--help")
# These commands take ten seconds or more. Other tests run them, so here only their options are
# checked.
SLOW = ("tandem bench", "tandem run", "tandem up --target")
PYTEST = ".venv/bin/python -m pytest"


def blocks(language):
    """Return all code blocks of a language, with the file and line of each."""
    for path in PAGES:
        text = path.read_text()
        for found in BLOCK.finditer(text):
            if found[1] == language:
                line = text[: found.start()].count("\n") + 1
                yield pytest.param(found[2], id=f"{path.relative_to(ROOT)}:{line}")


def commands():
    """Return all commands in shell blocks. A backslash joins lines."""
    for block in blocks("sh"):
        for line in block.values[0].replace("\\\n", "").splitlines():
            yield pytest.param(line, id=f"{block.id}:{' '.join(line.split()[:3])}")


@pytest.fixture
def here(server, embedded, gateway_url, tmp_path, monkeypatch):
    """Enter an empty folder, and return a function that adapts code to the live server."""
    monkeypatch.chdir(tmp_path)
    changes = {
        "127.0.0.1:8000": server.http_url,
        "127.0.0.1:8001": server.grpc_url,
        "http://127.0.0.1:8080": gateway_url,
        "triton.example:8001": server.grpc_url,
        "tandem/profiles/": f"{ROOT}/profiles/",
        "path/to/target": str(embedded.tokenizer.folder),
        "tandem gateway": "tandem gateway --port 0",
        "tandem generate": f"tandem generate --url {server.grpc_url}",
        "make ": f"make --dry-run -C {ROOT} ",
    }

    def fit(code):
        for ours, theirs in changes.items():
            code = code.replace(ours, theirs)
        return TANDEM.sub(f"{shlex.quote(sys.executable)} -m tandem", code)

    return fit


def test_every_code_block_has_a_language():
    for path in PAGES:
        kinds = {found[1] for found in BLOCK.finditer(path.read_text())}
        assert kinds <= NO_CODE | {"sh", "python"}, path


def is_checked_only(command):
    return command.values[0].startswith((*SLOW, PYTEST))


@pytest.mark.parametrize("command", [c for c in commands() if is_checked_only(c)])
def test_slow_readme_commands_have_valid_options(command):
    words = shlex.split(command)
    if command.startswith(PYTEST):
        assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))
    else:
        assert read(words[1:])


@pytest.mark.parametrize("command", [c for c in commands() if not is_checked_only(c)])
def test_readme_commands_work(here, command, capsys):
    if command.startswith("curl") and not shutil.which("curl"):
        pytest.skip("no curl on this machine")
    if "tandem gateway" in command:
        serves(here(command))
    elif TANDEM.match(command) and not NEEDS_PROCESS.search(command):
        _, _, _, *words = shlex.split(here(command))
        assert cli.main(words) == 0
        assert capsys.readouterr().out
    else:
        shown = finish(["bash", "-c", here(command)])
        assert '"error"' not in shown
        if command.startswith("curl"):
            assert '"text_output"' in shown or '"text":' in shown


@pytest.mark.parametrize("program", [*blocks("python")])
def test_readme_programs_work(here, program, capsys):
    names = {}
    exec(here(program), names)
    names["client"].close()
    assert capsys.readouterr().out


def finish(command):
    """Run a command that must succeed, and return its output."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def serves(command):
    """Run a server until it reports that it serves, and check that it exits with status 0."""
    with subprocess.Popen(
        ["bash", "-c", f"exec {command}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            greeting = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, error_output = process.communicate(timeout=120)
        finally:
            process.terminate()  # no effect if the process has ended
    assert greeting.startswith("serving "), error_output
    assert process.returncode == 0, error_output
