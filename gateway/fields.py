"""Fields of OpenAI's and vLLM's requests that the gateway does not take, and why.

A refused field would change the answer; its neutral values, and null, pass. An ignored one would
not.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Any, NamedTuple

from pydantic_core import PydanticCustomError


class Refused(NamedTuple):
    """Why a field is refused, and the values that ask for nothing."""

    why: str
    neutral: tuple[Any, ...] = ()


_TOOLS = "tool calls are not supported"
_GUIDES = "guided decoding is not supported"

REFUSED: dict[str, Refused] = {
    "audio": Refused("answers are text"),
    "best_of": Refused("send n, and choose yourself", (1,)),
    "echo": Refused("a chat's prompt is not repeated", (False,)),
    "function_call": Refused(_TOOLS, ("none", "auto")),
    "functions": Refused(_TOOLS, ([],)),
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
    "tool_choice": Refused(_TOOLS, ("none", "auto")),
    "tools": Refused(_TOOLS, ([],)),
    "top_logprobs": Refused("a completion takes their number as logprobs", (0,)),
    "use_beam_search": Refused("speculative decoding verifies one continuation", (False,)),
    "verbosity": Refused("the length of answers is set by max_tokens alone"),
    "web_search_options": Refused("nothing is searched"),
}

IGNORED: dict[str, str] = {
    "metadata": "nothing is stored",
    "parallel_tool_calls": "tool calls are not supported",
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
        _refuse_halves(name, [name, value])
    given = {k: v for k, v in body.items() if v is not None and k not in IGNORED}
    for name, value in given.items():
        if name not in known:
            _refuse(name, value, known)
    return {name: value for name, value in given.items() if name in known}


def _refuse_halves(field: str, value: Any) -> None:
    """Refuse half of a surrogate pair in a field: JSON can spell it, but it is not text."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            shown = field.encode(errors="replace").decode()
            message = f"{shown}: holds half of a surrogate pair, which is not a character"
            raise _error(shown, message, "invalid_text") from None
    elif isinstance(value, dict):
        _refuse_halves(field, [*value, *value.values()])
    elif isinstance(value, list):
        for item in value:
            _refuse_halves(field, item)


def _refuse(name: str, value: Any, known: Collection[str]) -> None:
    if name not in REFUSED:
        near = difflib.get_close_matches(name, sorted(known), n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise _error(name, f"unknown field '{name}'{hint}", "unknown_field")
    if not any(_same(value, neutral) for neutral in REFUSED[name].neutral):
        message = f"field '{name}' is not supported: {REFUSED[name].why}"
        raise _error(name, message, "unsupported_field")


def _same(value: Any, neutral: Any) -> bool:
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def _error(field: str, message: str, code: str) -> PydanticCustomError:
    return PydanticCustomError(
        "field", "{message}", {"message": message, "field": field, "code": code}
    )
