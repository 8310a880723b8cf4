"""String tensors from Triton's own client are decoded correctly."""

import numpy as np
import pytest
from tritonclient.utils import serialize_byte_tensor

from tandem.contract.strings import MAX_STRINGS, Strings


def packed(strings):
    return np.frombuffer(serialize_byte_tensor(np.array(strings, object)).item(), np.uint8)


@pytest.mark.parametrize("shape", [(4,), (2, 2), [4, 1], (1, 4)])
def test_strings_keep_their_shape(shape):
    strings = [b"", b"a", "é\n".encode(), b"\x00" * 300]
    read = Strings(packed(strings)).reshape(shape)
    assert read.tolist() == np.array(strings, object).reshape(shape).tolist()
    assert all(type(value) is bytes for value in read.flat)


def test_an_empty_tensor_has_no_strings():
    assert Strings(np.empty(0, np.uint8)).reshape((1, 0)).shape == (1, 0)


def test_a_string_that_contains_encoded_strings_is_one_string():
    many = packed([b"a"] * 5).tobytes()
    assert Strings(packed([many])).reshape((1, 1)).item() == many


def test_strings_beyond_the_limit_are_not_read():
    cut_short = np.zeros(3, np.uint8)  # reading these bytes as strings would fail
    read = Strings(cut_short).reshape((1, MAX_STRINGS + 1))
    assert read.shape == (1, MAX_STRINGS + 1)
    assert read.dtype == object
    assert read[0, 0] == read[0, -1] == b""


def test_the_largest_allowed_number_of_strings_is_read():
    read = Strings(packed([b"x"] * MAX_STRINGS)).reshape((MAX_STRINGS, 1))
    assert read.tolist() == [[b"x"]] * MAX_STRINGS
