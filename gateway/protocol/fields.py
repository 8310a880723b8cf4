"""Fields of requests: the kinds of values that they take, and the fields that are rejected.

A refused field would change the answer; its neutral values, and null, pass. An ignored one would
not.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Annotated, Any, NamedTuple

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from tandem.contract.engine import MAX_TOP_LOG_PROBS
from tandem.gateway.errors import ApiCode

MOST_LEVELS = 64  # of lists and objects in each other: all that is read here recurses
LONGEST_QUOTE = 40  # characters of a client's own text in an error


class Refused(NamedTuple):
    """Why a field is refused, and the values that ask for nothing."""

    why: str
    neutral: tuple[Any, ...] = ()


_TOOLS = "tools belong to chats; send tools to /v1/chat/completions"

_CHATS = "it belongs to chats; send it to /v1/chat/completions"

_LAYOUT = "white space is fixed, or free with structured_outputs.disable_any_whitespace false"

REFUSED: dict[str, Refused] = {
    "add_generation_prompt": Refused(_CHATS, (True,)),
    "allowed_token_ids": Refused("send guided_choice or guided_regex"),
    "audio": Refused("answers are text"),
    "best_of": Refused("send n, and choose yourself", (1,)),
    "cache_salt": Refused("all prompts share one KV cache"),
    "continue_final_message": Refused(_CHATS, (False,)),
    "function_call": Refused("it was replaced: send tool_choice", ("none", "auto")),
    "ebnf": Refused("send guided_grammar"),
    "functions": Refused("they were replaced: send tools", ([],)),
    "guided_whitespace_pattern": Refused(_LAYOUT),
    "include_reasoning": Refused("reasoning is always sent, separately from the answer", (True,)),
    "include_stop_str_in_output": Refused("a stop string is never part of the output", (False,)),
    "length_penalty": Refused("it applies only to beam search", (1, 0)),
    "modalities": Refused("answers are text", (["text"],)),
    "priority": Refused("requests are answered in order of arrival", (0,)),
    "reasoning_effort": Refused(_CHATS, ("none",)),
    "regex": Refused("send guided_regex"),
    "skip_special_tokens": Refused("the profile decides this", (True,)),
    "stop_token_ids": Refused("send stop strings", ([],)),
    "structural_tag": Refused("send tools, or guided_grammar"),
    "suffix": Refused("text is added only at the end", ("",)),
    "parallel_tool_calls": Refused(_TOOLS, (True, False)),
    "tool_choice": Refused(_TOOLS, ("none", "auto")),
    "tools": Refused(_TOOLS, ([],)),
    "top_logprobs": Refused("a completion takes their number as logprobs", (0,)),
    "truncate_prompt_tokens": Refused("a prompt that doesn't fit is rejected, not cut"),
    "use_beam_search": Refused("speculative decoding verifies one continuation", (False,)),
    "verbosity": Refused(_CHATS),
    "web_search_options": Refused("nothing is searched"),
}

IGNORED: dict[str, str] = {
    "guided_decoding_backend": "there is only one",
    "metadata": "nothing is stored",
    "prediction": "it only speeds up OpenAI's answers; here, drafts do that",
    "prompt_cache_key": "a prompt's KV cache is reused by its content",
    "prompt_cache_retention": "a prompt's KV cache is reused while it is there",
    "safety_identifier": "users are not distinguished",
    "service_tier": "there is only one",
    "store": "nothing is stored",
    "user": "users are not distinguished",
}


def taken(
    given: Mapping[str, Any],
    known: Collection[str],
    refused: Mapping[str, Refused],
    place: str = "",
) -> dict[str, Any]:
    """Return what of an object is to be read; raise PydanticCustomError for what is refused.

    place: the object's path in the body.
    """
    for name, value in given.items():
        if name not in known and value is not None:
            _refuse(f"{place}.{name}" if place else name, value, known, refused.get(name))
    return {k: v for k, v in given.items() if k in known and v is not None}


def check_plain(field: str, value: Any, level: int = 0) -> None:
    """Refuse in a field what JSON can spell and nobody can read.

    Half of a surrogate pair is not text; what nests without end is more than a stack holds.
    """
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            message = "holds half of a surrogate pair, which is not a character"
            raise _unreadable(field, message, "invalid_text") from None
    elif isinstance(value, dict | list):
        if level > MOST_LEVELS:
            message = f"nests more than {MOST_LEVELS} levels deep"
            raise _unreadable(field, message, "too_deep")
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            if isinstance(item, str | dict | list):
                check_plain(field, item, level + 1)


def _unreadable(field: str, why: str, code: ApiCode) -> PydanticCustomError:
    shown = quoted(field.encode(errors="replace").decode())
    return _error(shown, f"{shown}: {why}", code)


def quoted(text: str) -> str:
    """A client's own text, short and in one line."""
    shown = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text[:LONGEST_QUOTE]
    )
    return shown if len(text) <= LONGEST_QUOTE else f"{shown}..."


