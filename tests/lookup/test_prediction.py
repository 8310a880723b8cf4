"""A prediction is followed in order, even if it repeats itself."""

import numpy as np

from tandem.lookup.ngrams import Match, Prediction


def test_after_an_edit_the_next_occurrence_in_the_prediction_is_used():
    part = [1, 2, 3]
    prediction = Prediction(np.array([*part, 4, *part, 5, *part, 6], np.int32))
    assert prediction.lookup(np.array([*part, 4], np.int32), 1) == Match([1], 4)
    edited = np.array([*part, 4, 9, *part], np.int32)
    assert prediction.lookup(edited, 1) == Match([5], 3)


def test_a_prediction_without_more_tokens_proposes_nothing():
    prediction = Prediction(np.array([1, 2, 3, 4], np.int32))
    assert prediction.lookup(np.array([1, 2, 3, 4], np.int32), 9) is None
