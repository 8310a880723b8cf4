"""Triton tensors of one row, as the engines expect them."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

DTYPES = {"INT32": np.int32, "FP32": np.float32, "UINT64": np.uint64, "BOOL": np.bool_}


def scalar(tensor: Any, value: Any) -> Any:
    """Return a tensor [1, 1] of the contract's type."""
    return pb_utils.Tensor(tensor, np.array([[value]], DTYPES[tensor.dtype]))


def row(tensor: Any, values: NDArray[Any]) -> Any:
    """Return a tensor [1, *values.shape]."""
    return pb_utils.Tensor(tensor, values[np.newaxis])


def optional_row(tensor: Any, values: NDArray[Any] | None) -> list[Any]:
    """Return a list with the tensor of an optional input, or an empty list."""
    return [] if values is None else [row(tensor, values)]
