"""A guide as a client sends it."""

from __future__ import annotations

from typing import Final, NamedTuple

# NVIDIA's names where it has one: `json`, `json_schema`, `regex`, `ebnf_grammar`; see `GRAMMARS`.
KINDS: Final = ("json", "json_schema", "regex", "choice", "lark_grammar", "ebnf_grammar")


class Guide(NamedTuple):
    """What an answer must look like.

    kind: one of ``KINDS``. text: of the schema, expression, grammar or list; empty for ``json``.
    """

    kind: str
    text: str = ""
