"""What a guide may be, and how JSON is laid out under one: for the loop and for the gateway."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

# NVIDIA's names where it has one: `json`, `json_schema`, `regex`, `ebnf_grammar`.
GuideKind: TypeAlias = Literal[
    "json", "json_schema", "regex", "choice", "lark_grammar", "ebnf_grammar"
]
# The key of a JSON schema's own layout, such as {"whitespace_flexible": true}, which goes first.
LAYOUT_KEY: Final = "x-guidance"
# As models were shown JSON, with one space. With flexible white space almost nothing is forced, and
# a model may go on with blanks for ever.
JSON_LAYOUT: Final[Mapping[str, str | bool]] = MappingProxyType(
    {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
)
LAYOUT_OPTIONS: Final = frozenset({*JSON_LAYOUT, "whitespace_pattern"})
# Whatever a schema's own options say: no keyword is left out, and none is taken for another.
EXACT: Final[Mapping[str, bool]] = MappingProxyType({"lenient": False, "coerce_one_of": False})
# Options of our own under the same key: objects may have names that their schema does not declare
# unless it says otherwise; keywords that cannot be enforced are refused.
OWN_OPTIONS: Final = ("additional_properties", "strict")
