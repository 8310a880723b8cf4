"""Kinds of guides, and the layout of guided JSON: for the loop and the gateway."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

# NVIDIA's names where it has one: `json`, `json_schema`, `regex`, `ebnf_grammar`.
GuideKind: TypeAlias = Literal[
    "json", "json_schema", "regex", "choice", "lark_grammar", "ebnf_grammar"
]
# The key of a JSON schema's own layout, such as {"whitespace_flexible": true}. It has priority.
LAYOUT_KEY: Final = "x-guidance"
# JSON as in training data, with one space. With flexible white space almost no token is forced, and
# a model may emit blanks forever.
JSON_LAYOUT: Final[Mapping[str, str | bool]] = MappingProxyType(
    {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
)
LAYOUT_OPTIONS: Final = frozenset({*JSON_LAYOUT, "whitespace_pattern"})
# Not configurable by a schema: no keyword is ignored, and none is treated as another one.
EXACT: Final[Mapping[str, bool]] = MappingProxyType({"lenient": False, "coerce_one_of": False})
# Options of our own under the same key: objects may have names that their schema does not declare
# unless it says otherwise; keywords that cannot be enforced are refused.
OWN_OPTIONS: Final = ("additional_properties", "strict")
