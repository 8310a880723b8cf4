"""The parser finds tool calls in the output, no matter how it is split into chunks."""

import json
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.gateway.tool_calls import FORMATS, CallDelta, ToolCallParser, detect_format

BY_NAME = {known.name: known for known in FORMATS}
HERMES, MISTRAL, LLAMA = (BY_NAME[name] for name in ("hermes", "mistral", "llama3"))
NAMES = ("weather", "add")


def parsed(known, *chunks):
    """Return the content and the calls, as [name, arguments], of an answer in chunks."""
    parser = ToolCallParser(known, NAMES)
    content, calls = "", []
    for piece in [*chain.from_iterable(map(parser.feed, chunks)), *parser.feed("", last=True)]:
        if isinstance(piece, str):
            content += piece
            continue
        if piece.name is not None:
            assert piece.index == len(calls)
            calls.append([piece.name, ""])
        assert piece.index == len(calls) - 1
        calls[-1][1] += piece.arguments
    assert parser.has_calls == bool(calls)
    return content, calls


WEATHER = ["weather", '{"city": "Bonn"}']
ADD = ["add", '{"a": 1, "b": [2, {"c": "}"}]}']


def hermes(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def llama(name, arguments):
    return f'{{"name": "{name}", "parameters": {arguments}}}'


def mistral(name, arguments):
    return f'{{"name": "{name}", "arguments": {arguments}}}'


@pytest.mark.parametrize(
    ("known", "text", "content", "calls"),
    [
        (HERMES, "Hello there. ", "Hello there. ", []),
        (HERMES, hermes(*WEATHER), "", [WEATHER]),
        (HERMES, f"I look.\n\n{hermes(*WEATHER)}\n", "I look.", [WEATHER]),
        (HERMES, f"{hermes(*WEATHER)}\n{hermes(*ADD)}", "", [WEATHER, ADD]),
        (HERMES, f"{hermes(*WEATHER)} And so on", " And so on", [WEATHER]),
        (HERMES, '<tool_call>{"name": "add"}</tool_call>', "", [["add", "{}"]]),
        (HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "add"}', "", [["add", '{"a": 1}']]),
        (
            HERMES,
            '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}',
            "",
            [["add", '{"a": 1}']],
        ),
        (HERMES, '<tool_call>{"name": "x", "arguments": {"a": "', "", [["x", '{"a": "']]),
        (HERMES, '<tool_call>{"name": "x", "n": 1, "arguments": {}}', "", [["x", "{}"]]),
        (HERMES, '<tool_call>{"name": "x", "n": [1, 2], "arguments": {}}', "", [["x", "{}"]]),
        (
            HERMES,
            '<tool_call>{"n": {"a": 1}, "name": "x", "arguments": {"b": 2}}',
            "",
            [["x", '{"b": 2}']],
        ),
        (HERMES, hermes(*ADD) + " <tool", " <tool", [ADD]),
        # Different spellings of empty arguments.
        *(
            (HERMES, hermes("x", nothing), "", [["x", "{}"]])
            for nothing in ("null", '""', '" "', "{}", '"{}"')
        ),
        # Arguments must be an object.
        *(
            (HERMES, hermes("x", other), hermes("x", other), [])
            for other in (
                *('"abc"', '"[1]"', '"3"', "3", "[1, 2]", "true", '"{\\"a\\": 1"', "NaN"),
                "[" * 5000 + "]" * 5000,
            )
        ),
        # Models confuse the keys of the formats, and add other keys.
        (HERMES, '<tool_call>{"name": "add", "parameters": {"a": 1}}', "", [["add", '{"a": 1}']]),
        (HERMES, f"<tool_call>{llama(*ADD)}</tool_call>\n{hermes(*WEATHER)}", "", [ADD, WEATHER]),
        (MISTRAL, f"[{llama(*ADD)}]", "", [ADD]),
        (LLAMA, mistral(*ADD), "", [ADD]),
        (LLAMA, f'{{"type": "function", {llama(*ADD)[1:]}', "", [ADD]),
        (
            MISTRAL,
            f'[{mistral(*ADD)[:-1]}, "id": "a}}1"}}, {mistral(*WEATHER)}]',
            "",
            [ADD, WEATHER],
        ),
        (
            HERMES,
            '<tool_call>{"name": "x", "args": {}}',
            '<tool_call>{"name": "x", "args": {}}',
            [],
        ),
        (LLAMA, '{"name": "add", "args": {}}', '{"name": "add", "args": {}}', []),
        # Extra braces aren't part of the content.
        *(
            (HERMES, hermes("add", '{"a": 1}' + more) + " So", " So", [["add", '{"a": 1}']])
            for more in ("}", "}}", "}\n}")
        ),
        (LLAMA, f"{llama(*ADD)}}}; {llama(*WEATHER)}}} So", " So", [ADD, WEATHER]),
        (MISTRAL, f"[{mistral(*ADD)}}}]", "", [ADD]),
        (HERMES, '<tool_call>{"name": "x",}', '<tool_call>{"name": "x",}', []),
        (HERMES, hermes(*ADD) + "</tool_call>", "</tool_call>", [ADD]),
        (HERMES, '<tool_call>{"na', '<tool_call>{"na', []),
        (HERMES, "<tool_call>{'name': 'x'}", "<tool_call>{'name': 'x'}", []),
        (HERMES, '<tool_call>{"name": 1}', '<tool_call>{"name": 1}', []),
        (HERMES, hermes("\\ud83d\\ude00", "{}"), "", [["\U0001f600", "{}"]]),
        *(
            (HERMES, text, text, [])
            for text in (
                hermes("\\ud800", "{}"),
                hermes("add", '"\\ud800"'),
                '<tool_call>{"\\ud800": 1, "name": "add", "arguments": {}}',
                '<tool_call>{"name": "add", "arguments": ]}',
                '<tool_call>{"name": "add", "arguments": }',
                '<tool_call>{"name": "add", "arguments": , "n": 1}',
                '<tool_call>{"name": "add", "arguments": : 1}',
            )
        ),
        (HERMES, '<tool_call>{"arguments": {}}', '<tool_call>{"arguments": {}}', []),
        (HERMES, "<tool_call><tool_call>{}", "<tool_call><tool_call>{}", []),
        (HERMES, "a < b <tool <tool_call", "a < b <tool <tool_call", []),
        (HERMES, hermes("add", '{"s": "<tool_call>"}'), "", [["add", '{"s": "<tool_call>"}']]),
        (HERMES, hermes("add", '{"s": "\\"}"}'), "", [["add", '{"s": "\\"}"}']]),
        (HERMES, "<tool_call>" + hermes(*ADD), "<tool_call>", [ADD]),
        (HERMES, '<tool_call>{"name": "add", "arguments": {}} x', " x", [["add", "{}"]]),
        (HERMES, '<tool_call>{"name": "add", "arguments": {} x', " x", [["add", "{}"]]),
        # A brace is missing. The markup after it isn't part of the content.
        (
            HERMES,
            '<tool_call>\n{"name": "add", "arguments": {"a": 1}\n</tool_call> So',
            " So",
            [["add", '{"a": 1}']],
        ),
        (MISTRAL, '[{"name": "add", "arguments": {"a": 1}] So', " So", [["add", '{"a": 1}']]),
        (
            HERMES,
            '<tool_call>{"name": "add", "arguments": {"a": 1</tool_call> So',
            " So",
            [["add", '{"a": 1']],
        ),
        (HERMES, hermes("add", '{"a": "</tool_call>"}'), "", [["add", '{"a": "</tool_call>"}']]),
        *(
            (HERMES, hermes("add", broken), hermes("add", broken), [])
            for broken in ('x {"a": 1}', "tru", "[1, }]", "01")
        ),
        (LLAMA, llama("add", "garbage"), llama("add", "garbage"), []),
        *(
            (HERMES, hermes("add", f'{{"a": 1}}, "arguments": {again}'), "", [["add", '{"a": 1}']])
            for again in ('{"b": 2}', '"{}"', "3")
        ),
        (LLAMA, llama(*WEATHER), "", [WEATHER]),
        (LLAMA, f"<|python_tag|>{llama(*WEATHER)}; {llama(*ADD)}", "", [WEATHER, ADD]),
        (LLAMA, f"\n{llama(*WEATHER)}\n{llama(*ADD)}", "", [WEATHER, ADD]),
        (LLAMA, f"So: {llama(*WEATHER)}", f"So: {llama(*WEATHER)}", []),
        (LLAMA, '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', []),
        (LLAMA, '{"name": "add", "age": 3}', '{"name": "add", "age": 3}', []),
        (LLAMA, llama("sub", "{}"), llama("sub", "{}"), []),
        (LLAMA, f"{llama(*ADD)}; no", "; no", [ADD]),
        (LLAMA, f"{llama(*ADD)} done", " done", [ADD]),
        (LLAMA, " { } ", " { } ", []),
        (MISTRAL, f"[{mistral(*WEATHER)}, {mistral(*ADD)}]", "", [WEATHER, ADD]),
        (MISTRAL, f"[TOOL_CALLS] [{mistral(*WEATHER)}]", "", [WEATHER]),
        (MISTRAL, "[1, 2]", "[1, 2]", []),
        (MISTRAL, "[TOOL", "[TOOL", []),
        (MISTRAL, f"[{mistral(*ADD)}] and", " and", [ADD]),
        (MISTRAL, '[{"name": "Bob", "arguments": {}}]', '[{"name": "Bob", "arguments": {}}]', []),
    ],
)
def test_tool_calls_are_separated_from_text(known, text, content, calls):
    assert parsed(known, text) == (content, calls)
    assert parsed(known, *text) == (content, calls)


PIECES = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[", "]", ",", ";", " "),
        *("{", "}", '"', "\\", ":", "\n", "name", "x", "1", '{"name": "add", ', '"arguments": '),
        *('"parameters": ', '"name": "weather"', '{"a": [1, {"b": "}"}]}', "text", "<", "é"),
        hermes(*WEATHER),
        llama(*ADD),
        mistral(*ADD),
    ]
)
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@given(known=st.sampled_from(FORMATS), text=TEXTS, data=st.data())
def test_chunking_does_not_change_the_parsed_calls(known, text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parsed(known, *chunks) == parsed(known, text)


@given(known=st.sampled_from(FORMATS), text=TEXTS)
def test_text_without_a_call_is_unchanged(known, text):
    content, calls = parsed(known, text)
    assert calls or content == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40)
