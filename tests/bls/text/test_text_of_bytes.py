"""Text is decoded correctly even if one character takes several tokens."""

import pytest
import tokenizer_kinds
from hypothesis import given
from hypothesis import strategies as st
from scripted import Target, Writes, decoding_of, ids, play, request_of

from tandem.bls.text import decode_with
from tandem.postprocessing.detokenizer import make_detokenizer

KINDS = {
    name: (tokenizer_kinds.KINDS[name](), "a \N{GRINNING FACE}\N{ROBOT FACE} b")
    for name in ("byte_level", "byte_fallback")
}
kinds = pytest.mark.parametrize("kind", KINDS)
each_way = pytest.mark.parametrize(
    "asked", [{}, {"stream": True}, {"stop_strings": ("zzz",)}, {"return_text_lengths": True}]
)


def answered(kind, prompt, tokens, **asked):
    """Return the text and the finish reason of an answer with these tokens."""
    tokenizer, _ = KINDS[kind]
    decode = decode_with(make_detokenizer(tokenizer, skip_special_tokens=True))
    request = request_of(
        prompt_ids=ids(*prompt), max_tokens=len(tokens), end_ids=(), drafter="none", **asked
    )
    target = Target(Writes(len(prompt), tokens), end_ids=())
    chunks = play(decoding_of(request), target, decode=decode)
    return "".join(chunk.text for chunk in chunks), chunks[-1].finish_reason


@kinds
@pytest.mark.parametrize("streams", [True, False])
def test_a_stop_string_matches_an_unfinished_character_at_the_end(kind, streams):
    tokenizer, text = KINDS[kind]
    half = tokenizer.encode(text.removesuffix(" b"), add_special_tokens=False).ids[:-1]
    shown = (
        make_detokenizer(tokenizer, skip_special_tokens=True)
        .decode_all(half)
        .partition("\ufffd")[0]
    )
    asked = {"stream": streams, "stop_strings": ("\ufffd",)}
    assert answered(kind, [5], half, **asked) == (shown, "stop")


@kinds
@each_way
@given(data=st.data())
def test_an_echoed_prompt_and_its_answer_are_decoded_together(kind, asked, data):
    tokenizer, text = KINDS[kind]
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    cut = data.draw(st.integers(1, len(tokens) - 1))
    detokenizer = make_detokenizer(tokenizer, skip_special_tokens=True)
    shown, _ = answered(kind, tokens[:cut], tokens[cut:], exclude_input_in_output=False, **asked)
    assert detokenizer.decode_complete(tokens[:cut]) + shown == text
