"""Maps optional packages to the extras in pyproject.toml that install them."""

from __future__ import annotations

from typing import Literal

Extra = Literal["embedded", "gateway", "gguf", "summarize"]


def install(extra: Extra) -> str:
    """Return advice for installing an extra that holds for uv, pipx and pip."""
    return f"install Tandem with the extra '{extra}' (README, Install)"
