"""Maps optional packages to the extras in pyproject.toml that install them."""

from __future__ import annotations

from typing import Literal

Extra = Literal["embedded", "gateway", "gguf", "summarize"]


def install(extra: Extra) -> str:
    """Return how to install an extra; the advice is valid for uv, pipx and pip."""
    return f"install Tandem with the extra '{extra}' (README, Install)"
