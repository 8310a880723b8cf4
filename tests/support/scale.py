"""How much of the same a test does: what each run can bear, and what CI can."""

from typing import Any

import pytest


def scaled(light: Any, heavy: Any) -> list[Any]:
    """The values of parameters: `make test` takes the light ones, `make test-heavy` the others."""
    heavy = heavy if isinstance(heavy, tuple) else (heavy,)
    return [light, pytest.param(*heavy, marks=pytest.mark.heavy)]


def first_of(light: Any, *heavy: Any) -> list[Any]:
    """Values that differ little: `make test` takes the first, `make test-heavy` all the others."""
    return [light, *(pytest.param(value, marks=pytest.mark.heavy) for value in heavy)]
