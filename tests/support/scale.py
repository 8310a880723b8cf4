"""Parameters of repetitive tests: few for `make test`, more for `make test-heavy`."""

from typing import Any

import pytest


def first_of(light: Any, *heavy: Any) -> list[Any]:
    """Return parameter values: `make test` uses the first, `make test-heavy` uses the others."""
    return [light, *(pytest.param(value, marks=pytest.mark.heavy) for value in heavy)]
