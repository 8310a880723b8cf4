"""What a check of a machine or of a plan has found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing looked at. good: None where it is absent and nothing requires it."""

    subject: str
    found: str
    good: bool | None
    fix: str = ""
