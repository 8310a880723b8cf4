"""Words are encoded as word lists in the layout of TensorRT-LLM."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tandem.preprocessing.preprocessor import (
    bad_word_lists,
    embedding_bias,
    stop_word_lists,
    word_lists,
)
from tandem.preprocessing.tokenizer import InputError

# "ab" and " ab" have one id each. Every letter also has its own id.
VOCAB = {letter: number for number, letter in enumerate("abcdĠ")} | {"ab": 5, "Ġab": 6}
MERGES = [("a", "b"), ("Ġ", "ab")]


@pytest.fixture(scope="module")
def tokenizer():
    made = Tokenizer(models.BPE(vocab=VOCAB, merges=MERGES))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made


def test_row_0_has_the_word_ids_and_row_1_the_end_offsets():
    assert word_lists([[[7, 8], [9]]]).tolist() == [[[7, 8, 9], [2, 3, -1]]]


def test_shorter_prompts_are_padded():
    lists = word_lists([[[7, 8, 9]], [[5]], []])
    assert lists.dtype == np.int32
    assert lists.tolist() == [
        [[7, 8, 9], [3, -1, -1]],
        [[5, 0, 0], [1, -1, -1]],
        [[0] * 3, [-1] * 3],
    ]


def test_an_empty_word_list_has_one_padding_column():
    assert word_lists([[], [[]]]).tolist() == [[[0], [-1]], [[0], [-1]]]


def test_stop_words_are_tokenized_without_an_added_space(tokenizer):
    assert stop_word_lists(tokenizer, [["ab", "cd"]]).tolist() == [[[5, 2, 3], [1, 3, -1]]]


def test_bad_words_are_also_banned_after_a_space(tokenizer):
    assert bad_word_lists(tokenizer, [["ab"]]).tolist() == [[[5, 6], [1, 2]]]


def test_a_bad_word_given_with_and_without_a_space_is_not_repeated(tokenizer):
    ids, ends = bad_word_lists(tokenizer, [["ab", " ab"]])[0].tolist()
    assert ids == [5, 6, 4, 6]  # ab, Ġab, and Ġ Ġab
    assert ends == [1, 2, 4, -1]


@pytest.mark.parametrize("make", [stop_word_lists, bad_word_lists])
def test_an_empty_word_is_ignored(tokenizer, make):
    assert make(tokenizer, [["", ""]]).tolist() == [[[0], [-1]]]


def test_a_bias_is_added_once_per_occurrence_of_an_id(tokenizer):
    weights = np.array([[2.0, -1.0]], np.float32)
    bias = embedding_bias(tokenizer, [["ab", "ccd"]], weights, vocab_size=8)
    assert bias.dtype == np.float32
    assert bias.tolist() == [[0, 0, -2, -1, 0, 2, 0, 0]]


def test_the_bias_of_an_empty_word_is_ignored(tokenizer):
    assert not embedding_bias(tokenizer, [[""]], np.array([[9.0]], np.float32), vocab_size=8).any()


def test_each_prompt_has_its_own_bias(tokenizer):
    weights = np.array([[1.0], [3.0]], np.float32)
    bias = embedding_bias(tokenizer, [["c"], ["d"]], weights, vocab_size=7)
    assert bias.tolist() == [[0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 3, 0, 0, 0]]


def test_a_bias_outside_the_engines_vocabulary_is_rejected(tokenizer):
    with pytest.raises(
        InputError, match=r"^EMBEDDING_BIAS_WORDS must be in the engine's vocabulary; got 'ab'"
    ):
        embedding_bias(tokenizer, [["ab"]], np.array([[1.0]], np.float32), vocab_size=5)
