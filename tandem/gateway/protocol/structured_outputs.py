"""Fields of a request that guide the answer, as in the APIs of OpenAI, vLLM and llama.cpp."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from tandem.contract.guide import LAYOUT_KEY, GuideKind
from tandem.gateway.protocol.body import Body, BodyObject
from tandem.gateway.protocol.fields import Unsupported, field_error, find_unreadable, quote

ANY_OBJECT = {"type": "object"}
# The white space excludes line ends, which would make many empty lines take quadratic time.
RULE_OF_EBNF = re.compile(r"^[^\S\n]*[\w.-]+\s*::=", re.MULTILINE)

# The location of an error in a grammar, as the entries report it.
PLACE = re.compile(r"at (\d+)\(\d+\): (?:failed to compile JSON schema: )?")


class GrammarPart(NamedTuple):
    """A part of a grammar. line: its first line. field: its source. function: a tool's name."""

    line: int
    field: str
    function: str = ""


class RequestedGuide(NamedTuple):
    """A guide for the entries. field: the client's field that contains it.

    parts: the parts of a grammar that the gateway generated, in order of their lines.
    """

    kind: GuideKind
    text: str
    field: str
    parts: tuple[GrammarPart, ...] = ()

    def locate(self, reason: str) -> tuple[str, str]:
        """Return the invalid field and the error message."""
        found = PLACE.match(reason)
        line = int(found[1]) if found else 0
        part = max((part for part in self.parts if part.line <= line), default=None)
        if found is None or part is None:
            return self.field, reason
        function = f"parameters of '{quote(part.function)}': " if part.function else ""
        return part.field, function + reason[found.end() :]

    def with_open_objects(self) -> RequestedGuide:
        """Return the guide with open objects in its JSON schema, unless it has its own setting."""
        if self.kind != "json_schema":
            return self
        schema = with_options(json.loads(self.text), additional_properties=True)
        return self._replace(text=json.dumps(schema, ensure_ascii=False))


def with_options(schema: Mapping[str, Any], **options: bool) -> Mapping[str, Any]:
    """Return a schema with options for its guide. Options that the schema already has are kept.

    options: llguidance's, or `contract.guide.OWN_OPTIONS`.
    """
    own = schema.get(LAYOUT_KEY, {})
    return {**schema, LAYOUT_KEY: {**options, **own}} if isinstance(own, dict) else schema


def make_guide(field: str, kind: GuideKind, value: Any) -> RequestedGuide:
    """Return the guide that a field's value describes.

    A grammar that has a rule with `::=` is llama.cpp's EBNF; any other grammar is Lark.
    """
    if kind == "lark_grammar" and RULE_OF_EBNF.search(value):
        kind = "ebnf_grammar"
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False)
    return RequestedGuide(kind, value, field)


def _schema(value: dict[str, Any] | str) -> dict[str, Any]:
    """Return a JSON schema, which may be given as text."""
    if isinstance(value, dict):
        return value
    try:
        schema = json.loads(value)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise PydanticCustomError("schema", "must be a JSON schema, as an object or as text")
    if fault := find_unreadable(schema):
        raise field_error("", *fault)
    return schema


Schema = Annotated[dict[str, Any] | str, AfterValidator(_schema)]
Text = Annotated[str, Field(min_length=1)]
Choices = Annotated[list[str], Field(fail_fast=True, min_length=1)]


class NamedSchema(BodyObject):
    """A JSON schema as OpenAI's clients send it.

    strict: reject schemas with a part that can't be enforced.
    """

    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    given: Annotated[dict[str, Any], Field(alias="schema")]


class ResponseFormat(BodyObject):
    """The format of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _schema_belongs_to_its_type(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            fault = (
                "is missing" if self.json_schema is None else "needs {path}.type to be json_schema"
            )
            raise field_error("", f"{{path}}.json_schema {fault}")
        return self

    @property
    def schema_(self) -> Mapping[str, Any] | None:
        if self.type == "text":
            return None
        if self.json_schema is None:
            return ANY_OBJECT
        given = self.json_schema.given
        return with_options(given, strict=True) if self.json_schema.strict else given


class StructuredOutputs(BodyObject):
    """A guide as vLLM's clients send it.

    disable_any_whitespace: if false, white space is allowed wherever JSON allows it.
    disable_additional_properties: whether objects may have only the properties that their schema
    declares, unless the schema has its own setting; None: the gateway's default.
    """

    unsupported: ClassVar = {
        "structural_tag": Unsupported("use tools or a grammar"),
        "whitespace_pattern": Unsupported("use disable_any_whitespace"),
    }
    json_: Annotated[Schema | None, Field(alias="json")] = None
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    json_object: bool = False
    disable_any_whitespace: bool = True
    disable_additional_properties: bool | None = None

    @model_validator(mode="after")
    def _has_one_guide(self) -> StructuredOutputs:
        _ = self.guide
        return self

    @cached_property
    def guide(self) -> RequestedGuide:
        every: list[tuple[GuideKind, Any]] = [
            ("json_schema", self.json_),
            ("regex", self.regex),
            ("choice", self.choice),
            ("lark_grammar", self.grammar),
            ("json_schema", ANY_OBJECT if self.json_object else None),
        ]
        given = [one for one in every if one[1] is not None]
        if len(given) != 1:
            which = "json, regex, choice, grammar and json_object"
            raise field_error("", f"{{path}} must have exactly one of {which}")
        [(kind, value)] = given
        options = {} if self.disable_any_whitespace else {"whitespace_flexible": True}
        if self.disable_additional_properties is not None:
            options["additional_properties"] = not self.disable_additional_properties
        if kind == "json_schema" and options:
            value = with_options(value, **options)
        return make_guide("structured_outputs", kind, value)


class GuidedRequest(Body):
    """A body that may constrain the output with one field."""

    response_format: ResponseFormat | None = None
    """OpenAI's object: JSON, or JSON that fits a schema."""
    structured_outputs: StructuredOutputs | None = None
    """vLLM's object."""
    guided_json: Schema | None = None
    """JSON schema, as an object or as text."""
    guided_regex: Text | None = None
    """Regular expression that the whole output matches."""
    guided_choice: Choices | None = None
    """List of strings; the output is one of them."""
    guided_grammar: Text | None = None
    """Grammar: GBNF if its rules have `::=`, else Lark."""
    json_schema: Schema | None = None  # llama.cpp's field, as is the next one
    """JSON schema, as llama.cpp's clients send it."""
    grammar: str | None = None
    """Grammar, as llama.cpp's clients send it."""

    @model_validator(mode="after")
    def _has_at_most_one_guide(self) -> GuidedRequest:
        _ = self.guide
        return self

    @cached_property
    def guide(self) -> RequestedGuide | None:
        formatted = self.response_format and self.response_format.schema_
        every: list[tuple[str, GuideKind, Any]] = [
            ("response_format", "json_schema", formatted),
            ("guided_json", "json_schema", self.guided_json),
            ("guided_regex", "regex", self.guided_regex),
            ("guided_choice", "choice", self.guided_choice),
            ("guided_grammar", "lark_grammar", self.guided_grammar),
            ("json_schema", "json_schema", self.json_schema),
            ("grammar", "lark_grammar", self.grammar or None),
        ]
        guides = [make_guide(*one) for one in every if one[2] is not None]
        if self.structured_outputs:
            guides.append(self.structured_outputs.guide)
        if len(guides) > 1:
            one, other = (guide.field for guide in guides[:2])
            raise field_error(other, f"set {one} or {other}, not both")
        return guides[0] if guides else None
