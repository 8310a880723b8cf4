"""Grammars of tool calls in the model's format, with arguments that fit the tools' schemas."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from tandem.gateway.errors import bad_request
from tandem.gateway.guides import lark
from tandem.gateway.guides.lark import Rules
from tandem.gateway.guides.structured_outputs import ANY_OBJECT, with_options
from tandem.gateway.protocol.fields import quote
from tandem.gateway.protocol.tools import Function, Tool
from tandem.gateway.tools.formats import ToolCallFormat

SPACES = r"[ \t\r\n]*"


class CallGrammar(NamedTuple):
    """Writes the grammar of an answer with calls.

    tools: the tools that the model may call.
    bound: names of the tools whose schemas are enforced.
    tokens: ids of the tokens that a grammar doesn't treat as text.
    one_call: whether to allow only one call.
    open_objects: whether objects in the schemas are open by default.
    """

    format: ToolCallFormat
    tools: Sequence[Tool]
    bound: Collection[str]
    tokens: Mapping[str, int]
    one_call: bool
    open_objects: bool = False

    def calls(self) -> Rules:
        return {"start": "calls", "calls": self._all, **self._call}

    def calls_or(self, content: Rules) -> Rules:
        """Return the grammar of an answer that consists of calls or of other content."""
        calls = self.calls()
        return calls | content | {"start": lark.one_of([calls["start"], content["start"]])}

    def text_or_calls(self) -> Rules:
        """Return the grammar of text with or without calls. Calls that start must be valid."""
        if not self.format.begin:
            # White space in an opening doesn't matter.
            begins = "|".join(
                SPACES + SPACES.join(map(re.escape, opening))
                for opening in (self.format.mark, *self.format.openings)
            )
            text = lark.text_without(f"({begins}){lark.ANYTHING}")
            return self.calls_or({"start": "TEXT", "TEXT": text})
        begin = self.format.begin
        if begin in self.tokens:
            text = lark.text_without(f"{lark.ANYTHING}{re.escape(begin)}{lark.ANYTHING}")
            lead = {"lead": f"TEXT {self._marker(begin)}"}
        else:
            text = f"/{lark.ANYTHING}/"
            lead = {"lead[lazy]": f"TEXT {lark.literal(begin)}"}
        start = "(TEXT | part)" if self.one_call else "(part* TEXT)"
        part = f"lead {self._call_after_mark}"
        return {"start": start, "TEXT": text, **lead, "part": part, **self._call}

    @property
    def _all(self) -> str:
        known, each = self.format, "call"
        if known.begin:
            each = f"{self._marker(known.begin)} {self._call_after_mark}"
        more = "" if self.one_call else f"({lark.literal(known.joint)} {each})*"
        head = known.head.format(mark=self._marker(known.mark))
        tail = lark.literal(known.end) if known.end and not known.begin else ""
        return f"{head} {each} {more} {tail}"

    @property
    def _call_after_mark(self) -> str:
        """The rule for a call after its start mark."""
        line_end = lark.literal("\n")
        return f"{line_end} call {line_end} {self._marker(self.format.end)}"

    @property
    def _call(self) -> Rules:
        rules = {}
        for number, function in enumerate(tool.function for tool in self.tools):
            schema = parameters_schema(function) if function.name in self.bound else ANY_OBJECT
            if self.open_objects:
                schema = with_options(schema, additional_properties=True)
            name = json.dumps(function.name, ensure_ascii=False)
            begin = lark.literal(f'{{"name": {name}, "{self.format.arguments}": ')
            rules[f"call_{number}"] = f'{begin} {lark.json_value(schema)} "}}"'
        return {"call": lark.one_of([*rules]), **rules}

    def _marker(self, text: str) -> str:
        return lark.marker(text, self.tokens)


def parameters_schema(function: Function) -> Mapping[str, Any]:
    """Return the schema of a function's arguments. Raises ApiError if it allows no objects."""
    if function.parameters is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    kinds = function.parameters.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        raise bad_request(
            f"tools: parameters of '{quote(function.name)}' must have type object",
            param="tools",
        )
    schema = {**function.parameters, "type": "object"}
    return with_options(schema, strict=True) if function.strict else schema


def check_names(tools: Sequence[Tool]) -> None:
    """Raise ApiError if two functions have the same name."""
    [(name, count)] = Counter(tool.function.name for tool in tools).most_common(1)
    if count > 1:
        raise bad_request(
            f"tools has two functions named '{quote(name)}'; rename one", param="tools"
        )
