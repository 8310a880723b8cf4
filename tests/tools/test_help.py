"""The overview of all commands and the help of each command are complete."""

import re
import shlex
from importlib import metadata

import pytest

from tandem.tools import cli as command
from tandem.tools.commands.command_line import COMMANDS, make_parser


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_the_overview_describes_every_command(arguments, capsys):
    assert command.main(arguments) == 0
    shown = capsys.readouterr().out
    for name in COMMANDS:
        assert re.search(rf"^  {name} +[A-Z].+\.$", shown, re.MULTILINE)
    assert max(map(len, shown.splitlines())) <= 100


def test_version_prints_the_package_version(capsys):
    assert command.main(["--version"]) == 0
    assert capsys.readouterr().out == f"tandem {metadata.version('tandem-triton')}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_a_description_and_valid_examples(name, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main([name, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    described, listed, examples = shown.partition("\nexamples:\n")
    assert listed
    assert re.search(r"\n\n[A-Z][^.]+\.", described)
    for example in map(str.strip, examples.splitlines()):
        program, said, *arguments = shlex.split(re.split(r" [<>|] ", example)[0])
        assert (program, said) == ("tandem", name)
        make_parser(name).read(arguments)
