"""Guides for chat answers, which consist of optional reasoning, and content or tool calls."""

import json
import shutil

import pytest
import small_guides
from matching import ADDED, PLAIN, SPECIAL, Matcher, tokenizer_with, tokens_apart
from paths import TOKENIZER

from tandem.gateway.answers.guide import answer_guide
from tandem.gateway.errors import ApiError
from tandem.gateway.protocol.requests import ChatRequest
from tandem.gateway.tokenizer import ChatTokenizer
from tandem.guides.errors import GuideError

USER = {"role": "user", "content": "hi"}
MARKERS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "[TOOL_CALLS]")
THINKS, HERMES = "{{ '<think>' if never }}", "{{ '<tool_call>' if never }}"
MISTRAL, LLAMA = "{{ '[TOOL_CALLS]' if never }}", "{{ '<|python_tag|>' if never }}"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
ADD = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
STRICT = {"type": "function", "function": {**ADD["function"], "strict": True}}
JSON = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
GOOD = '{"a": 1}'
CALL = f'<tool_call>\n{{"name": "add", "arguments": {GOOD}}}\n</tool_call>'
LOOSE = CALL.replace(GOOD, "{}")


@pytest.fixture
def asked(tmp_path):
    """A function that returns the guide of a chat, and a function that creates its matcher."""

    def made(template, *, kind=ADDED, ends="", skips=False, opens=False, **given):
        shutil.copytree(TOKENIZER, tmp_path, dirs_exist_ok=True)
        known = tokenizer_with(kind, *MARKERS)
        (tmp_path / "tokenizer.json").write_text(known.to_str())
        (tmp_path / "chat_template.jinja").write_text(f"{template}{ends}")
        tokenizer = ChatTokenizer(tmp_path)
        assert tokenizer.tokens_apart == tokens_apart(known)
        body = ChatRequest.model_validate({"messages": [USER], **given})
        prompt = tokenizer.encode_chat([USER])
        guide = answer_guide(
            body, tokenizer, prompt, skips_special_tokens=skips, open_objects=opens
        )
        return guide, lambda: Matcher(known, guide.text)

    return made


@pytest.fixture
def guided(asked):
    """A function that returns a matcher for a chat's grammar, or a guide that has no grammar."""

    def made(template, **given):
        guide, matcher = asked(template, **given)
        return matcher() if guide is not None and guide.kind == "lark_grammar" else guide

    return made


@pytest.mark.parametrize("opens", [False, True])
def test_open_objects_applies_to_tool_schemas_and_response_schemas(guided, opens):
    silent = {name: value for name, value in SCHEMA.items() if name != "additionalProperties"}
    function = {"name": "add", "parameters": silent, "strict": True}
    tools = {"tools": [{"type": "function", "function": function}]}
    more = '{"a": 1, "b": 2}'
    assert guided(HERMES, **tools, opens=opens).takes(CALL.replace(GOOD, more)) == opens
    answer = {"guided_json": silent}
    assert guided(THINKS, **answer, opens=opens).takes(f"<think>\nSo\n</think>{more}") == opens
    assert not guided(HERMES, tools=[STRICT], opens=opens).takes(CALL.replace(GOOD, more))


WRONG = {"type": "object", "minProperties": 9}
BAD = {"type": "function", "function": {"name": "bad", "parameters": WRONG, "strict": True}}
UNKNOWN = {**BAD, "function": {**BAD["function"], "parameters": {"not": {}}}}
SAID_JSON = {"response_format": {"type": "json_schema", "json_schema": {"schema": WRONG}}}


@pytest.mark.parametrize(
    ("template", "given", "field", "reason"),
    [
        (HERMES, {"tools": [STRICT, BAD]}, "tools", "parameters of 'bad': minProp"),
        (HERMES, {"tools": [STRICT, BAD], **JSON}, "tools", "parameters of 'bad': minProp"),
        (HERMES, {"tools": [STRICT, UNKNOWN]}, "tools", "parameters of 'bad': Unimpl"),
        (HERMES, {"tools": [STRICT], **SAID_JSON}, "response_format", "minProp"),
        (HERMES + THINKS, {"tools": [BAD], **JSON}, "tools", "parameters of 'bad': minProp"),
        (HERMES + THINKS, {"tools": [ADD], **SAID_JSON}, "response_format", "minProp"),
        (THINKS, SAID_JSON, "response_format", "minProp"),
        (MISTRAL, {"tools": [BAD], "tool_choice": "required"}, "tools", "parameters of 'bad'"),
        (THINKS, {"guided_grammar": "start: a\nb: %json {}"}, "guided_grammar", "unknown name"),
    ],
)
def test_errors_name_the_invalid_field_and_function(asked, template, given, field, reason):
    guide, _ = asked(template, kind=PLAIN, **given)
    with pytest.raises(GuideError) as caught:
        small_guides.matcher(guide.kind, guide.text)
    assert guide.locate(str(caught.value))[0] == field
    assert guide.locate(str(caught.value))[1].startswith(reason)
    assert guide.locate("no text matches it") == (guide.field, "no text matches it")


