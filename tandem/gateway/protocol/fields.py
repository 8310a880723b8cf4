"""Fields of requests: types of their values, and fields that are rejected or ignored."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any, NamedTuple, TypeAlias

from pydantic import (
    AfterValidator,
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

MAX_LEVELS = 64  # maximum nesting of lists and objects, which are read recursively
MAX_QUOTE = 40  # maximum characters of a client's text in an error
MAX_CHOICES = 128
ENTRIES_AT_ONCE = 1000
INT32 = 2**31 - 1


class Unsupported(NamedTuple):
    """Why a field is rejected, and the values that are accepted because they have no effect."""

    why: str
    neutral: tuple[Any, ...] = ()
    code: ApiCode = "unsupported_field"


_TOOLS = "only chats can use tools; send a chat to /v1/chat/completions"

_CHATS = "it is only for chats; use /v1/chat/completions"

_LAYOUT = "for free whitespace, set structured_outputs.disable_any_whitespace to false"

UNSUPPORTED: dict[str, Unsupported] = {
    "add_generation_prompt": Unsupported(_CHATS, (True,)),
    "allowed_token_ids": Unsupported("use guided_choice or guided_regex"),
    "audio": Unsupported("the output is always text"),
    "best_of": Unsupported("use n, and choose among the outputs", (1,)),
    "continue_final_message": Unsupported(_CHATS, (False,)),
    "function_call": Unsupported("deprecated; use tool_choice", ("none", "auto")),
    "ebnf": Unsupported("use guided_grammar"),
    "functions": Unsupported("deprecated; use tools", ([],)),
    "guided_whitespace_pattern": Unsupported(_LAYOUT),
    "include_reasoning": Unsupported(
        "reasoning is always returned, separate from the content", (True,)
    ),
    "include_stop_str_in_output": Unsupported(
        "the output never includes the stop string", (False,)
    ),
    "length_penalty": Unsupported("it is only for beam search", (1, 0)),
    "messages": Unsupported(_CHATS),
    "modalities": Unsupported("the output is always text", (["text"],)),
    "reasoning_effort": Unsupported(_CHATS, ("none",)),
    "regex": Unsupported("use guided_regex"),
    "skip_special_tokens": Unsupported("the deployment's profile sets it", (True,)),
    "stop_token_ids": Unsupported("use stop", ([],)),
    "structural_tag": Unsupported("use tools or guided_grammar"),
    "suffix": Unsupported("text is only generated after the prompt", ("",)),
    "parallel_tool_calls": Unsupported(_TOOLS, (True, False)),
    "tool_choice": Unsupported(_TOOLS, ("none", "auto")),
    "tools": Unsupported(_TOOLS, ([],)),
    "top_logprobs": Unsupported("set logprobs to the number of alternatives", (0,)),
    "truncate_prompt_tokens": Unsupported("prompts that are too long are rejected, not truncated"),
    "use_beam_search": Unsupported("speculative decoding verifies a single continuation", (False,)),
    "verbosity": Unsupported(_CHATS),
    "web_search_options": Unsupported("web search isn't available"),
}

IGNORED = frozenset(
    {
        "guided_decoding_backend",  # there is only one backend
        "metadata",  # nothing is stored
        "prompt_cache_key",  # the KV cache is matched by the prompt's tokens
        "prompt_cache_options",  # the KV cache is always used
        "prompt_cache_retention",  # the KV cache is kept as long as there is space
        "safety_identifier",  # users aren't distinguished
        "service_tier",  # there is only one tier
        "store",  # nothing is stored
        "user",  # users aren't distinguished
    }
)

# A message for `field_error`, and its code.
Fault: TypeAlias = tuple[str, ApiCode]
TOO_DEEP: Fault = f"{{path}} is nested more than {MAX_LEVELS} levels deep", "too_deep"
HALF_A_PAIR: Fault = (
    "{path} contains half of a surrogate pair, which isn't a character",
    "invalid_text",
)


def find_unreadable(value: Any, level: int = 0) -> Fault | None:
    """Return what is wrong with a JSON value: lone surrogates, or too many levels; else None."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return HALF_A_PAIR
    elif isinstance(value, dict | list):
        if level > MAX_LEVELS:
            return TOO_DEEP
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            if isinstance(item, str | dict | list) and (fault := find_unreadable(item, level + 1)):
                return fault
    return None


