"""Errors of the tokenizer models.

ValueError
├── InputError      a request's tensor is wrong: the text, one line, names it and goes to the client
└── TokenizerError  the tokenizer's folder is wrong: the model does not load
"""

from __future__ import annotations


class InputError(ValueError):
    """A request's tensor is wrong; the text is one line that names it."""


class TokenizerError(ValueError):
    """A tokenizer cannot be loaded; the text is one line that names the folder and the fix."""
