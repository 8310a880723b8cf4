"""Guides: their kinds, options and layout, for the loop and the gateway."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

# NVIDIA's names where they exist: `json`, `json_schema`, `regex`, `ebnf_grammar`.
GuideKind: TypeAlias = Literal[
    "json", "json_schema", "regex", "choice", "lark_grammar", "ebnf_grammar"
]
KINDS: Final[tuple[GuideKind, ...]] = get_args(GuideKind)
# Key of options in a JSON schema, such as {"whitespace_flexible": true}. They override the default
# layout.
LAYOUT_KEY: Final = "x-guidance"
# Default layout: JSON with single spaces, as in training data. With flexible whitespace, almost no
# token is forced, and a model may emit blanks endlessly.
JSON_LAYOUT: Final[Mapping[str, str | bool]] = MappingProxyType(
    {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
)
LAYOUT_OPTIONS: Final = frozenset({*JSON_LAYOUT, "whitespace_pattern"})
# Options that a schema can't change: no keyword is ignored or treated as another one.
EXACT: Final[Mapping[str, bool]] = MappingProxyType({"lenient": False, "coerce_one_of": False})
# Tandem's own options under the same key: whether objects are open by default, and whether to
# reject keywords that can't be enforced.
OWN_OPTIONS: Final = ("additional_properties", "strict")
ESCAPED_OR_SLASH = re.compile(r"\\.|/", re.DOTALL)


class Guide(NamedTuple):
    """A request's guide. kind: one of ``KINDS``. text: schema, expression, grammar or choices."""

    kind: str
    text: str = ""


def layout_of(schema: Mapping[str, Any]) -> Mapping[str, str | bool]:
    """Return the default layout, or no options if the schema sets its own layout."""
    own = schema.get(LAYOUT_KEY)
    has_layout = isinstance(own, dict) and not LAYOUT_OPTIONS.isdisjoint(own)
    return {} if has_layout else JSON_LAYOUT


def lark_regex(regex: str) -> str:
    """Return a regular expression as a terminal in llguidance's Lark syntax.

    Raises ValueError if it ends with a lone backslash.
    """
    if ESCAPED_OR_SLASH.sub("", regex).endswith("\\"):
        raise ValueError("regex parse error: nothing follows the last backslash")
    escaped = ESCAPED_OR_SLASH.sub(lambda found: r"\/" if found[0] == "/" else found[0], regex)
    return f"/{escaped}/"
