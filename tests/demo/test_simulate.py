import pytest

from tandem.demo.simulate import repeated_share, rounds


def test_a_round_emits_the_accepted_tokens_plus_one():
    assert rounds([5, 6, 7, 8, 9], guesses=[5, 6, 0, 8, 9], draft_len=4) == [3, 2]


def test_a_perfect_draft_emits_draft_len_plus_one():
    text = list(range(10))
    assert rounds(text, guesses=text, draft_len=4) == [5, 5]


def test_a_useless_draft_emits_one_token_per_round():
    assert rounds([1, 2, 3], guesses=[0, 0, 0], draft_len=4) == [1, 1, 1]


def test_the_last_round_drafts_fewer_tokens_than_are_left():
    assert rounds([1, 2], guesses=[1, 2], draft_len=4) == [2]
    assert rounds([1], guesses=[1], draft_len=4) == [1]


@pytest.mark.parametrize("draft_len", [1, 2, 4, 8])
def test_all_rounds_together_emit_the_whole_text(draft_len):
    text = [i % 7 for i in range(50)]
    guesses = [t if i % 3 else -1 for i, t in enumerate(text)]
    assert sum(rounds(text, guesses, draft_len)) == len(text)


def test_the_repeated_share_is_0_without_repeats_and_near_1_for_loops():
    assert repeated_share(list(range(128))) == 0.0
    assert repeated_share([1, 2] * 64) > 0.95
    assert repeated_share([1, 2, 3]) == 0.0
