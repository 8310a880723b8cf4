"""Errors and warnings about guides, and the supported versions of llguidance.

Other modules of this package work around bugs in these versions. NVIDIA's image contains an older
one for TensorRT-LLM.
"""

from __future__ import annotations

import re
from importlib import import_module

MAX_REASON_CHARS = 300  # maximum number of characters of an error message
# Longer runs of forced tokens are rejected: with 100,000 tokens, each takes 0.1 s, and all need
# 100 MB.
MAX_RUN_TOKENS = 4096
NO_TEXT = "no text matches it"
TOO_LARGE = "it is too deep or too large to compile; send a simpler one"
LIBRARY = "llguidance"
OLDEST, FIRST_OTHER = (1, 9), (2, 0)
REQUIREMENT = f"{LIBRARY}>={OLDEST[0]}.{OLDEST[1]},<{FIRST_OTHER[0]}"
# Keywords of JSON Schema that may appear in errors of the library. Others are OTHER_KEYWORD.
KEYWORDS = frozenset(
    {
        "contains", "contentEncoding", "contentMediaType", "dependencies", "dependentRequired",
        "dependentSchemas", "else", "exclusiveMaximum", "exclusiveMinimum", "format", "if",
        "maxContains", "maxProperties", "minContains", "minProperties", "multipleOf", "not",
        "oneOf", "patternProperties", "propertyNames", "then", "unevaluatedItems",
        "unevaluatedProperties", "uniqueItems", "$dynamicRef", "$recursiveRef",
    }
)  # fmt: skip
OTHER_KEYWORD = "other"
IN_GRAMMAR = re.compile(r"^at \d+\(\d+\): (?:failed to compile JSON schema: )?")
# Starts of other errors
ERROR_STARTS = (
    ("oneOf constraints are not supported", ["oneOf"]),
    ("uniqueItems ", ["uniqueItems"]),
    ("propertyNames ", ["propertyNames"]),
    ("minProperties ", ["minProperties"]),
    ("min/maxProperties only supported", ["minProperties", "maxProperties"]),
    ("multipleOf ", ["multipleOf"]),
    ("Value for 'multipleOf' has too many digits", ["multipleOf"]),
    ("exclusiveMinimum and exclusiveMaximum ", ["exclusiveMinimum", "exclusiveMaximum"]),
)
# The library's errors if no token is allowed
DEAD_ENDS = ("NoExtensionBias", "NoExtension")
# The library's error if it can't look ahead
ONE_WAY = "rollback not supported"
# Advice in a library error that doesn't apply here, and its replacement
NO_ONE_OF = (
    ". Enable 'coerce_one_of' option to approximate oneOf with anyOf",
    " if one value may match two of them; distinguish them by a constant, or use anyOf",
)


class GuideError(Exception):
    """A guide can't be compiled or followed. The message is one line."""


class GuideUndecided(GuideError):
    """A guide couldn't be tested, for a temporary reason."""


class GuideTakesLong(GuideUndecided):
    """A guide couldn't be compiled within the time limit."""


class TokenForbidden(GuideError):
    """The answer contains a token that its guide disallows."""


class GuideWarning(UserWarning):
    """A part of a guide isn't enforced. The message is one line."""


def check_run(num_tokens: int) -> None:
    """Raise GuideError if a guide forces too many consecutive tokens."""
    if num_tokens > MAX_RUN_TOKENS:
        raise GuideError(
            f"it forces {num_tokens} consecutive tokens; the limit is {MAX_RUN_TOKENS}; use "
            "shorter constants"
        )


def shorten(reason: str) -> str:
    """Cut out the middle of a long error message, which may repeat a long guide."""
    if len(reason) <= MAX_REASON_CHARS:
        return reason
    half = MAX_REASON_CHARS // 2
    return f"{reason[:half]} ... {reason[-half:]}"


def check_library() -> None:
    """Raise GuideError if no supported version is installed."""
    try:
        library = import_module(LIBRARY)
    except ModuleNotFoundError as error:
        raise GuideError(
            f"{LIBRARY} isn't installed; install {REQUIREMENT} in the loop's Python environment"
        ) from error
    found = str(getattr(library, "__version__", "of an unknown version"))
    known = re.match(r"(\d+)\.(\d+)", found)
    if known is None or not OLDEST <= tuple(map(int, known.groups())) < FIRST_OTHER:
        raise GuideError(
            f"{LIBRARY} {found} isn't supported; install {REQUIREMENT} in the loop's Python "
            "environment"
        )


def keywords_of(reason: str) -> list[str]:
    """Return the keywords that an error message names, or ``OTHER`` if it names none."""
    reason = IN_GRAMMAR.sub("", reason)
    if reason.startswith("Unimplemented keys:"):
        named = re.findall(r'"([$A-Za-z]+)"', reason)
    else:
        named = [word for form, words in ERROR_STARTS if reason.startswith(form) for word in words]
    return sorted(KEYWORDS.intersection(named)) or [OTHER_KEYWORD]


def one_line_reason(error: str) -> str:
    """Return one line of a library error. Other lines may contain the answer's text.

    This is the first line. For an invalid regular expression, a later line gives the reason.
    """
    line, _, others = error.strip().partition("\n")
    if line.endswith("regex parse error:"):
        reasons = (other for other in others.split("\n") if other.startswith("error: "))
        line = f"{line} {next(reasons, '').removeprefix('error: ')}".rstrip()
    if line.startswith(ONE_WAY):
        return "the rule attributes max_tokens and stop aren't supported"
    return NO_TEXT if line in DEAD_ENDS else shorten(line.replace(*NO_ONE_OF))
