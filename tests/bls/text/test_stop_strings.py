"""Stop strings in streamed text are found immediately, in linear time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.bls.text import StopStrings

stops_ = st.lists(st.text("ab", min_size=1, max_size=6), max_size=5).map(tuple)
pieces_ = st.lists(st.text("abc", max_size=5), max_size=12)


def plainly(stops, pieces):
    """Search the whole text after each piece; return the newly shown text and whether it ended."""
    text, shown, shown_pieces = "", 0, []
    for piece in pieces:
        text += piece
        starts = [at for at in (text.find(stop) for stop in stops) if at >= 0]
        if starts:
            shown_pieces.append((text[shown : min(starts)], True))
            return shown_pieces
        held = next(
            n
            for n in range(len(text), -1, -1)
            if n == 0 or any(stop.startswith(text[-n:]) for stop in stops)
        )
        shown_pieces.append((text[shown : len(text) - held], False))
        shown = len(text) - held
    shown_pieces.append((text[shown:], False))
    return shown_pieces


@settings(max_examples=200)
@given(stops_, pieces_)
def test_text_that_may_begin_a_stop_string_is_withheld(stops, pieces):
    matched, shown_pieces = StopStrings(stops), []
    for piece in pieces:
        found = matched.would_find(piece)
        shown_pieces.append((matched.feed(piece), bool(matched.found)))
        assert found == (matched.found in {*stops} - {""})
        if found:
            assert matched.flush() == ""
            break
    else:
        shown_pieces.append((matched.flush(), False))
    assert shown_pieces == plainly(stops, pieces)


def test_checking_for_a_stop_string_does_not_consume_the_text():
    stops = StopStrings(("END",))
    assert stops.would_find("END")
    assert not stops.would_find("EN")
    assert stops.feed("D!") == "D!"
    assert not stops.found


def test_the_stop_string_that_begins_first_ends_the_text():
    stops = StopStrings(("b", "abc"))
    assert stops.feed("xabc") == "x"
    assert stops.found == "abc"


def test_the_matched_stop_string_is_reported():
    stops = StopStrings(("END", "</a>", "</a>\n"))
    assert [stops.feed(piece) for piece in ("one</", "a", ">\n")] == ["one", "", ""]
    assert stops.found == "</a>"


class Counted(dict):
    """Count lookups."""

    count = 0

    def get(self, *key):
        self.count += 1
        return super().get(*key)


@pytest.mark.parametrize(
    "stops", [tuple("a" * n + "b" for n in range(3_900, 4_000)), ("a" * 3_999 + "b",), ("ab",)]
)
def test_stop_strings_take_constant_time_per_character(stops):
    matched = StopStrings(stops)
    counted = matched._automaton._children = Counted(matched._automaton._children)
    shown = 0
    for _ in range(9_000):
        shown += len(matched.feed("a"))
    assert shown == 9_000 - max(len(stop) - 1 for stop in stops)
    assert counted.count <= 2 * 9_000


@pytest.mark.parametrize(("text", "found"), [("xb", "b"), ("ab", "a"), ("xabc", "a"), ("cb", "cb")])
def test_the_stop_string_that_ended_the_text_is_named(text, found):
    stops = StopStrings(("a", "ab", "b", "cb"))
    stops.feed(text)
    assert stops.found == found