def _refuse(path: str, value: Any, known: Collection[str], refused: Refused | None) -> None:
    if refused is None:
        shown = quoted(path)
        near = difflib.get_close_matches(shown.rpartition(".")[2], sorted(known), n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise _error(shown, f"unknown field '{shown}'{hint}", "unknown_field")
    if not any(_same(value, neutral) for neutral in refused.neutral):
        message = f"field '{path}' is not supported: {refused.why}"
        raise _error(path, message, "unsupported_field")


def _same(value: Any, neutral: Any) -> bool:
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def wrong(field: str, message: str) -> PydanticCustomError:
    """Return the error of a field whose value cannot be read."""
    return PydanticCustomError("field", "{message}", {"message": message, "field": field})


def _error(field: str, message: str, code: ApiCode) -> PydanticCustomError:
    return PydanticCustomError(
        "field", "{message}", {"message": message, "field": field, "code": code}
    )


MOST_CHOICES = 128
ENTRIES_AT_ONCE = 1000
INT32 = 2**31 - 1
# Bodies are read in the event loop, where all streams wait for it, and pydantic would keep a
# complaint about each of millions of items.
FIRST_FAULT = Field(fail_fast=True)

Count = Annotated[int, Field(ge=1, le=INT32)]
TokenId = Annotated[int, Field(ge=0, le=INT32)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
Alternatives = Annotated[int, Field(ge=0, le=MAX_TOP_LOG_PROBS)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]


def _by_parts(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Have an object read part by part, no further than the first one with faults."""
    if not isinstance(value, dict):
        return check(value)
    entries: dict[Any, Any] = {}
    left = iter(value.items())
    while part := dict(islice(left, ENTRIES_AT_ONCE)):
        entries |= check(part)
    return entries


def _token_id(name: str) -> int:
    if not re.fullmatch("0|[1-9][0-9]{0,9}", name):  # one spelling per id
        raise PydanticCustomError("token_id", "must be a token id")
    return int(name)


# Where a field takes several kinds, its first item says which: each kind would be tried on all.
LogitBias = Annotated[
    dict[Annotated[TokenId, BeforeValidator(_token_id)], Bias], WrapValidator(_by_parts)
]
Texts = Annotated[list[str], FIRST_FAULT]
TokenIds = Annotated[list[TokenId], FIRST_FAULT]


def _text_or_list(value: Any) -> str | None:
    """Return which of the two a value is (None: neither); an error's path omits such names."""
    if isinstance(value, list):
        return "list[]"
    return "str" if isinstance(value, str) else None


def _kind_of_prompt(value: Any) -> str | None:
    """Return what a prompt is by its first item; an error's path omits such names."""
    if not isinstance(value, list):
        return _text_or_list(value)
    if not value or isinstance(value[0], str):
        return "list[str]"
    return "list[list[int]]" if isinstance(value[0], list) else "list[int]"


def _by_kind(kind_of: Callable[[Any], str | None]) -> Discriminator:
    return Discriminator(
        kind_of,
        custom_error_type="text_or_list",
        custom_error_message="must be a string or a list",
    )


TEXT_OR_LIST = _by_kind(_text_or_list)
TextOrTexts = Annotated[Annotated[str, Tag("str")] | Annotated[Texts, Tag("list[]")], TEXT_OR_LIST]
Prompts = Annotated[
    Annotated[str, Tag("str")]
    | Annotated[list[str], Field(fail_fast=True, max_length=MOST_CHOICES), Tag("list[str]")]
    | Annotated[TokenIds, Tag("list[int]")]
    | Annotated[
        list[TokenIds], Field(fail_fast=True, max_length=MOST_CHOICES), Tag("list[list[int]]")
    ],
    _by_kind(_kind_of_prompt),
]
