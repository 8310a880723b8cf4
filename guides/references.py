"""References of schemas: where they may lead, and how the library spells them."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote, unquote

from tandem.guides.errors import GuideError, shortened
from tandem.guides.schema_parts import BY_NAME, DATA, schemas_of

# What a reference may hold as it is, beside letters, digits and `_.-~`.
PLAIN: Final = "%#/:?@!$&'()*+,;="


def check_references(schema: Any) -> None:
    """Raise GuideError for a reference to what is no schema: nothing there is checked as one."""
    for part in schemas_of(schema):
        reference = part.get("$ref")
        if not isinstance(reference, str):
            continue
        if keyword := _data_on_the_way(reference):
            raise GuideError(
                f"the reference {shortened(repr(reference))} leads into '{keyword}', which holds "
                "no schema there; put the schema under '$defs'"
            )


def encoded(reference: str) -> str:
    """Return a reference with the characters percent-encoded that a URI may not have."""
    return quote(reference, safe=PLAIN, errors="surrogatepass")


def _data_on_the_way(reference: str) -> str:
    """Return the keyword at which a reference leaves the schemas; nothing where it does not."""
    pointer = unquote(reference.partition("#")[2])
    if not pointer.startswith("/"):
        return ""
    holder = ""  # of schemas by name, whose name comes next
    for token in pointer[1:].split("/"):
        keyword = token.replace("~1", "/").replace("~0", "~")
        if holder:
            holder = ""
        elif keyword in DATA:
            return keyword
        elif keyword in BY_NAME:
            holder = keyword
    return holder
