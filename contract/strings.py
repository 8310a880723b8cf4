"""How Triton writes strings into a tensor, read without trusting how many there are.

Triton's Python backend decodes every string of a request before a model sees it, one by one in
Python: a list of some millions holds the process's only GIL for many seconds. A model that takes
strangers' requests puts ``Strings`` in the place of that decoder
(``pb_utils.deserialize_bytes_tensor``); what it makes of too many costs nothing.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_STRINGS = 65_536  # in one tensor

_LENGTH = struct.Struct("<I")


class Strings:
    """The encoded strings of a tensor, which Triton asks for in their shape."""

    def __init__(self, encoded: NDArray[np.uint8]) -> None:
        self._encoded = encoded

    def reshape(self, shape: Any) -> NDArray[np.object_]:
        """Return the strings as bytes, or b"" in each one's place where there are too many."""
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
