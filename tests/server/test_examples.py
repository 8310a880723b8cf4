"""Every program of examples/ runs as its first lines say."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))


def run(program, *arguments):
    return subprocess.run(
        [sys.executable, program, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda path: path.name)
def test_example_prints_an_answer(server, program):
    done = run(program, "--url", server.grpc_url, "--max-tokens", "8", "def main():")
    assert done.returncode == 0, done.stderr
    text, _, last = done.stdout.rstrip().rpartition("\n")
    assert text.strip()
    assert last.startswith("[")