@pytest.mark.parametrize("kind", [PLAIN, ADDED, SPECIAL])
@pytest.mark.parametrize(
    ("given", "right", "wrong"),
    [
        (JSON, GOOD, '{"a": "1"}'),
        ({"guided_regex": "a/b+"}, "a/bb", "a/"),
        ({"guided_choice": ["yes", 'a "no"']}, 'a "no"', "no"),
        ({"guided_grammar": 'start: "a" b\nb: /[0-9]/'}, "a1", "a"),
    ],
)
def test_a_guide_applies_only_after_reasoning(guided, kind, given, right, wrong):
    asked = guided(THINKS, kind=kind, **given)
    thoughts = "<think>\nSo </th {} so\n</think>"
    for space in ("", "\n\n"):
        assert asked.takes(thoughts + space + right)
        assert not asked.takes(thoughts + space + wrong)
    assert asked.takes(right)  # reasoning is optional
    assert not asked.takes(wrong)
    assert asked.goes_on("<think>\nSo")
    assert not asked.takes(thoughts)
    assert not asked.goes_on(f"{thoughts}\n\n\n")
    assert not asked.goes_on("So")


@pytest.mark.parametrize("regex", ["a\\", "\\", "a/\\\\\\"])
def test_a_regex_ending_in_a_backslash_is_rejected_after_reasoning_too(asked, regex):
    with pytest.raises(ApiError) as caught:
        asked(THINKS, guided_regex=regex)
    with pytest.raises(GuideError) as alone:
        small_guides.matcher("regex", regex)
    error = caught.value
    assert error.message == f"guided_regex: {alone.value}"
    assert (error.status, error.param, error.code) == (400, "guided_regex", "invalid_guide")


def test_a_regex_can_end_in_an_escaped_backslash(guided):
    assert guided(THINKS, guided_regex="a\\\\").takes("a\\")


@pytest.mark.parametrize("kind", [PLAIN, ADDED, SPECIAL])
def test_reasoning_that_begins_in_the_prompt_must_end_before_the_answer(guided, kind):
    asked = guided(THINKS, kind=kind, ends="{{ '<think>\\n' }}", **JSON)
    assert asked.takes(f"So.</think>\n\n{GOOD}")
    assert not asked.takes(GOOD)
    assert not asked.takes(f"So.</think>{GOOD}</think>{GOOD}")


def test_a_prompt_with_complete_reasoning_does_not_change_the_guide(guided):
    guide = guided(THINKS, ends="{{ '<think>\\n\\n</think>\\n\\n' }}", **JSON)
    assert (guide.kind, json.loads(guide.text)) == ("json_schema", SCHEMA)
    assert guided("", **JSON) == guide
    assert guided(THINKS) is None


def test_ebnf_is_rejected_after_reasoning(guided):
    ebnf = {"guided_grammar": 'root ::= "a"'}
    assert guided("", **ebnf).kind == "ebnf_grammar"
    with pytest.raises(ApiError, match="a model that reasons needs the grammar in Lark") as error:
        guided(THINKS, **ebnf)
    assert error.value.param == "guided_grammar"


REQUIRED = {"tools": [ADD], "tool_choice": "required"}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_required_call_must_fit_its_schema(guided, choice):
    asked = guided(HERMES, tools=[ADD], tool_choice=choice)
    assert asked.takes(CALL)
    assert not asked.takes("Well.")
    assert not asked.takes(LOOSE)
    assert not asked.goes_on("<think>")
    assert asked.takes(f"{CALL}\n{CALL}") == (choice == "required")
    assert not guided(HERMES, **REQUIRED, parallel_tool_calls=False).takes(f"{CALL}\n{CALL}")


def test_only_the_requested_tool_can_be_called(guided):
    other = {"type": "function", "function": {"name": "sub"}}
    choice = {"type": "function", "function": {"name": "add"}}
    asked = guided(HERMES, tools=[other, ADD], tool_choice=choice)
    assert asked.takes(CALL)
    assert not asked.goes_on('<tool_call>\n{"name": "sub"')


def test_optional_calls_of_strict_functions_must_fit_their_schemas(guided):
    assert guided(HERMES, tools=[ADD]) is None
    assert guided(HERMES, tools=[STRICT], tool_choice="none") is None
    other = {"type": "function", "function": {"name": "sub", "parameters": SCHEMA}}
    asked = guided(HERMES, tools=[STRICT, other])
    assert asked.takes("Well.")
    assert asked.takes(f"Well.\n{CALL}\n{LOOSE.replace('add', 'sub')}")
    assert not asked.takes(LOOSE)


