"""The kinds of values that a body's fields take: numbers within bounds, lists read with care."""

from __future__ import annotations

import re
from itertools import islice
from typing import Annotated, Any, NamedTuple, cast

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    Tag,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from tandem.contract.engine import MAX_TOP_LOG_PROBS

MOST_CHOICES = 128
ENTRIES_AT_ONCE = 1000
INT32 = 2**31 - 1

Count = Annotated[int, Field(ge=1, le=INT32)]
TokenId = Annotated[int, Field(ge=0, le=INT32)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
Alternatives = Annotated[int, Field(ge=0, le=MAX_TOP_LOG_PROBS)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]


class UpToFirstFault(NamedTuple):
    """Has a list read no further than its first fault, and at most so many items.

    Bodies are read in the event loop, where all streams wait for it, and pydantic would keep a
    complaint about each of millions of items. Its own FailFast has no hash, which a union needs.
    """

    max_length: int | None = None

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the list's schema with what is asked here."""
        schema: dict[str, Any] = {**handler(source), "fail_fast": True}
        assert schema["type"] == "list"
        if self.max_length is not None:
            schema["max_length"] = self.max_length
        return cast(CoreSchema, schema)


def _by_parts(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Have an object read part by part, no further than the first one with faults."""
    if not isinstance(value, dict):
        return check(value)
    entries: dict[Any, Any] = {}
    left = iter(value.items())
    while part := dict(islice(left, ENTRIES_AT_ONCE)):
        entries |= check(part)
    return entries


def _token_id(name: str) -> int:
    if not re.fullmatch("[0-9]{1,10}", name):
        raise PydanticCustomError("token_id", "must be a token id")
    return int(name)


# Where a field takes several kinds, its first item says which: each kind would be tried on all.
LogitBias = Annotated[
    dict[Annotated[TokenId, BeforeValidator(_token_id)], Bias], WrapValidator(_by_parts)
]
Texts = Annotated[list[str], UpToFirstFault()]
TokenIds = Annotated[list[TokenId], UpToFirstFault()]


def text_or_list(value: Any) -> str:
    """Tell which of the two a value is; an error's path leaves such names out."""
    return "list[]" if isinstance(value, list) else "str"


def _kind_of_prompt(value: Any) -> str:
    """Tell by the first item what a prompt is; an error's path leaves such names out."""
    if not isinstance(value, list):
        return "str"
    if not value or isinstance(value[0], str):
        return "list[str]"
    return "list[list[int]]" if isinstance(value[0], list) else "list[int]"


TextOrTexts = Annotated[
    Annotated[str, Tag("str")] | Annotated[Texts, Tag("list[]")], Discriminator(text_or_list)
]
Prompts = Annotated[
    Annotated[str, Tag("str")]
    | Annotated[list[str], UpToFirstFault(MOST_CHOICES), Tag("list[str]")]
    | Annotated[TokenIds, Tag("list[int]")]
    | Annotated[list[TokenIds], UpToFirstFault(MOST_CHOICES), Tag("list[list[int]]")],
    Discriminator(_kind_of_prompt),
]
