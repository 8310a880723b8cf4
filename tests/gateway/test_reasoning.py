"""Reasoning is separated from the answer, no matter how the text is split into chunks."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import TEMPLATES

from tandem.gateway.answers.reasoning import ReasoningSplitter
from tandem.gateway.protocol.messages import Message

from .conftest import events

TEMPLATE = TEMPLATES / "thinking.jinja"


def split(chunks, *, begun=False):
    """Return the reasoning and the answer in a text that arrives in chunks."""
    splitter = ReasoningSplitter(begun=begun)
    found = [*map(splitter.feed, chunks), splitter.feed("", last=True)]
    return "".join(new.reasoning for new in found), "".join(new.content for new in found)


@pytest.mark.parametrize(
    ("text", "begun", "reasoning", "content"),
    [
        ("<think>\nWell. So\n</think>\n\nYes. ", False, "Well. So", "Yes. "),
        (" \n<think>a</think>b", False, "a", "b"),
        ("a < b </think> c", True, "a < b", "c"),
        ("a", True, "a", ""),
        ("a </thi", True, "a </thi", ""),
        ("a \n", True, "a", ""),
        ("</think>b", True, "", "b"),
        ("<think></think>", False, "", ""),
        (" Yes <think>a</think>", False, "", " Yes <think>a</think>"),
        ("<thin", False, "", "<thin"),
        ("<thinking", False, "", "<thinking"),
        (" ", False, "", " "),
        ("", False, "", ""),
        ("a</think>b</think>", True, "a", "b</think>"),
        ("<<think>a", True, "<<think>a", ""),
        ("<think>\nWell.</think>Yes.", True, "Well.", "Yes."),
        ("\n<think>a", True, "a", ""),
        ("<thin", True, "<thin", ""),
        (" a <think> b</think>", True, "a <think> b", ""),
    ],
)
def test_reasoning_is_separated_from_the_answer(text, begun, reasoning, content):
    assert split([text], begun=begun) == (reasoning, content)
    assert split(text, begun=begun) == (reasoning, content)


PIECES = st.sampled_from(["<think>", "</think>", "<", "/", "think", "</", ">", " ", "\n", "a", "b"])
TEXTS = st.lists(PIECES, max_size=10).map("".join)


@given(text=TEXTS, begun=st.booleans(), data=st.data())
def test_chunking_does_not_change_how_reasoning_is_split(text, begun, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(chunks, begun=begun) == split([text], begun=begun)


def test_reasoning_is_streamed_as_it_arrives():
    splitter = ReasoningSplitter(begun=False)
    got = [splitter.feed(text) for text in ("<thi", "nk> We", "ll. ", "No", "</", "think>", " Yes")]
    assert [tuple(new) for new in got] == [
        *[("", ""), ("We", ""), ("ll.", ""), (" No", ""), ("", ""), ("", ""), ("", "Yes")],
    ]


@pytest.fixture
def chat(chat):
    """The general `chat`, with a template for reasoning."""
    return partial(chat, template=TEMPLATE)


@pytest.mark.anyio
async def test_a_message_contains_reasoning_in_a_separate_field(chat):
    message = (await chat("<think>\nWell.\n</think>\n\nYes.")).json()["choices"][0]["message"]
    assert message["reasoning_content"] == message["reasoning"] == "Well."
    assert message["content"] == "Yes."


@pytest.mark.anyio
async def test_incomplete_reasoning_has_no_content(chat):
    choice = (await chat("<think>We", finish_reason="length")).json()["choices"][0]
    assert choice["message"]["reasoning_content"] == "We"
    assert choice["message"]["content"] is None


@pytest.mark.anyio
async def test_a_stream_sends_reasoning_first(chat):
    chunks = events(await chat("<think>We", "ll.</think> Y", "es.", stream=True))
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": None, "reasoning": "We", "reasoning_content": "We"},
        {"content": "Y", "reasoning": "ll.", "reasoning_content": "ll."},
        {"content": "es."},
    ]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("content", ["Yes.", None])
def test_reasoning_can_be_sent_back_in_either_field(name, content):
    message = Message.model_validate({"role": "assistant", "content": content, name: "Well."})
    assert message.for_template == {
        "role": "assistant",
        "content": content or "",
        "reasoning_content": "Well.",
    }


@pytest.mark.anyio
async def test_reasoning_can_begin_in_the_prompt(chat, tmp_path):
    begins = tmp_path / "begins.jinja"
    begins.write_text(TEMPLATE.read_text() + "{{ '<think>\\n' }}")
    message = (await chat("Well.</think>Yes.", template=begins)).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Well.", "Yes.")


@pytest.mark.anyio
async def test_think_tags_are_plain_text_if_the_template_has_no_reasoning(chat, tokenizer_folder):
    plain = tokenizer_folder / "chat_template.jinja"
    message = (await chat("<think>a</think>b", template=plain)).json()["choices"][0]["message"]
    assert message["content"] == "<think>a</think>b"
