"""Build the guide for a chat's answer: its reasoning, its content and its calls.

Calls have the model's format, with arguments that fit the tools' schemas. The grammars are in
llguidance's dialect of Lark (see its docs/syntax.md).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from tandem.contract.guide import EXACT, LAYOUT_KEY, lark_regex, layout_of
from tandem.gateway.answers.reasoning import BEGIN, END
from tandem.gateway.errors import ApiError, bad_request
from tandem.gateway.protocol.fields import quote
from tandem.gateway.protocol.messages import Function, Tool
from tandem.gateway.protocol.requests import ChatRequest
from tandem.gateway.protocol.structured_outputs import (
    ANY_OBJECT,
    GrammarPart,
    RequestedGuide,
    with_options,
)
from tandem.gateway.tokenizer import ChatTokenizer
from tandem.gateway.tool_calls import ToolCallFormat

ANYTHING = "(?s:.*)"  # a regular expression
Rules: TypeAlias = dict[str, str]  # expressions by name, with the start rule first
SPACES = r"[ \t\r\n]*"


def render_rules(rules: Rules) -> str:
    return "".join(f"{name}: {rule}\n" for name, rule in rules.items())


def literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def marker(text: str, tokens: Mapping[str, int]) -> str:
    """Return the terminal for a marker. tokens: ids of the tokens that aren't text."""
    return f"<[{tokens[text]}]>" if text in tokens else literal(text)


def json_value(schema: Mapping[str, Any]) -> str:
    """Return the rule for a JSON value that fits a schema. The schema may set its own layout."""
    own = schema.get(LAYOUT_KEY)
    options = own if isinstance(own, dict) else {}
    whole = {**schema, LAYOUT_KEY: {**layout_of(schema), **options, **EXACT}}
    return f"%json {json.dumps(whole, ensure_ascii=False)}"


def _one_of(alternatives: list[str]) -> str:
    return f"({' | '.join(alternatives)})"


def _text_without(regex: str) -> str:
    """Return the terminal for any text that doesn't match a regular expression."""
    return f"/{ANYTHING}/ & ~{lark_regex(regex)}"


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
        return calls | content | {"start": _one_of([calls["start"], content["start"]])}

    def text_or_calls(self) -> Rules:
        """Return the grammar of text with or without calls. Calls that start must be valid."""
        if not self.format.begin:
            # White space in an opening doesn't matter.
            begins = "|".join(
                SPACES + SPACES.join(map(re.escape, opening))
                for opening in (self.format.mark, *self.format.openings)
            )
            text = _text_without(f"({begins}){ANYTHING}")
            return self.calls_or({"start": "TEXT", "TEXT": text})
        begin = self.format.begin
        if begin in self.tokens:
            text = _text_without(f"{ANYTHING}{re.escape(begin)}{ANYTHING}")
            lead = {"lead": f"TEXT {self._marker(begin)}"}
        else:
            text = f"/{ANYTHING}/"
            lead = {"lead[lazy]": f"TEXT {literal(begin)}"}
        start = "(TEXT | part)" if self.one_call else "(part* TEXT)"
        part = f"lead {self._call_after_mark}"
        return {"start": start, "TEXT": text, **lead, "part": part, **self._call}

    @property
    def _all(self) -> str:
        known, each = self.format, "call"
        if known.begin:
            each = f"{self._marker(known.begin)} {self._call_after_mark}"
        more = "" if self.one_call else f"({literal(known.joint)} {each})*"
        head = known.head.format(mark=self._marker(known.mark))
        tail = literal(known.end) if known.end and not known.begin else ""
        return f"{head} {each} {more} {tail}"

    @property
    def _call_after_mark(self) -> str:
        """The rule for a call after its start mark."""
        line_end = literal("\n")
        return f"{line_end} call {line_end} {self._marker(self.format.end)}"

    @property
    def _call(self) -> Rules:
        rules = {}
        for number, function in enumerate(tool.function for tool in self.tools):
            schema = _parameters_schema(function) if function.name in self.bound else ANY_OBJECT
            if self.open_objects:
                schema = with_options(schema, additional_properties=True)
            name = json.dumps(function.name, ensure_ascii=False)
            begin = literal(f'{{"name": {name}, "{self.format.arguments}": ')
            rules[f"call_{number}"] = f'{begin} {json_value(schema)} "}}"'
        return {"call": _one_of([*rules]), **rules}

    def _marker(self, text: str) -> str:
        return marker(text, self.tokens)


def _parameters_schema(function: Function) -> Mapping[str, Any]:
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


def _check_names(tools: Sequence[Tool]) -> None:
    """Raise ApiError if two functions have the same name."""
    [(name, count)] = Counter(tool.function.name for tool in tools).most_common(1)
    if count > 1:
        raise bad_request(
            f"tools has two functions named '{quote(name)}'; rename one", param="tools"
        )


# The names of the rule for content and of the rules for each function's calls.
CONTENT, CALL = "content", re.compile(r"call_(\d+)")
SPACE_AFTER_REASONING = r"/[ \t\r\n]{0,2}/"


