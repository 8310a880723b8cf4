"""What an answer must be, as OpenAI's and vLLM's clients ask for it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from tandem.contract.guide import LAYOUT_KEY, OWN_OPTIONS, GuideKind
from tandem.gateway.protocol.body import Body, BodyObject
from tandem.gateway.protocol.fields import Refused, check_plain, quoted, wrong

ANY_OBJECT: Mapping[str, Any] = MappingProxyType({"type": "object"})
FREE_WHITE_SPACE = "whitespace_flexible"  # an option of llguidance
ADDITIONAL, STRICT = OWN_OPTIONS
# No line is looked at from the one before: many empty ones would take ever longer.
RULE_OF_EBNF = re.compile(r"^[^\S\n]*[\w.-]+\s*::=", re.MULTILINE)


# Where a grammar is at fault, and why, as the entries say it.
PLACE = re.compile(r"at (\d+)\(\d+\): (?:failed to compile JSON schema: )?")


class Part(NamedTuple):
    """A part of a grammar that a client asked for. line: its first. function: a tool's name."""

    line: int
    field: str
    function: str = ""


class AskedGuide(NamedTuple):
    """What an answer must be. kind, text: as the entries take them. field: that asked for it.

    parts: what of a grammar that the gateway wrote comes from where, in the order of their lines.
    """

    kind: GuideKind
    text: str
    field: str
    parts: tuple[Part, ...] = ()

    def blamed(self, reason: str) -> tuple[str, str]:
        """Return the field that is at fault, and what is wrong with it."""
        found = PLACE.match(reason)
        line = int(found[1]) if found else 0
        part = max((part for part in self.parts if part.line <= line), default=None)
        if found is None or part is None:
            return self.field, reason
        function = f"the parameters of '{quoted(part.function)}': " if part.function else ""
        return part.field, function + reason[found.end() :]

    def opened(self) -> AskedGuide:
        """Return the guide with objects of its JSON schema open, unless the schema decides that."""
        if self.kind != "json_schema":
            return self
        schema = with_options(json.loads(self.text), **{ADDITIONAL: True})
        return self._replace(text=json.dumps(schema, ensure_ascii=False))


def with_options(schema: Mapping[str, Any], **options: bool) -> Mapping[str, Any]:
    """Return a schema with options of its guide; those that it has stay."""
    own = schema.get(LAYOUT_KEY, {})
    return {**schema, LAYOUT_KEY: {**options, **own}} if isinstance(own, dict) else schema


def guides_in(
    field: str,
    *,
    json_: Any = None,
    regex: str | None = None,
    choice: list[str] | None = None,
    grammar: str | None = None,
) -> list[AskedGuide]:
    """Return the guides among the values that came in a field.

    grammar: EBNF as llama.cpp writes it if it has a rule with ``::=``, else Lark.
    """
    found = []
    if json_ is not None:
        found.append(AskedGuide("json_schema", json.dumps(dict(json_), ensure_ascii=False), field))
    if regex is not None:
        found.append(AskedGuide("regex", regex, field))
    if choice is not None:
        found.append(AskedGuide("choice", json.dumps(choice, ensure_ascii=False), field))
    if grammar is not None:
        is_ebnf = RULE_OF_EBNF.search(grammar)
        found.append(AskedGuide("ebnf_grammar" if is_ebnf else "lark_grammar", grammar, field))
    return found


PLACES = {"json_": "structured_outputs.json"}  # of fields that a body calls otherwise


def _schema(value: dict[str, Any] | str, info: ValidationInfo) -> dict[str, Any]:
    """Read a JSON schema that may have come as text."""
    if isinstance(value, dict):
        return value
    try:
        schema = json.loads(value)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise PydanticCustomError("schema", "must be a JSON schema: an object, or its text")
    name = info.field_name or ""
    check_plain(PLACES.get(name, name), schema)
    return schema


Schema = Annotated[dict[str, Any] | str, AfterValidator(_schema)]
Text = Annotated[str, Field(min_length=1)]
Choices = Annotated[list[str], Field(fail_fast=True, min_length=1)]


