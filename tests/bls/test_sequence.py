"""A sequence tracks its context, its end, and the maximum length of its next draft."""

import pytest
from scripted import ids

from tandem.bls.request import Request
from tandem.bls.sequence import Sequence


def sequence_of(output=(), **changes):
    request = Request(
        **{
            "prompt_ids": ids(1, 2, 3),
            "max_tokens": 10,
            "end_ids": (7, 6),
            "drafter": "draft_model",
            "draft_len": 4,
            **changes,
        }
    )
    sequence = Sequence(request)
    sequence.append(ids(*output))
    return sequence


def test_the_context_is_the_prompt_followed_by_the_output():
    sequence = sequence_of((4, 5))
    assert sequence.context.tolist() == [1, 2, 3, 4, 5]
    assert sequence.output.tolist() == [4, 5]
    assert (len(sequence), sequence.num_output_tokens, sequence.tokens_left) == (5, 2, 8)


def test_new_tokens_do_not_change_a_context_returned_earlier():
    sequence = sequence_of((4,))
    context = sequence.context
    sequence.append(ids(5))
    assert context.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("num_output", "min_tokens", "tokens_left", "limit"),
    [
        (0, 0, 0, 4),
        (5, 0, 0, 4),
        (6, 0, 0, 3),
        (8, 0, 0, 1),
        (9, 0, 0, 0),
        (0, 3, 3, 2),
        (2, 3, 1, 0),
        (3, 3, 0, 4),
        (0, 10, 10, 4),
    ],
)
def test_draft_limit_respects_tokens_left_and_min_tokens(
    num_output, min_tokens, tokens_left, limit
):
    sequence = sequence_of(range(num_output), min_tokens=min_tokens)
    assert (sequence.min_tokens_left, sequence.draft_limit()) == (tokens_left, limit)


@pytest.mark.parametrize(
    ("tokens", "end"),
    [((1, 2), None), ((1, 7), 1), ((6, 7), 0), ((7, 6), 0), ((1, 6, 2, 7), 1), ((), None)],
)
def test_tokens_are_cut_after_the_first_of_several_ends(tokens, end):
    sequence = sequence_of()
    assert sequence.first_end(ids(*tokens)) == end
    kept = tokens if end is None else tokens[: end + 1]
    assert sequence.up_to_end(ids(*tokens)).tolist() == list(kept)


@pytest.mark.parametrize(
    ("drafter", "draft_len", "longest"),
    [
        ("none", 4, 0),
        ("engine", 4, 0),
        ("draft_model", 4, 4),
        ("draft_model", -1, 16),
        ("prompt_lookup", 4, 6),
        ("hybrid", 4, 6),
        ("hybrid", 8, 8),
    ],
)
def test_the_longest_draft_depends_on_the_drafter(drafter, draft_len, longest):
    request = Request(
        prompt_ids=ids(1),
        max_tokens=1,
        drafter=drafter,
        draft_len=draft_len,
        max_draft_len=16,
        prompt_lookup_num_tokens=6,
    )
    assert request.longest_draft == longest
