"""Generate the reference tables of the documentation from the code: `make docs-tables`.

On a page, a table or list is between `<!-- code NAME ARGUMENTS -->` and `<!-- /code -->`. NAME is a
key of TABLES. The meanings in a table are help texts, or strings below declarations. If a meaning
ends in "(default: ...)", the table shows that default instead of the declared value.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from tandem.bls import metrics as loop_metrics
from tandem.contract import entry
from tandem.engines import engine as engine_metrics
from tandem.gateway.metrics import GatewayMetrics
from tandem.gateway.protocol import anthropic_requests as _anthropic  # noqa: F401 for its models
from tandem.gateway.protocol import fields as body_fields
from tandem.gateway.protocol import requests
from tandem.gateway.protocol import response_requests as _responses  # noqa: F401 for its models
from tandem.tools.commands.command_line import make_parser
from tandem.tools.profiles import profile as _profile  # noqa: F401 for its models

PAGES = Path(__file__).parent
WIDTH = 120
PLACE = re.compile(r"(<!-- code (.+?) -->\n).*?(<!-- /code -->)", re.DOTALL)
DEFAULT = re.compile(r" ?\(default: (.*)\)(?=\.?$)")
Row = tuple[str, ...]


def docstrings_by_name(owner: Any) -> dict[str, str]:
    """Return the string below each declaration in a module or class, by name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    body = tree.body[0].body if isinstance(owner, type) else tree.body
    found = {}
    for declared, below in pairwise(body):
        if isinstance(declared, ast.Assign | ast.AnnAssign) and isinstance(below, ast.Expr):
            target = declared.target if isinstance(declared, ast.AnnAssign) else declared.targets[0]
            found[ast.unparse(target)] = " ".join(ast.literal_eval(below.value).split())
    return found


def tensors(which: str) -> Iterator[Row]:
    yield "name", "type", "meaning"
    declared = getattr(entry, which)
    for name, meaning in docstrings_by_name(entry).items():
        tensor = getattr(entry, name)
        if tensor in declared:
            sizes = {(1,): "", (-1,): " `[b, n]`"}.get(tensor.dims, " `[b, n, m]`")
            shape = sizes if which == "INPUTS" else ""
            yield f"`{tensor}`", tensor.dtype + shape, meaning


def options(command: str, *shown: str) -> Iterator[Row]:
    """Yield the options of a command, except options that it shares with the commands ``shown``.

    If shown contains "inputs", options that only set the input with their name are left out too.
    """
    known = {row for other in {*shown} - {"inputs"} for row in options(other)}
    yield "option", "meaning"
    expand = make_parser(command)._get_formatter()._expand_help
    for action in _actions(command):
        if "inputs" not in shown or not _sets_an_input(action):
            row = ", ".join(f"`{name}`" for name in _spellings(action)), expand(action)
            if row not in known:
                yield row


def input_options(command: str) -> str:
    return _names(
        name
        for action in _actions(command)
        if _sets_an_input(action)
        for name in _spellings(action)
    )


def _actions(command: str) -> list[argparse.Action]:
    """Return the options of a command, except --help."""
    return [action for action in make_parser(command)._actions if action.dest != "help"]


def _sets_an_input(action: argparse.Action) -> bool:
    named = f"--{action.dest.replace('_', '-')}" in action.option_strings
    is_plain = action.default is None and action.metavar != "FILE"
    return named and is_plain and action.dest in entry.INPUTS


def _spellings(action: argparse.Action) -> Sequence[str]:
    return action.option_strings or [str(action.metavar or action.dest).upper()]


def keys(*classes: str) -> Iterator[Row]:
    """Yield the documented fields of pydantic models. classes: names of the models."""
    yield "key", "default", "meaning"
    known = {kind.__name__: kind for kind in _descendants(BaseModel)}
    for kind in (known[name] for name in classes):
        for name, meaning in docstrings_by_name(kind).items():
            field = kind.model_fields[name]
            said = DEFAULT.search(meaning)
            default = said[1] if said else _format_default(field.default)
            yield f"`{field.alias or name}`", default, DEFAULT.sub("", meaning)


def inputs(name: str) -> str:
    """Return the undocumented fields that an input's text describes. name: a pydantic model."""
    kind = {kind.__name__: kind for kind in _descendants(BaseModel)}[name]
    return _names({*kind.model_fields} & {*entry.INPUTS} - {*docstrings_by_name(kind)})


def metrics(*programs: str) -> Iterator[Row]:
    yield "metric", "meaning"
    declared = {
        "loop": [*loop_metrics.METRICS, *loop_metrics.WATCHER],
        "engine": [*engine_metrics.METRICS],
    }
    for metric in (metric for program in programs for metric in declared[program]):
        yield f"`{metric}`", f"{'Histogram: ' * (metric.kind == 'histogram')}{metric.help}"


def gateway_metrics() -> str:
    shown = GatewayMetrics().text().decode()
    return _names(re.findall(r"^# HELP (\S+)", shown, re.MULTILINE))


def rejected() -> str:
    return _names(set(body_fields.UNSUPPORTED) - set(requests.ChatRequest.model_fields))


def ignored() -> str:
    return _names(body_fields.IGNORED)


def others(name: str) -> str:
    """Return the fields that only one API rejects or ignores. name: its pydantic model."""
    kind = {kind.__name__: kind for kind in _descendants(BaseModel)}[name]
    known = {*body_fields.UNSUPPORTED, *body_fields.IGNORED} - {"store"} | {*kind.own_names}
    rejected, ignored = {*kind.unsupported} - known, {*kind.ignored} - known - {*kind.unsupported}
    return _names(rejected, "- rejected: ") + _names(ignored, "- ignored: ")


TABLES = {
    made.__name__: made
    for made in (
        tensors,
        options,
        input_options,
        keys,
        inputs,
        metrics,
        gateway_metrics,
        rejected,
        ignored,
        others,
    )
}


def fill_tables(text: str) -> str:
    """Return the text of a page with all its tables up to date."""

    def table(found: re.Match[str]) -> str:
        name, *arguments = found[2].split()
        made = TABLES[name](*arguments)
        return found[1] + (made if isinstance(made, str) else "".join(_lines(made))) + found[3]

    return PLACE.sub(table, text)


def _lines(rows: Iterable[Row]) -> Iterator[str]:
    for number, row in enumerate(rows):
        cells = [cell.rstrip(".").replace("|", "\\|") for cell in row]
        yield f"| {' | '.join(cells)} |\n"
        if number == 0:
            yield f"|{'---|' * len(row)}\n"


def _names(names: Iterable[str], start: str = "") -> str:
    text = start + ", ".join(f"`{name}`" for name in sorted(names))
    indent = "  " if start.startswith("- ") else ""
    return textwrap.fill(text, WIDTH, break_on_hyphens=False, subsequent_indent=indent) + "\n"


def _format_default(default: Any) -> str:
    if default is PydanticUndefined:
        return "required"
    if isinstance(default, bool):
        return str(default).lower()
    return "none" if default is None or default in ([], {}, ()) else str(default)


def _descendants(kind: type) -> Iterator[type]:
    for child in kind.__subclasses__():
        yield child
        yield from _descendants(child)


if __name__ == "__main__":
    for page in sorted(PAGES.rglob("*.md")):
        page.write_text(fill_tables(page.read_text()))
