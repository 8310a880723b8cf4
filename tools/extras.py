"""Optional packages of the project, by the extras of pyproject.toml that bring them."""

from __future__ import annotations

from typing import Literal

Extra = Literal["embedded", "gateway", "gguf", "summarize"]


def install(extra: Extra) -> str:
    """Say how to get an extra, however Tandem was installed: by uv, pipx or pip."""
    return f"install Tandem with the extra '{extra}' too (README, Install)"