class NamedSchema(BodyObject):
    """A JSON schema as OpenAI's clients send it.

    strict: refuse a schema of which a part cannot be enforced.
    """

    place: ClassVar = "response_format.json_schema"
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    given: Annotated[dict[str, Any], Field(alias="schema")]


class ResponseFormat(BodyObject):
    """What kind of text an answer is."""

    place: ClassVar = "response_format"
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _schema_belongs_to_its_type(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            fault = "is missing" if self.json_schema is None else "needs the type json_schema"
            raise wrong("response_format", f"response_format.json_schema {fault}")
        return self

    @property
    def schema_(self) -> Mapping[str, Any] | None:
        if self.type == "text":
            return None
        if self.json_schema is None:
            return ANY_OBJECT
        given = self.json_schema.given
        return with_options(given, **{STRICT: True}) if self.json_schema.strict else given


class StructuredOutputs(BodyObject):
    """A guide as vLLM's clients send it.

    disable_any_whitespace: false allows white space wherever JSON does.
    disable_additional_properties: whether objects whose schema doesn't say otherwise have only the
    properties that it declares; the gateway's own default if None.
    """

    place: ClassVar = "structured_outputs"
    refused: ClassVar = {
        "structural_tag": Refused("send tools, or a grammar"),
        "whitespace_pattern": Refused("white space is fixed, or free"),
    }
    json_: Annotated[Schema | None, Field(alias="json")] = None
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    json_object: bool = False
    disable_any_whitespace: bool = True
    disable_additional_properties: bool | None = None

    @model_validator(mode="after")
    def _one_guide(self) -> StructuredOutputs:
        if len(self._guides) != 1:
            which = "one of json, regex, choice, grammar and json_object"
            raise wrong(self.place, f"{self.place} takes exactly {which}")
        return self

    @property
    def guide(self) -> AskedGuide:
        return self._guides[0]

    @cached_property
    def _guides(self) -> list[AskedGuide]:
        guides = guides_in(
            self.place,
            json_=self._with_options(self.json_),
            regex=self.regex,
            choice=self.choice,
            grammar=self.grammar,
        )
        schema = self._with_options(ANY_OBJECT if self.json_object else None)
        return [*guides, *guides_in(self.place, json_=schema)]

    def _with_options(self, schema: Any) -> Any:
        options = {} if self.disable_any_whitespace else {FREE_WHITE_SPACE: True}
        if self.disable_additional_properties is not None:
            options[ADDITIONAL] = not self.disable_additional_properties
        return with_options(schema, **options) if schema is not None and options else schema


class GuidedRequest(Body):
    """A body that may constrain the output, in one field."""

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
    json_schema: Schema | None = None  # this and the next one as llama.cpp's clients send them
    """JSON schema, as llama.cpp's clients send it."""
    grammar: str | None = None
    """Grammar, as llama.cpp's clients send it."""

    @model_validator(mode="after")
    def _one_guide(self) -> GuidedRequest:
        if len(self._guides) > 1:
            one, other = (guide.field for guide in self._guides[:2])
            raise wrong(other, f"{one} and {other} both say what the answer must be; send one")
        return self

    @property
    def guide(self) -> AskedGuide | None:
        return self._guides[0] if self._guides else None

    @cached_property
    def _guides(self) -> list[AskedGuide]:
        formatted = self.response_format and self.response_format.schema_
        structured = [self.structured_outputs.guide] if self.structured_outputs else []
        return [
            *guides_in("response_format", json_=formatted),
            *structured,
            *guides_in("guided_json", json_=self.guided_json),
            *guides_in("guided_regex", regex=self.guided_regex),
            *guides_in("guided_choice", choice=self.guided_choice),
            *guides_in("guided_grammar", grammar=self.guided_grammar),
            *guides_in("json_schema", json_=self.json_schema),
            *guides_in("grammar", grammar=self.grammar or None),
        ]
