"""Accepted, forced and target tokens have separate spans, for any split into chunks."""

from hypothesis import given
from hypothesis import strategies as st

from tandem.contract.entry import KINDS
from tandem.tools.client.answer import AnswerChunk, AnswerTotals
from tandem.tools.client.terminal import Spans


def chunk_of(text, *tokens):
    """Return a chunk with the given text. tokens: (kind, length of the text) of each token."""
    kinds = [KINDS.index(kind) for kind, _ in tokens]
    lengths = [length for _, length in tokens]
    ids = list(range(len(tokens)))
    return AnswerChunk(text, ids, AnswerTotals(), None, 0, kinds=kinds, text_lengths=lengths)


def split(*chunks):
    spans = Spans()
    return [[tuple(span) for span in spans.split(chunk_of(*chunk))] for chunk in chunks]


def test_adjacent_tokens_of_the_same_kind_form_a_span():
    first = ("abc", ("accepted", 1), ("accepted", 1), ("correction", 1))
    assert split(first, ("de", ("accepted", 1), ("bonus", 1))) == [
        [("ab", "accepted"), ("c", None)],
        [("d", "accepted"), ("e", None)],
    ]
    assert split(("ab", ("plain", 1), ("plain", 1))) == [[("ab", None)]]


def test_forced_text_has_its_own_span():
    tokens = [("forced", 1), ("forced", 1), ("correction", 1), ("accepted", 1), ("forced", 1)]
    assert split(("abcde", *tokens)) == [
        [("ab", "forced"), ("c", None), ("d", "accepted"), ("e", "forced")],
    ]


def test_withheld_text_keeps_the_kind_of_its_tokens():
    first = ("a", ("accepted", 2), ("accepted", 1))
    assert split(first, ("bcd", ("bonus", 1))) == [
        [("a", "accepted")],
        [("bc", "accepted"), ("d", None)],
    ]
    assert split(("", ("accepted", 1), ("bonus", 1)), ("ab",)) == [
        [],
        [("a", "accepted"), ("b", None)],
    ]


def test_a_character_belongs_to_the_token_that_completes_it():
    assert split(("€", ("accepted", 0), ("correction", 1))) == [[("€", None)]]


@given(st.text(max_size=30), st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 4))))
def test_spans_join_to_the_text(text, tokens):
    [spans] = split((text, *tokens))
    assert "".join(piece for piece, _ in spans) == text
