"""Checks that errors are one line."""

from collections.abc import Callable
from typing import Any

import pytest


def error_line(
    error: type[Exception], call: Callable[..., object], /, *arguments: Any, **options: Any
) -> str:
    """Return the message of the error that a call must raise. The message must be one line."""
    with pytest.raises(error) as rejected:
        call(*arguments, **options)
    text = str(rejected.value)
    assert "\n" not in text
    return text
