"""Each round decodes only the new tokens and a few tokens before them."""

import numpy as np
import pytest
from scripted import decoded, ids, request_of, text_of

from tandem.bls import text
from tandem.bls.text import IncrementalDetokenizer


def fed(tokens, *, stops=(), stream=True):
    """Decode rounds of tokens; return each round's text, kept tokens and detokenizer call."""
    so_far = IncrementalDetokenizer(request_of(stop_strings=stops, stream=stream))
    windows, texts, kept = [], [], []

    def decode(window, context_length, **options):
        windows.append((window.tolist(), context_length))
        return decoded(window, context_length, **options)

    for round_ in tokens:
        shown, count, _ = so_far.extend(ids(*round_), decode)
        texts.append(shown)
        kept.append(count)
    return so_far, decode, texts, kept, windows


def test_each_round_decodes_only_recent_ids_and_the_new_ones():
    # ids 7 and 6 have no text
    *_, texts, kept, windows = fed([[0, 1], [2], [7], [6], [3]])
    assert texts == ["ab", "ab", "", "", "ba"]
    assert kept == [2, 1, 1, 1, 1]
    assert windows == [([0, 1], 0), ([0, 1, 2], 2), ([2, 7], 1), ([2, 7, 6], 2), ([2, 7, 6, 3], 3)]


def test_without_streaming_or_stop_strings_text_is_decoded_once():
    so_far, decode, texts, kept, windows = fed([[0, 1], [2]], stream=False)
    assert (texts, kept, windows) == (["", ""], [2, 1], [])
    assert so_far.finish(ids(0, 1, 2), decode) == "abab"
    assert windows == [([0, 1, 2], None)]


def test_text_that_could_begin_a_stop_string_is_sent_at_the_end():
    so_far, decode, texts, *_ = fed([[0, 1], [0]], stops=("aba!",))
    assert texts == ["", ""]
    assert so_far.finish(ids(0, 1, 0), decode) == "aba"


def test_no_text_follows_a_stop_string():
    so_far, decode, texts, kept, _ = fed([[4, 0, 1, 0, 1]], stops=("ba",))
    assert (texts, kept) == ([" a"], [4])
    assert so_far.stop_string
    assert so_far.finish(ids(4, 0, 1, 0), decode) == ""


def test_the_answer_ends_with_the_token_that_completes_a_stop_string():
    *_, texts, kept, windows = fed([[0], [0, 0, 1, 0, 0]], stops=("ba",))
    assert (texts, kept) == (["a", "aa"], [1, 4])
    assert windows == [
        ([0], 0),
        ([0, 0, 0, 1, 0, 0], 1),
        ([0, 0], 1),
        ([0, 0, 0], 1),
        ([0, 0, 0, 1], 1),
        ([0, 0, 0, 1, 0], 1),
    ]


@pytest.mark.parametrize("stream", [True, False])
def test_the_last_token_of_a_round_may_complete_a_stop_string(stream):
    so_far, _, texts, kept, _ = fed([[0], [1, 0]], stops=("ba",), stream=stream)
    assert ("".join(texts), kept, so_far.stop_string) == ("a", [1, 2], "ba")


def test_an_answer_of_one_token_has_a_text():
    so_far, decode, *_ = fed([[0]], stream=False)
    assert so_far.finish(ids(0), decode) == "a"


@pytest.mark.parametrize("count", [10, 2_000])
def test_detokenizing_takes_linear_time(monkeypatch, count):
    copied = []

    def counting(arrays):
        joined = np.concatenate(arrays)
        copied.append(len(joined))
        return joined

    monkeypatch.setattr(text, "np", type("numpy", (), {"concatenate": staticmethod(counting)}))
    so_far, shown = IncrementalDetokenizer(request_of(stream=True)), ""
    for at in range(count):
        shown += so_far.extend(ids(at % 6, 0), decoded).text
    tokens = [token for at in range(count) for token in (at % 6, 0)]
    assert shown + so_far.finish(ids(*tokens), decoded) == text_of(tokens)
    assert sum(copied) <= 4 * len(tokens)


def test_an_answer_without_tokens_has_no_text_and_no_calls():
    so_far, decode, *_, windows = fed([])
    assert so_far.finish(ids(), decode) == ""
    assert windows == []
