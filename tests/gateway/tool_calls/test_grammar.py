"""Tool-call grammars accept valid calls, reject invalid calls, and agree with the parser."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matching import ADDED, PLAIN, SPECIAL, Matcher, spaced, tokenizer_with, tokens_apart

from tandem.gateway.answers import guide as lark
from tandem.gateway.answers.guide import CallGrammar
from tandem.gateway.protocol.messages import Tool
from tandem.gateway.tool_calls import FORMATS, ToolCallParser

BY_NAME = {known.name: known for known in FORMATS}
HERMES, MISTRAL, LLAMA = (BY_NAME[name] for name in ("hermes", "mistral", "llama3"))
MARKERS = {
    HERMES: ("<tool_call>", "</tool_call>"),
    MISTRAL: ("[TOOL_CALLS]",),
    LLAMA: ("<|python_tag|>",),
}
# No Hermes model uses special tokens as markers, because answers omit special tokens.
KINDS = [
    (HERMES, PLAIN),
    (HERMES, ADDED),
    *((f, k) for f in (MISTRAL, LLAMA) for k in (PLAIN, SPECIAL)),
]


def tool(name, parameters=None, *, strict=False):
    function = {"name": name, "parameters": parameters, "strict": strict}
    return Tool.model_validate({"type": "function", "function": function})


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
SUM = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/number"}, "b": {"$ref": "#/$defs/number"}},
    "required": ["a", "b"],
    "additionalProperties": False,
    "$defs": {"number": {"type": "number"}},
}
TOOLS = (tool("weather", CITY), tool("weather2", SUM), tool("now"), tool("any", {}))
# Texts without markers and special tokens (a tokenizer would convert them to tokens) and without
# characters that need a Unicode escape.
NOT_SAID = [
    *(marker for markers in MARKERS.values() for marker in markers),
    *(token.content for token in tokenizer_with(PLAIN).get_added_tokens_decoder().values()),
]
SAID = st.text(st.characters(exclude_categories=["Cc", "Cs"])).filter(
    lambda text: not any(word in text for word in NOT_SAID)
)
INTEGERS = st.integers(-(2**62), 2**62)
# The properties are in the order of the schema.
ARGUMENTS = {
    "weather": st.builds(
        lambda city, days: {"city": city} | days,
        SAID,
        st.just({}) | INTEGERS.map(lambda days: {"days": days}),
    ),
    "weather2": st.builds(
        lambda a, b: {"a": a, "b": b}, INTEGERS, st.sampled_from([1, 0.5, -2.25, 1e300])
    ),
    "now": st.just({}),
    "any": st.dictionaries(SAID, st.none() | st.lists(st.integers()) | SAID, max_size=2),
}
CALLS = st.sampled_from(sorted(ARGUMENTS)).flatmap(
    lambda name: st.tuples(st.just(name), ARGUMENTS[name])
)


def grammar(known, kind, tools=TOOLS, *, bound=None, one_call=False):
    tokenizer = tokenizer_with(kind, *MARKERS[known])
    names = {tool.function.name for tool in tools} if bound is None else bound
    return tokenizer, CallGrammar(known, tools, names, tokens_apart(tokenizer), one_call)


@cache
def matcher(known, kind, tools=(), *, may=False, **given):
    tokenizer, made = grammar(known, kind, tools or TOOLS, **given)
    rules = made.text_or_calls() if may else made.calls()
    return Matcher(tokenizer, lark.render_rules(rules))


def written(known, *calls):
    """Return calls in the format of a model family."""
    objects = [f'{{"name": {spaced(n)}, "{known.arguments}": {spaced(a)}}}' for n, a in calls]
    if known is HERMES:
        return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in objects)
    return f"[TOOL_CALLS] [{', '.join(objects)}]" if known is MISTRAL else "; ".join(objects)


def parsed(known, text, tools=TOOLS):
    parser = ToolCallParser(known, [tool.function.name for tool in tools])
    pieces = parser.feed(text, last=True)
    content = "".join(piece for piece in pieces if isinstance(piece, str))
    return content, [(p.name, p.arguments) for p in pieces if not isinstance(p, str)]


@pytest.mark.parametrize(("known", "kind"), KINDS)
@given(calls=st.lists(CALLS, min_size=1, max_size=3), data=st.data())
@settings(max_examples=25)
def test_valid_calls_are_accepted_in_every_tokenization(known, kind, calls, data):
    text = written(known, *calls)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    inside = [
        c for c in cuts if not any(m in text[max(0, c - 14) : c + 14] for m in MARKERS[known])
    ]
    assert matcher(known, kind).takes(text, inside)
    assert parsed(known, text) == ("", [(name, spaced(given)) for name, given in calls])


@pytest.mark.parametrize(("known", "kind"), KINDS)
@pytest.mark.parametrize(
    "wrong",
    [
        ("sub", {}),
        ("weathe", {"city": "Bonn"}),
        ("weather", {}),
        ("weather", {"city": 1}),
        ("weather", {"city": "Bonn", "more": 1}),
        ("weather2", {"a": 1, "b": "2"}),
        ("now", {"city": "Bonn"}),
        ("any", [1]),
    ],
)
def test_invalid_calls_are_not_accepted(known, kind, wrong):
    asked = matcher(known, kind)
    right = ("weather", {"city": "Bonn"})
    assert asked.takes(written(known, right))
    assert not asked.takes(written(known, wrong))
    assert not asked.takes(written(known, right, wrong))


@pytest.mark.parametrize(("known", "kind"), KINDS)
def test_no_text_is_accepted_if_a_call_is_required(known, kind):
    asked, call = matcher(known, kind), written(known, ("now", {}))
    for text in ("", "Well.", f"Well. {call}", f"{call} Done.", call[:-1], call.replace(": ", ":")):
        assert not asked.takes(text)
    assert asked.takes(call)


@pytest.mark.parametrize(("known", "kind"), KINDS)
@pytest.mark.parametrize("may", [False, True])
def test_parallel_tool_calls_false_allows_only_one_call(known, kind, may):
    asked = matcher(known, kind, may=may, one_call=True)
    calls = [("now", {}), ("weather", {"city": "Bonn"})]
    assert all(asked.takes(written(known, call)) for call in calls)
    assert not asked.takes(written(known, *calls))


TEXTS = ["", "Well. ", "a < b", " [x](y) ", "[1, 2]", "é\n", "(a; b)", "<tool", "[TOOL", "<|"]


@pytest.mark.parametrize(("known", "kind"), KINDS)
@pytest.mark.parametrize("one_call", [False, True])
def test_any_text_is_accepted_if_calls_are_optional(known, kind, one_call):
    asked = matcher(known, kind, may=True, one_call=one_call)
    for text in TEXTS:
        assert asked.takes(text), text


@pytest.mark.parametrize(("known", "kind"), KINDS)
@given(calls=st.lists(CALLS, max_size=3), data=st.data())
@settings(max_examples=15)
def test_an_optional_call_must_fit_its_schema(known, kind, calls, data):
    """In any text that the grammar accepts, calls to strict functions fit their schemas."""
    asked = matcher(known, kind, may=True, bound=frozenset({"weather"}))
    text = data.draw(st.sampled_from(TEXTS)) if known is HERMES else ""
    assert asked.takes(text + (written(known, *calls) if calls else ""))
    for wrong in ({}, {"city": 1}):
        call = written(known, ("weather", wrong))
        assert parsed(known, text + call)[1]
        assert not asked.takes(text + call)
    assert asked.takes(text + written(known, ("weather2", {"free": True})))


SPELLINGS = [
    *((HERMES, '<tool_call>{"name": "weather", "arguments": {}}', kind) for kind in (PLAIN, ADDED)),
    (MISTRAL, '[{"name": "weather", "arguments": {}}]', SPECIAL),
    (MISTRAL, ' [\n{"name": "weather", "arguments": {}}]', PLAIN),
    (MISTRAL, '[TOOL_CALLS]  [{"name": "weather", "arguments": {}}]', SPECIAL),
    (LLAMA, ' {"name": "weather", "parameters": {}}', SPECIAL),
    (LLAMA, '<|python_tag|> {"name": "weather", "parameters": {}}', PLAIN),
    (LLAMA, '{"parameters": {}, "name": "weather"}', PLAIN),
]


@pytest.mark.parametrize(("known", "text", "kind"), SPELLINGS)
@pytest.mark.parametrize("letters", [False, True])
def test_a_call_cannot_bypass_its_schema(known, text, kind, letters):
    """If the parser finds a call in a text, the call must fit its schema in every tokenization."""
    assert parsed(known, text)[1]
    cuts = range(len(text)) if letters else ()
    assert not matcher(known, kind, may=True).takes(text, cuts)


def test_arguments_are_an_object_even_if_the_schema_also_allows_null():
    asked = matcher.__wrapped__(
        HERMES, PLAIN, [tool("weather", CITY | {"type": ["object", "null"]})]
    )
    assert asked.takes(written(HERMES, ("weather", {"city": "Bonn"})))
    assert not asked.takes(written(HERMES, ("weather", None)))


def test_functions_can_have_any_name():
    odd = 'a"b\\c\x7f😀'
    asked = matcher.__wrapped__(HERMES, PLAIN, [tool(odd)])
    name = spaced(odd).replace("\\u007F", "\x7f")
    text = f'<tool_call>\n{{"name": {name}, "arguments": {{}}}}\n</tool_call>'
    assert asked.takes(text)
    assert parsed(HERMES, text) == ("", [(odd, "{}")])
