"""Fields of requests: types of their values, and the fields that are rejected or ignored."""

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

MOST_LEVELS = 64  # of nested lists and objects, which are read recursively
LONGEST_QUOTE = 40  # characters of a client's text in an error


class Refused(NamedTuple):
    """Why a field is rejected, and the values that have no effect, so they are accepted."""

    why: str
    neutral: tuple[Any, ...] = ()


_TOOLS = "only chats have tools; send them to /v1/chat/completions"

_CHATS = "only chats have it; send it to /v1/chat/completions"

_LAYOUT = "for free white space, send structured_outputs.disable_any_whitespace false"

REFUSED: dict[str, Refused] = {
    "add_generation_prompt": Refused(_CHATS, (True,)),
    "allowed_token_ids": Refused("send guided_choice or guided_regex"),
    "audio": Refused("answers are text"),
    "best_of": Refused("send n and choose among the answers", (1,)),
    "cache_salt": Refused("all prompts share one KV cache"),
    "continue_final_message": Refused(_CHATS, (False,)),
    "function_call": Refused("deprecated; send tool_choice", ("none", "auto")),
    "ebnf": Refused("send guided_grammar"),
    "functions": Refused("deprecated; send tools", ([],)),
    "guided_whitespace_pattern": Refused(_LAYOUT),
    "include_reasoning": Refused("reasoning is always sent, separate from the answer", (True,)),
    "include_stop_str_in_output": Refused("answers never include the stop string", (False,)),
    "length_penalty": Refused("only beam search has it", (1, 0)),
    "messages": Refused(_CHATS),
    "modalities": Refused("answers are text", (["text"],)),
    "priority": Refused("requests are answered in order of arrival", (0,)),
    "reasoning_effort": Refused(_CHATS, ("none",)),
    "regex": Refused("send guided_regex"),
    "skip_special_tokens": Refused("the deployment's configuration decides it", (True,)),
    "stop_token_ids": Refused("send stop strings", ([],)),
    "structural_tag": Refused("send tools, or guided_grammar"),
    "suffix": Refused("only text at the end can be generated", ("",)),
    "parallel_tool_calls": Refused(_TOOLS, (True, False)),
    "tool_choice": Refused(_TOOLS, ("none", "auto")),
    "tools": Refused(_TOOLS, ([],)),
    "top_logprobs": Refused("send their number as logprobs", (0,)),
    "truncate_prompt_tokens": Refused("a prompt that is too long is rejected, not truncated"),
    "use_beam_search": Refused("speculative decoding verifies one continuation", (False,)),
    "verbosity": Refused(_CHATS),
    "web_search_options": Refused("there is no web search"),
}

IGNORED: dict[str, str] = {
    "guided_decoding_backend": "there is only one",
    "metadata": "nothing is stored",
    "prompt_cache_key": "a prompt's KV cache is reused by its content",
    "prompt_cache_retention": "a prompt's KV cache is kept while there is space",
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
    """Return the known fields of an object; raise PydanticCustomError for others.

    place: the object's path in the body.
    """
    for name, value in given.items():
        if name not in known and value is not None:
            _refuse(f"{place}.{name}" if place else name, value, known, refused.get(name))
    return {k: v for k, v in given.items() if k in known and v is not None}


def check_plain(field: str, value: Any, level: int = 0) -> None:
    """Reject lone surrogates, which aren't text, and values that are nested too deeply."""
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
    return wrong(shown, f"{shown}: {why}", code)


def quoted(text: str) -> str:
    """Return a client's text as a short part of an error's line."""
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
        raise wrong(shown, f"unknown field '{shown}'{hint}", "unknown_field")
    if not any(_same(value, neutral) for neutral in refused.neutral):
        message = f"field '{path}' is not supported: {refused.why}"
        raise wrong(path, message, "unsupported_field")


def _same(value: Any, neutral: Any) -> bool:
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def wrong(field: str, message: str, code: ApiCode | None = None) -> PydanticCustomError:
    """Return an error that names a field. message: the client's complete line."""
    return PydanticCustomError(
        "field", "{message}", {"message": message, "field": field, "code": code}
    )


MOST_CHOICES = 128
ENTRIES_AT_ONCE = 1000
INT32 = 2**31 - 1
# Otherwise pydantic would keep an error for each of millions of items.
FIRST_FAULT = Field(fail_fast=True)

Count = Annotated[int, Field(ge=1, le=INT32)]
TokenId = Annotated[int, Field(ge=0, le=INT32)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
Alternatives = Annotated[int, Field(ge=0, le=MAX_TOP_LOG_PROBS)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]


def _in_parts(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Check an object in parts, up to the first part with errors, which are all reported."""
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


LogitBias = Annotated[
    dict[Annotated[TokenId, BeforeValidator(_token_id)], Bias], WrapValidator(_in_parts)
]
Texts = Annotated[list[str], FIRST_FAULT]
TokenIds = Annotated[list[TokenId], FIRST_FAULT]


# A field of several types is read as the type of its first item; pydantic would try them all. Paths
# in errors omit the names of these types.
def _text_or_list(value: Any) -> str | None:
    if isinstance(value, list):
        return "list[]"
    return "str" if isinstance(value, str) else None


def _kind_of_prompt(value: Any) -> str | None:
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
