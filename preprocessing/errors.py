"""Errors of the tokenizer models. Each message is one line.

ValueError
├── InputError      a request's tensor is wrong; the message names it and goes to the client
└── TokenizerError  the tokenizer's folder is wrong; the model doesn't load
"""

from __future__ import annotations


class InputError(ValueError):
    """A request's tensor is wrong. The message is one line that names it. field: its name."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class TokenizerError(ValueError):
    """A tokenizer cannot be loaded. The message is one line with the folder and the fix."""
