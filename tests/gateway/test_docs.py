"""The tables of docs/gateway.md are those of the code."""

import re
from pathlib import Path

import pytest

from tandem.gateway.errors import API_CODES, STATUS_OF_CLASS
from tandem.gateway.protocol import fields
from tandem.gateway.protocol.requests import ChatRequest, CompletionRequest

PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"
TABLES = {
    "refused": {name: field.why for name, field in fields.REFUSED.items()},
    "ignored": fields.IGNORED,
}


def table(rows):
    lines = [f"| `{name}` | {why} |" for name, why in sorted(rows.items())]
    return "\n".join(["| field | why |", "|---|---|", *lines])


@pytest.mark.parametrize("name", TABLES)
def test_documented_fields_match_the_code(name):
    found = re.search(f"<!-- {name} -->\n(.*)<!-- /{name} -->", PAGE.read_text(), re.DOTALL)
    assert found[1].strip() == table(TABLES[name])


def test_every_accepted_field_is_documented():
    taken = {*ChatRequest.model_fields, *CompletionRequest.model_fields}
    text = PAGE.read_text().partition("**Refused**")[0]
    assert not [name for name in taken if f"`{name}`" not in text]


def test_table_of_errors_has_every_code_and_its_status():
    rows = re.findall(r"^\| (\d{3}) \| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(code for _, code in rows) == sorted(API_CODES)
    assert {(str(status.value), name) for name, status in STATUS_OF_CLASS.items()} <= set(rows)
