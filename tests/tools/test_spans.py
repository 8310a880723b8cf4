"""Accepted text and the target's own are distinguished, whatever a chunk cuts through."""

import codecs

from hypothesis import given
from hypothesis import strategies as st

from tandem.tools.client.client import AnswerChunk, AnswerTotals
from tandem.tools.client.spans import Spans


def complete_texts(rows):
    """Every id is a byte."""
    return [codecs.utf_8_decode(bytes(row), "replace", False)[0] for row in rows]


def split(*chunks):
    """Split chunks given as (text, bytes of its tokens, accepted so far, rounds so far)."""
    spans = Spans(complete_texts)
    return [
        [
            tuple(p)
            for p in spans.split(
                AnswerChunk(text, list(ids), AnswerTotals(rounds, 0, accepted), None, 0)
            )
        ]
        for text, ids, accepted, rounds in chunks
    ]


def test_accepted_tokens_come_before_the_targets_own():
    assert split(("abc", b"abc", 2, 1), ("de", b"de", 3, 2)) == [
        [("ab", True), ("c", False)],
        [("d", True), ("e", False)],
    ]


def test_text_is_the_targets_own_when_nothing_was_drafted():
    assert split(("ab", b"ab", 0, 2)) == [[("ab", False)]]


def test_accepted_end_of_sequence_has_no_token_to_show():
    assert split(("ab", b"ab", 3, 1)) == [[("ab", True)]]


def test_character_belongs_to_the_token_that_completes_it():
    euro = "€".encode()
    assert split(("a", b"a" + euro[:1], 1, 1), ("€b", euro[1:] + b"b", 3, 2)) == [
        [("a", True)],
        [("€", True), ("b", False)],
    ]
    assert split(("", euro[:2], 2, 1), ("€", euro[2:], 2, 2)) == [[], [("€", False)]]


def test_text_keeps_its_origin_when_it_was_held_back():
    assert split(("a", b"abc", 3, 1), ("bcd", b"d", 3, 2)) == [
        [("a", True)],
        [("bc", True), ("d", False)],
    ]


def test_rest_of_a_text_is_shown_when_it_was_never_complete():
    assert split(("a\ufffd", b"a\xe2", 1, 1)) == [[("a", True), ("\ufffd", False)]]


def test_chunk_without_tokens_flushes_what_was_held_back():
    assert split(("", b"ab", 1, 1), ("ab", b"", 1, 2)) == [[], [("a", True), ("b", False)]]


@given(st.text(max_size=30), st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), max_size=40))
def test_pieces_join_to_the_text(text, cuts):
    spans, shown, at, accepted, joined = Spans(complete_texts), 0, 0, 0, ""
    data = text.encode()
    for length, kept in [*cuts, (len(data) + 1, 0)]:
        ids = list(data[at : at + length])
        at += len(ids)
        accepted += min(kept, len(ids))
        end = len(complete_texts([data[:at]])[0])
        chunk = AnswerChunk(text[shown:end], ids, AnswerTotals(0, 0, accepted), None, 0)
        shown = end
        joined += "".join(span.text for span in spans.split(chunk))
    assert joined == text
