"""A guide in a request."""

from __future__ import annotations

from typing import Final, NamedTuple, get_args

from tandem.contract.guide import GuideKind

KINDS: Final[tuple[GuideKind, ...]] = get_args(GuideKind)


class Guide(NamedTuple):
    """A guide. kind: one of ``KINDS``. text: schema, expression, grammar or list of choices."""

    kind: str
    text: str = ""