@given(
    known=st.sampled_from([HERMES, LLAMA, MISTRAL]),
    calls=st.lists(
        st.tuples(st.sampled_from(NAMES), st.dictionaries(st.text(), JSON, max_size=3)),
        min_size=1,
        max_size=3,
    ),
    ascii_only=st.booleans(),
)
def test_arguments_of_any_json_type_are_returned(known, calls, ascii_only):
    written = [
        json.dumps({"name": name, known.arguments: given}, ensure_ascii=ascii_only)
        for name, given in calls
    ]
    text = {
        HERMES: "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in written),
        LLAMA: "; ".join(written),
        MISTRAL: f"[{', '.join(written)}]",
    }[known]
    content, found = parsed(known, text)
    assert content == ""
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls


def test_arguments_are_streamed_as_they_arrive():
    parser = ToolCallParser(HERMES, NAMES)
    assert parser.feed('<tool_call>{"name": "add", "arguments"') == []
    assert parser.feed(': {"a"') == [CallDelta(0, "add", '{"a"')]
    assert parser.feed(": 1}}</tool_call>") == [CallDelta(0, None, ": 1}")]


def test_text_outside_calls_is_streamed_immediately():
    parser = ToolCallParser(HERMES, NAMES)
    assert [parser.feed(text) for text in ("Hel", "lo", " a <", "b")] == [
        *(["Hel"], ["lo"], [" a"], [" <b"]),
    ]


