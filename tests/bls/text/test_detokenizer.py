"""Each round decodes only the new tokens and a few tokens before them."""

import numpy as np
import pytest
from scripted import decoded, ids, perform, request_of, text_of

from tandem.bls.effects import Chunk
from tandem.bls.metrics.request_statistics import Statistics
from tandem.bls.text import detokenizer as text
from tandem.bls.text.detokenizer import IncrementalDetokenizer, detokenize_stream
from tandem.bls.text.token_details import plain_details

TOTALS = Statistics().totals


def fed(tokens, *, stops=(), each_round=True, rounds=None):
    """Decode rounds of tokens; return each round's text, kept tokens and detokenizer call."""
    so_far = IncrementalDetokenizer(request_of(stop_strings=stops), each_round=each_round)
    windows, texts, kept = [], [], []

    def run(steps):
        answer = None
        while True:
            try:
                call = steps.send(answer)
            except StopIteration as done:
                return done.value
            windows.append((call.window.tolist(), call.context_length))
            answer = decoded(call)

    for round_ in tokens:
        shown, count, _ = run(so_far.extend(ids(*round_)))
        texts.append(shown)
        kept.append(count)
    return so_far, run, texts, kept, windows


def test_each_round_decodes_only_recent_ids_and_the_new_ones():
    # ids 7 and 6 have no text
    *_, texts, kept, windows = fed([[0, 1], [2], [7], [6], [3]])
    assert texts == ["ab", "ab", "", "", "ba"]
    assert kept == [2, 1, 1, 1, 1]
    assert windows == [([0, 1], 0), ([0, 1, 2], 2), ([2, 7], 1), ([2, 7, 6], 2), ([2, 7, 6, 3], 3)]


def test_without_streaming_or_stop_strings_text_is_decoded_once():
    so_far, run, texts, kept, windows = fed([[0, 1], [2]], each_round=False)
    assert (texts, kept, windows) == (["", ""], [2, 1], [])
    assert run(so_far.finish(ids(0, 1, 2))) == "abab"
    assert windows == [([0, 1, 2], None)]


def test_text_that_could_begin_a_stop_string_is_sent_at_the_end():
    so_far, run, texts, *_ = fed([[0, 1], [0]], stops=("aba!",))
    assert texts == ["", ""]
    assert run(so_far.finish(ids(0, 1, 0))) == "aba"


def test_no_text_follows_a_stop_string():
    so_far, run, texts, kept, _ = fed([[4, 0, 1, 0, 1]], stops=("ba",))
    assert (texts, kept) == ([" a"], [4])
    assert so_far.stop_string
    assert run(so_far.finish(ids(4, 0, 1, 0))) == ""


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


def chunks_of(count):
    finish = [None] * (count - 1) + ["length"]
    return [
        Chunk(ids(at % 6, 0), "", reason, TOTALS, plain_details(2 * at, 2))
        for at, reason in enumerate(finish)
    ]


@pytest.mark.parametrize("count", [10, 2_000])
def test_detokenizing_takes_linear_time(monkeypatch, count):
    copied = []

    def counting(arrays):
        joined = np.concatenate(arrays)
        copied.append(len(joined))
        return joined

    monkeypatch.setattr(text, "np", type("numpy", (), {"concatenate": staticmethod(counting)}))
    chunks = chunks_of(count)
    heard = perform(detokenize_stream(request_of(), chunks))
    tokens = [token for chunk in chunks for token in chunk.tokens.tolist()]
    assert "".join(chunk.text for chunk in heard) == text_of(tokens)
    assert sum(copied) <= 4 * len(tokens)
