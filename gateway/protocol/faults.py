"""What is wrong with a body, as one error."""

from __future__ import annotations

from itertools import pairwise

from pydantic import ValidationError

from tandem.gateway.errors import ApiError, bad_request
from tandem.gateway.protocol.fields import quoted

MOST_NAMED = 10  # faults of one body
BY_KEY = "logit_bias"  # the field whose entries have names of the client's own
# Pydantic's names of faults that it describes in words of Python.
KINDS_OF_VALUES = {
    "dict_type": "an object",
    "list_type": "a list",
    "model_attributes_type": "an object",
    "model_type": "an object",
    "string_type": "a string",
}


def invalid(error: ValidationError) -> ApiError:
    """Return the error of a body that is not what the endpoint takes; it names all faults."""
    faults = error.errors(include_url=False, include_input=False)
    lines: dict[str, str] = {}  # by the path of a fault
    for fault in faults:
        field = fault.get("ctx", {}).get("field")  # then the message is a complete line
        path = field or _path(fault["loc"])
        kind = KINDS_OF_VALUES.get(fault["type"])
        text = f"must be {kind}" if kind else fault["msg"].replace("Input should be", "must be")
        if path in lines:  # it takes values of several kinds
            lines[path] += f" or {text.removeprefix('must be ')}"
        elif fault["type"] == "missing":
            lines[path] = f"{path or 'the body'} is missing"
        else:
            lines[path] = text if field or not path else f"{path}: {text}"
    named = list(lines.values())[:MOST_NAMED]
    if len(lines) > MOST_NAMED:
        named.append(f"and {len(lines) - MOST_NAMED} more")
    code = faults[0].get("ctx", {}).get("code")
    return bad_request("; ".join(named), param=next(iter(lines)) or None, code=code)


def _path(location: tuple[int | str, ...]) -> str:
    """Spell a place in the body: ``messages[0].role``. Names of alternatives are left out."""
    path = ""
    for before, part in pairwise(("", *location)):
        if isinstance(part, int):
            path += f"[{part}]"
        elif before == BY_KEY:
            path += f".{quoted(part)}"
        elif part.isidentifier() and part not in ("str", "int", "float", "bool"):
            path += f".{part}" if path else part
    return path