def quote(text: str) -> str:
    """Return a client's text, shortened and escaped for an error line."""
    shown = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text[:MAX_QUOTE]
    )
    return shown if len(text) <= MAX_QUOTE else f"{shown}..."


def field_error(field: str, message: str, code: ApiCode | None = None) -> PydanticCustomError:
    """Return a validator's error about a field.

    field: its path in the validated object; "": the object itself. message: the complete line for
    the client, in which "{path}" stands for the field's path in the body.
    """
    return PydanticCustomError(
        "field", "{message}", {"message": message, "field": field, "code": code}
    )


# Otherwise pydantic would keep an error for each of millions of items.
FIRST_FAULT = Field(fail_fast=True)

Count = Annotated[int, Field(ge=1, le=INT32)]
TokenId = Annotated[int, Field(ge=0, le=INT32)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Alternatives = Annotated[int, Field(ge=0, le=MAX_TOP_LOG_PROBS)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


def _check_in_parts(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Check an object in parts. Stop at the first part with errors and report all of its errors."""
    if not isinstance(value, dict):
        return check(value)
    entries: dict[Any, Any] = {}
    left = iter(value.items())
    while part := dict(islice(left, ENTRIES_AT_ONCE)):
        entries |= check(part)
    return entries


def _token_id(name: str) -> int:
    if not re.fullmatch("0|[1-9][0-9]{0,9}", name):  # exactly one spelling per id
        raise PydanticCustomError("token_id", "must be a token id")
    return int(name)


LogitBias = Annotated[
    dict[Annotated[TokenId, BeforeValidator(_token_id)], Bias], WrapValidator(_check_in_parts)
]
Texts = Annotated[list[str], FIRST_FAULT]
Words = Annotated[Texts, AfterValidator(lambda words: [*filter(None, words)])]  # ignores ""
TokenIds = Annotated[list[TokenId], FIRST_FAULT]


def text_or_list(as_item: Callable[[str], Any] = str) -> BeforeValidator:
    """Accept a text in place of a list. as_item: returns the only item of the list."""

    def to_list(value: Any) -> Any:
        if not isinstance(value, str | list):
            raise PydanticCustomError("text_or_list", "must be a string or a list")
        return value if isinstance(value, list) else [as_item(value)]

    return BeforeValidator(to_list)


WordOrWords = Annotated[Words, text_or_list()]


def _kind_of_prompts(prompts: Any) -> str:
    """Return the type of a list by its first item; pydantic would try all types."""
    first = prompts[0] if prompts else ""
    if isinstance(first, str):
        return "list[str]"
    return "list[list[int]]" if isinstance(first, list) else "list[int]"


# Paths in errors omit the names of these types.
Prompts = Annotated[
    Annotated[list[str], Field(fail_fast=True, max_length=MAX_CHOICES), Tag("list[str]")]
    | Annotated[TokenIds, Tag("list[int]")]
    | Annotated[
        list[TokenIds], Field(fail_fast=True, max_length=MAX_CHOICES), Tag("list[list[int]]")
    ],
    Discriminator(_kind_of_prompts),
    text_or_list(),
]


def by_type(message: str, *, default: str = "") -> Discriminator:
    """Choose the model of an object by its `type`, for a union of models with tags `dict[TYPE]`.

    message: the error for other types. default: the type of an object without one.
    """

    def tag(value: Any) -> str | None:
        return f"dict[{value.get('type') or default}]" if isinstance(value, dict) else None

    return Discriminator(tag, custom_error_type="type", custom_error_message=message)
