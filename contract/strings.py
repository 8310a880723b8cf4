"""Decodes the strings in a tensor, with a limit on their number.

Triton's Python backend decodes every string of a request in Python before a model gets it: a list
of millions holds the GIL of the process for many seconds. Models with public inputs replace that
decoder (``pb_utils.deserialize_bytes_tensor``) by ``Strings``, which skips too long lists.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_STRINGS = 65_536  # in one tensor

_LENGTH = struct.Struct("<I")


class Strings:
    """The encoded strings of a tensor. Triton calls ``reshape`` with the tensor's shape."""

    def __init__(self, encoded: NDArray[np.uint8]) -> None:
        self._encoded = encoded

    def reshape(self, shape: Any) -> NDArray[np.object_]:
        """Return the strings as bytes, or b"" for each if there are too many."""
        count = int(np.prod(shape))
        if count > MOST_STRINGS:
            return np.broadcast_to(np.array(b"", object), shape)
        strings = np.empty(count, object)
        buffer, offset = memoryview(self._encoded.data), 0
        for at in range(count):
            (length,) = _LENGTH.unpack_from(buffer, offset)
            offset += _LENGTH.size
            strings[at] = bytes(buffer[offset : offset + length])
            offset += length
        return strings.reshape(shape)
