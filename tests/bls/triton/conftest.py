"""The loop's room inside Triton, without one: `triton_python_backend_utils` of tests/support."""

import pytest
import triton_python_backend_utils as triton


@pytest.fixture(autouse=True)
def pb():
    """What Triton received; as new for each test."""
    triton.reset()
    yield triton
    triton.reset()
