"""A guide as a client sends it."""

from __future__ import annotations

from typing import Final, NamedTuple, get_args

from tandem.contract.guide import GuideKind

KINDS: Final[tuple[GuideKind, ...]] = get_args(GuideKind)


class Guide(NamedTuple):
    """What an answer must look like.

    kind: one of ``KINDS``. text: of the schema, expression, grammar or list; empty for ``json``.
    """

    kind: str
    text: str = ""
