"""The overview of all commands and the help of each command are complete."""

import argparse
import re
import shlex
from importlib import metadata

import pytest

from tandem.tools import cli as command
from tandem.tools.commands.command_help import COMMANDS, FIRST_STEPS
from tandem.tools.commands.command_line import parser_of


def options_of(name):
    """Return the options in a command's help, except --help."""
    return [action for action in parser_of(name)._actions if action.dest != "help"]


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_the_overview_describes_every_command(arguments, capsys):
    assert command.main(arguments) == 0
    shown = capsys.readouterr().out
    for name, said in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(said.summary)}$", shown, re.MULTILINE)
    for step in FIRST_STEPS:
        assert f"  {step} " in shown
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
    described = COMMANDS[name]
    assert described.description in " ".join(shown.split())
    assert described.examples
    for example in described.examples:
        assert f"\n  {example}\n" in f"{shown}\n"
        program, said, *arguments = shlex.split(re.split(r" [<>|] ", example)[0])
        assert (program, said) == ("tandem", name)
        parser_of(name).read(arguments)


@pytest.mark.parametrize("step", FIRST_STEPS)
def test_the_suggested_first_steps_are_valid_commands(step):
    _, name, *arguments = shlex.split(step)
    parser_of(name).read(arguments)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_in_a_named_group(name):
    made = parser_of(name)
    (unnamed,) = [group for group in made._action_groups if group.title == "options"]
    assert [action.dest for action in unnamed._group_actions] == ["help"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_text_of_each_option_is_a_sentence(name):
    for option in options_of(name):
        said = option.help
        assert said is not argparse.SUPPRESS
        assert said[0].isupper(), said
        assert said.endswith("."), said