@pytest.mark.parametrize(
    ("known", "text", "cut"),
    [
        (LLAMA, "{}; ", False),
        (LLAMA, '{}; {"na', True),
        (LLAMA, "{}", False),
        (MISTRAL, '[{}, {"name": "ad', True),
        (MISTRAL, "[{}]", False),
        (HERMES, "<tool_call>{}</tool_call><tool_call>", True),
        (HERMES, "<tool_call>{}</tool_call> so", False),
    ],
)
def test_the_parser_reports_whether_a_call_is_incomplete(known, text, cut):
    parser = ToolCallParser(known, NAMES)
    parser.feed(text.replace("{}", (llama if known is LLAMA else mistral)(*WEATHER), 1))
    assert (parser.has_calls, parser.in_call) == (True, cut)


LLAMA_3_2 = """{{- 'Respond in the format {"name": function name, "parameters": \
dictionary of argument name and its value}.' }}""".replace("\\\n", "")


@pytest.mark.parametrize(
    ("template", "known"),
    [
        ("{{ '<tool_call>' }}", HERMES),
        ("[TOOL_CALLS]", MISTRAL),
        ("{{ '<|python_tag|>' }}", LLAMA),
        (LLAMA_3_2, LLAMA),
        (f"{LLAMA_3_2}{{{{ '<tool_call>' }}}}", HERMES),
        ("{{ messages }}", None),
    ],
)
def test_the_call_format_is_detected_from_the_template(template, known):
    assert detect_format(template) is known
