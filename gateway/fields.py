"""Fields of OpenAI's and vLLM's requests that the gateway does not take, and why.

A refused field would change the answer; its neutral values, and null, pass. An ignored one would
not.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Any, NamedTuple

from pydantic_core import PydanticCustomError

MOST_LEVELS = 64  # of lists and objects in each other: all that is read here recurses
LONGEST_QUOTE = 40  # characters of a client's own text in an error


class Refused(NamedTuple):
    """Why a field is refused, and the values that ask for nothing."""

    why: str
    neutral: tuple[Any, ...] = ()


_TOOLS = "tools belong to chats; send tools to /v1/chat/completions"
_GUIDES = "guided decoding is not supported"

REFUSED: dict[str, Refused] = {
    "audio": Refused("answers are text"),
    "best_of": Refused("send n, and choose yourself", (1,)),
    "echo": Refused("a chat's prompt is not repeated", (False,)),
    "function_call": Refused("it was replaced: send tool_choice", ("none", "auto")),
    "functions": Refused("they were replaced: send tools", ([],)),
    "guided_choice": Refused(_GUIDES),
    "guided_grammar": Refused(_GUIDES),
    "guided_json": Refused(_GUIDES),
    "guided_regex": Refused(_GUIDES),
    "length_penalty": Refused("it belongs to beam search", (1, 0)),
    "min_p": Refused("engines do not sample with it", (0,)),
    "modalities": Refused("answers are text", (["text"],)),
    "prompt_logprobs": Refused("send echo and logprobs to /v1/completions"),
    "reasoning_effort": Refused("the length of reasoning cannot be set", ("none",)),
    "response_format": Refused(_GUIDES, ({"type": "text"},)),
    "skip_special_tokens": Refused("the deployment decides it", (True,)),
    "stop_token_ids": Refused("send stop strings", ([],)),
    "structured_outputs": Refused(_GUIDES),
    "suffix": Refused("text is only added at the end", ("",)),
    "parallel_tool_calls": Refused(_TOOLS, (True, False)),
    "tool_choice": Refused(_TOOLS, ("none", "auto")),
    "tools": Refused(_TOOLS, ([],)),
    "top_logprobs": Refused("a completion takes their number as logprobs", (0,)),
    "use_beam_search": Refused("speculative decoding verifies one continuation", (False,)),
    "verbosity": Refused("the length of answers is set by max_tokens alone"),
    "web_search_options": Refused("nothing is searched"),
}

IGNORED: dict[str, str] = {
    "metadata": "nothing is stored",
    "prediction": "it only speeds up OpenAI's answers; drafts do that here",
    "prompt_cache_key": "a prompt's KV cache is reused by its content",
    "prompt_cache_retention": "a prompt's KV cache is reused while it is there",
    "safety_identifier": "users are not distinguished",
    "service_tier": "there is one",
    "store": "nothing is stored",
    "user": "users are not distinguished",
}


def accepted(body: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return what of a body is to be read; raise PydanticCustomError for what is refused.

    known: the fields that the endpoint takes.
    """
    for name, value in body.items():
        _check_plain(name, [name, value])
    given = {k: v for k, v in body.items() if v is not None and k not in IGNORED}
    for name, value in given.items():
        if name not in known:
            _refuse(name, value, known)
    return {name: value for name, value in given.items() if name in known}


def _check_plain(field: str, value: Any, level: int = 0) -> None:
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
                _check_plain(field, item, level + 1)


def _unreadable(field: str, why: str, code: str) -> PydanticCustomError:
    shown = quoted(field.encode(errors="replace").decode())
    return _error(shown, f"{shown}: {why}", code)


def quoted(text: str) -> str:
    """A client's own text, short."""
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}..."


def _refuse(name: str, value: Any, known: Collection[str]) -> None:
    if name not in REFUSED:
        shown = quoted(name)
        near = difflib.get_close_matches(shown, sorted(known), n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise _error(shown, f"unknown field '{shown}'{hint}", "unknown_field")
    if not any(_same(value, neutral) for neutral in REFUSED[name].neutral):
        message = f"field '{name}' is not supported: {REFUSED[name].why}"
        raise _error(name, message, "unsupported_field")


def _same(value: Any, neutral: Any) -> bool:
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def _error(field: str, message: str, code: str) -> PydanticCustomError:
    return PydanticCustomError(
        "field", "{message}", {"message": message, "field": field, "code": code}
    )
