import pytest

from tandem.demo.evaluate import repeated_share, rounds


@pytest.mark.parametrize(
    ("text", "guesses", "emitted"),
    [
        ([5, 6, 7, 8, 9], [5, 6, 0, 8, 9], [3, 2]),
        ([1, 2, 3], [0, 0, 0], [1, 1, 1]),  # a useless draft
        (list(range(10)), list(range(10)), [5, 5]),  # a perfect draft
        ([1, 2], [1, 2], [2]),  # the last round drafts fewer tokens than are left
    ],
)
def test_a_round_emits_the_accepted_tokens_plus_one(text, guesses, emitted):
    assert rounds(text, guesses, draft_len=4) == emitted


def test_the_repeated_share_is_0_without_repeats_and_near_1_for_loops():
    assert repeated_share(list(range(128))) == 0.0
    assert repeated_share([1, 2] * 64) > 0.95
    assert repeated_share([1, 2, 3]) == 0.0