def answer_guide(
    body: ChatRequest,
    tokenizer: ChatTokenizer,
    prompt: Sequence[int],
    *,
    skips_special_tokens: bool,
    open_objects: bool,
) -> RequestedGuide | None:
    """Return the guide for an answer, or None if the answer is unconstrained.

    prompt: its token ids, which show whether the model reasons first. skips_special_tokens: whether
    answers omit special tokens. open_objects: whether objects in JSON schemas are open by default.
    Raises ApiError if no grammar can express the request.
    """
    thinks = tokenizer.reasons and not tokenizer.has_reasoned(prompt)
    guide = body.guide.with_open_objects() if body.guide and open_objects else body.guide
    rules = _with_calls(body, guide, tokenizer, open_objects=open_objects)
    if rules is None:
        if guide is None or not thinks:
            return guide
        rules = _content(guide)
    field = guide.field if guide and not body.must_call else "tools"
    if skips_special_tokens:
        known = tokenizer.tool_calls if body.callable_tools else None
        markers = [*([BEGIN, END] if thinks else ()), *([known.begin, known.end] if known else ())]
        for mark in markers:
            if mark in tokenizer.special_tokens:
                raise _unsupported_error(
                    field, f"this model's answers omit the special token {mark}"
                )
    if thinks:
        begun = tokenizer.has_begun_to_reason(prompt)
        if guide is None and not (body.must_call or begun or BEGIN in tokenizer.tokens_apart):
            raise _unsupported_error("tools", f"strict needs {BEGIN} to be one token of the model")
        rules = _put_after_reasoning(rules, tokenizer.tokens_apart, begun=begun)
    grammar = render_rules(rules)
    return RequestedGuide("lark_grammar", grammar, field, tuple(_parts(rules, body)))


def _parts(rules: Rules, body: ChatRequest) -> Iterator[GrammarPart]:
    """Yield the locations of the client's schemas and texts in a grammar."""
    line = 1
    for name, rule in rules.items():
        if name == CONTENT and body.guide:
            yield GrammarPart(line, body.guide.field)
        elif number := CALL.fullmatch(name):
            yield GrammarPart(line, "tools", body.callable_tools[int(number[1])].function.name)
        line += 1 + rule.count("\n")


def _with_calls(
    body: ChatRequest, guide: RequestedGuide | None, tokenizer: ChatTokenizer, *, open_objects: bool
) -> Rules | None:
    """Return the grammar of an answer with calls, or None if no grammar is needed."""
    known, tools = tokenizer.tool_calls, body.callable_tools
    strict = {tool.function.name for tool in tools if tool.function.strict}
    if known is None or not tools or not (body.must_call or guide or strict):
        return None
    _check_names(tools)
    bound = {tool.function.name for tool in tools} if body.must_call else strict
    grammar = CallGrammar(known, tools, bound, tokenizer.tokens_apart, body.one_call, open_objects)
    if guide and guide.kind != "json_schema":
        raise _unsupported_error(guide.field, "with tools, only a JSON schema can guide the answer")
    if body.must_call:
        return grammar.calls()
    if not guide:
        return grammar.text_or_calls()
    if "{" in known.openings:
        why = (
            "this model writes tool calls as plain JSON, so tools can't be combined with a guide; "
            "remove one of them"
        )
        raise _unsupported_error(guide.field, why)
    return grammar.calls_or(_content(guide))


def _content(guide: RequestedGuide) -> Rules:
    if guide.kind == "json_schema":
        rule = json_value(json.loads(guide.text))
    elif guide.kind == "regex":
        try:
            rule = lark_regex(guide.text)
        except ValueError as error:
            message = f"{guide.field}: {error}"
            raise bad_request(message, param=guide.field, code="invalid_guide") from error
    elif guide.kind == "choice":
        rule = _one_of([literal(choice) for choice in json.loads(guide.text)])
    elif guide.kind == "lark_grammar":
        rule = f"%lark {{\n{guide.text}\n}}"
    else:
        raise _unsupported_error(guide.field, "a model that reasons needs the grammar in Lark")
    return {"start": CONTENT, CONTENT: rule}


def _put_after_reasoning(answer: Rules, tokens: Mapping[str, int], *, begun: bool) -> Rules:
    """Return the grammar of an answer that follows reasoning.

    begun: whether the prompt begins the reasoning. If not, reasoning is optional.
    """
    rules = {"thoughts[lazy]": lark_regex(ANYTHING + END)}
    if END in tokens:  # spelled as plain text, the tag would also end the reasoning
        thought = _text_without(ANYTHING + END + ANYTHING)
        rules = {"THOUGHT": thought, "thoughts": f"THOUGHT {marker(END, tokens)}"}
    before = f"thoughts {SPACE_AFTER_REASONING}"
    if not begun:
        before = f"({marker(BEGIN, tokens)} {before})?"
    return answer | rules | {"start": f"{before} {answer['start']}"}


def _unsupported_error(field: str, why: str) -> ApiError:
    return bad_request(
        f"{field} isn't supported here: {why}", param=field, code="unsupported_field"
    )
