"""The tables of docs/gateway.md are those of the code."""

import re
from pathlib import Path

import pytest

from tandem.gateway import fields
from tandem.gateway.schema import ChatRequest, CompletionRequest

PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"
TABLES = {
    "refused": {name: field.why for name, field in fields.REFUSED.items()},
    "ignored": fields.IGNORED,
}


def table(rows):
    lines = [f"| `{name}` | {why} |" for name, why in sorted(rows.items())]
    return "\n".join(["| field | why |", "|---|---|", *lines])


@pytest.mark.parametrize("name", TABLES)
def test_table_is_that_of_the_code(name):
    found = re.search(f"<!-- {name} -->\n(.*)<!-- /{name} -->", PAGE.read_text(), re.DOTALL)
    assert found[1].strip() == table(TABLES[name])


def test_every_accepted_field_is_documented():
    taken = {*ChatRequest.model_fields, *CompletionRequest.model_fields}
    text = PAGE.read_text().partition("**Refused**")[0]
    assert not [name for name in taken if f"`{name}`" not in text]
