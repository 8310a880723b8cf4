"""Decodes the strings of a tensor, up to a limit.

Triton's Python backend decodes all strings of a request in Python before the model gets the
request. With millions of strings, this holds the GIL of the process for many seconds. Models with
public inputs replace the decoder (``pb_utils.deserialize_bytes_tensor``) with ``Strings``, which
doesn't decode lists that are too long.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_STRINGS = 65_536  # maximum number of strings per tensor

_LENGTH = struct.Struct("<I")


class Strings:
    """The encoded strings of a tensor. Triton calls ``reshape`` with the tensor's shape."""

    def __init__(self, encoded: NDArray[np.uint8]) -> None:
        self._encoded = encoded

    def reshape(self, shape: Any) -> NDArray[np.object_]:
        """Return the strings as bytes; all are b"" if there are more than MAX_STRINGS."""
        count = int(np.prod(shape))
        if count > MAX_STRINGS:
            return np.broadcast_to(np.array(b"", object), shape)
        strings = np.empty(count, object)
        buffer, offset = memoryview(self._encoded.data), 0
        for at in range(count):
            (length,) = _LENGTH.unpack_from(buffer, offset)
            offset += _LENGTH.size
            strings[at] = bytes(buffer[offset : offset + length])
            offset += length
        return strings.reshape(shape)