def test_answers_with_tools_and_a_schema_are_json_or_calls(guided):
    asked = guided(HERMES, tools=[ADD], **JSON)
    assert asked.takes(GOOD)
    assert asked.takes(LOOSE)
    assert not asked.takes("Well.")
    assert not asked.takes("{}")
    assert not guided(HERMES, tools=[STRICT], **JSON).takes(LOOSE)
    assert not guided(HERMES, **REQUIRED, **JSON).takes(GOOD)
    listed = f'[TOOL_CALLS] [{{"name": "add", "arguments": {GOOD}}}]'
    assert guided(MISTRAL, kind=SPECIAL, tools=[ADD], **JSON).takes(listed)
    assert guided(MISTRAL, kind=PLAIN, tools=[ADD], **JSON).takes(GOOD)


@pytest.mark.parametrize("kind", [ADDED, PLAIN])
def test_reasoning_can_precede_required_calls(guided, kind):
    template = THINKS + HERMES
    thoughts = (
        "<think>\nI call <tool_call>\n{}</think>\n\n" if kind == PLAIN else "<think>a</think>"
    )
    asked = guided(template, kind=kind, **REQUIRED)
    assert asked.takes(thoughts + CALL)
    assert asked.takes(CALL)
    assert not asked.takes(thoughts)
    begun = guided(template, kind=kind, ends="{{ '<think>' }}", tools=[STRICT])
    assert begun.takes(f"So.</think>Well. {CALL}")
    assert not begun.takes("So.")
    assert not begun.takes(f"So.</think>{LOOSE}")
    either = guided(template, kind=kind, tools=[ADD], **JSON)
    assert all(either.takes(thoughts + answer) for answer in (CALL, GOOD))


def test_strict_functions_require_think_tags_that_are_single_tokens(guided):
    template = THINKS + HERMES
    assert guided(template, kind=ADDED, tools=[STRICT]).takes(f"<think>So.</think>Well. {CALL}")
    with pytest.raises(ApiError, match="strict needs <think> to be one token"):
        guided(template, kind=PLAIN, tools=[STRICT])


@pytest.mark.parametrize(
    ("template", "kind", "given", "line"),
    [
        (LLAMA, SPECIAL, {"tools": [ADD], **JSON}, "this model writes tool calls as plain JSON"),
        (
            HERMES,
            ADDED,
            {"tools": [ADD], "guided_regex": "a"},
            "with tools, only a JSON schema can",
        ),
        (HERMES, ADDED, {**REQUIRED, "guided_choice": ["a"]}, "with tools, only a JSON schema can"),
    ],
)
def test_combinations_that_have_no_grammar_are_rejected(guided, template, kind, given, line):
    with pytest.raises(ApiError, match=line) as rejected:
        guided(template, kind=kind, **given)
    assert rejected.value.code == "unsupported_field"
    assert rejected.value.param in given


@pytest.mark.parametrize(
    ("template", "given", "marker"),
    [
        (HERMES, REQUIRED, "<tool_call>"),
        (THINKS, JSON, "<think>"),
        (THINKS + LLAMA, REQUIRED, "<t"),
    ],
)
def test_guides_are_rejected_if_their_special_tokens_are_skipped(guided, template, given, marker):
    guided(template, kind=SPECIAL, **given)
    guided(template, kind=ADDED, skips=True, **given)
    guided("", kind=SPECIAL, skips=True, **JSON)
    guided(MISTRAL, kind=SPECIAL, skips=True, **REQUIRED)
    with pytest.raises(
        ApiError, match=f"this model's answers omit the special token {marker}"
    ) as rejected:
        guided(template, kind=SPECIAL, skips=True, **given)
    assert rejected.value.param in {"tools", "response_format"}


@pytest.mark.parametrize("kind", [PLAIN, ADDED, SPECIAL])
@pytest.mark.parametrize("ends", ["", "{{ '<think>' }}"])
def test_the_end_of_reasoning_is_recognized_in_every_tokenization(guided, kind, ends):
    asked = guided(THINKS, kind=kind, ends=ends, **JSON)
    text = f"{'' if ends else '<think>'}So.</thi"
    assert asked.goes_on(text)
    begin = len(text) - len("</thi")
    whole = f"{text}nk> free</think>{GOOD}"
    assert not asked.takes(whole, range(begin, begin + len("</think>")))


def test_a_required_llama_call_replaces_the_json_answer(guided):
    call = f'{{"name": "add", "parameters": {GOOD}}}'
    asked = guided(LLAMA, kind=SPECIAL, **REQUIRED, **JSON)
    assert asked.takes(call)
    assert asked.takes(f"<|python_tag|>{call}; {call}")
    assert not asked.takes(GOOD)
