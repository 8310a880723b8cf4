"""docs/reference/openai-api.md lists all fields and errors."""

import re
from pathlib import Path
from typing import get_args

from tandem.contract.errors import CLASSES
from tandem.gateway.errors import STATUS_OF_CLASS, GatewayCode
from tandem.gateway.protocol.requests import ChatRequest, CompletionRequest

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "openai-api.md"


def test_every_accepted_field_is_documented():
    taken = {*ChatRequest.model_fields, *CompletionRequest.model_fields}
    text = PAGE.read_text().partition("### Rejected fields")[0]
    assert not [name for name in taken if f"`{name}`" not in text]


def test_the_error_table_lists_every_code_with_its_status():
    rows = re.findall(r"^\| (\d{3}) \| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(code for _, code in rows) == sorted([*CLASSES, *get_args(GatewayCode)])
    assert {(str(status.value), name) for name, status in STATUS_OF_CLASS.items()} <= set(rows)
