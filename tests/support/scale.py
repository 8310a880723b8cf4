"""The amount of work of repetitive tests, for each run and for CI."""

from typing import Any

import pytest


def scaled(light: Any, heavy: Any) -> list[Any]:
    """Values of a parameter: `make test` uses the light ones, `make test-heavy` the others."""
    heavy = heavy if isinstance(heavy, tuple) else (heavy,)
    return [light, pytest.param(*heavy, marks=pytest.mark.heavy)]


def first_of(light: Any, *heavy: Any) -> list[Any]:
    """Similar values: `make test` uses the first, `make test-heavy` the others."""
    return [light, *(pytest.param(value, marks=pytest.mark.heavy) for value in heavy)]
