"""Render messages as transformers' `apply_chat_template` does, without transformers.

A template comes with a checkpoint, so it is untrusted code. It runs in jinja2's immutable sandbox
and gets only plain data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from operator import eq
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from tandem.preprocessing.tokenizer import read_json, token_content

NAMED_TOKENS = (
    *("bos_token", "eos_token", "unk_token", "sep_token"),
    *("pad_token", "cls_token", "mask_token"),
)
# transformers' names for templates
DEFAULT, WITH_TOOLS = "default", "tool_use"
SYSTEM = ("system", "developer")


class ChatTemplateError(ValueError):
    """A chat can't be rendered. The message is one line."""


class ChatTemplate:
    """A chat template and its special tokens.

    source, source_with_tools: text of the template, and of the one for chats with tools.
    special_tokens: texts by name, such as `bos_token`.
    """

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self.source = sources[DEFAULT]
        self.source_with_tools = sources.get(WITH_TOOLS, self.source)
        self._special_tokens = special_tokens
        self._compiled = {s: _compile(s) for s in (self.source, self.source_with_tools)}
        self._late_systems = {s: self._shows_late_systems(s) for s in self._compiled}

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        variables: Mapping[str, Any] = {},
    ) -> str:
        """Return the prompt. Raises ChatTemplateError if the template fails or rejects the chat.

        variables: additional variables, which take precedence over special tokens. The prompt ends
        with the start of an answer unless `add_generation_prompt` is false.
        """
        source = self.source if variables.get("tools") is None else self.source_with_tools
        if "developer" not in source:  # a role that older models don't know
            system = {"role": "system"}
            messages = [m | system if m.get("role") == "developer" else m for m in messages]
        messages = _place_systems(messages, fold=not self._late_systems[source])
        return self._render(source, messages, variables)

    def _render(
        self, source: str, messages: Sequence[dict[str, Any]], variables: Mapping[str, Any] = {}
    ) -> str:
        try:
            return self._compiled[source].render(
                {
                    **self._special_tokens,
                    "tools": None,
                    "documents": None,
                    "add_generation_prompt": True,
                    **variables,
                    "messages": messages,
                }
            )
        except Exception as error:  # a template can raise anything
            text = " ".join(str(error).split())
            raise ChatTemplateError(f"the chat template rejects these messages: {text}") from error

    def _shows_late_systems(self, source: str) -> bool:
        """Return whether a system message after the first one becomes a turn in its place."""
        roles = ("system", "user", "assistant", "user")
        chat = [{"role": role, "content": f"text {n}"} for n, role in enumerate(roles)]
        late = {"role": "system", "content": "late instructions"}
        try:
            without = self._render(source, chat)
            prompts = [self._render(source, [*chat[:n], late, *chat[n:]]) for n in (3, 4)]
        except ChatTemplateError:
            return False
        for prompt in prompts:
            shared = sum(1 for _ in takewhile(bool, map(eq, prompt, without)))
            added = prompt[shared : len(prompt) - len(without) + shared]
            if not prompt.endswith(without[shared:]) or late["content"] not in added:
                return False
            if added.strip() == late["content"]:  # without a role
                return False
        return True


def _place_systems(messages: Sequence[dict[str, Any]], *, fold: bool) -> list[dict[str, Any]]:
    """Return the messages with one system message at the start, as most templates require.

    fold: whether later system messages become part of the message of the user or tool before them,
    or else of the next one. They stay where they are in the chat, so that the KV cache of earlier
    messages remains usable.
    """
    first = next((n for n, m in enumerate(messages) if m.get("role") not in SYSTEM), len(messages))
    placed = [{**messages[0], "content": _join(messages[:first])}] if first else []
    waiting: list[dict[str, Any]] = []  # system messages before the next message
    for message in messages[first:]:
        role = message.get("role")
        if not fold:
            placed.append(message)
        elif role in SYSTEM:
            if placed and placed[-1].get("role") in ("user", "tool"):
                placed[-1] = {**placed[-1], "content": _join([placed[-1], message])}
            else:
                waiting.append(message)
        elif role == "assistant":
            if waiting:
                placed.append({"role": "user", "content": _join(waiting)})
            placed.append(message)
            waiting = []
        else:
            placed.append({**message, "content": _join([*waiting, message])})
            waiting = []
    return [*placed, {"role": "user", "content": _join(waiting)}] if waiting else placed


def _join(messages: Sequence[dict[str, Any]]) -> str:
    return "\n\n".join(filter(None, (message["content"] for message in messages)))


def _compile(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(
        raise_exception=_raise_exception,
        strftime_now=_strftime_now,
        dict=_Dict(),
        namespace=_Namespace,
    )
    try:
        return environment.from_string(source)
    except (TemplateError, TypeError) as error:
        raise ChatTemplateError(f"can't read the chat template: {error}") from error


def load_chat_template(folder: Path, file: Path | None = None) -> ChatTemplate | None:
    """Return the template in `file` or in the tokenizer's folder, or None if there is none.

    Raises ChatTemplateError, or OSError if a file can't be read.
    """
    sources = {DEFAULT: _text(file)} if file else _sources(folder)
    if DEFAULT not in sources:
        return None
    return ChatTemplate(sources, special_tokens(folder))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ChatTemplateError(f"can't read {file}: it isn't UTF-8") from error


def _sources(folder: Path) -> dict[str, str]:
    """Return a folder's templates by name. Files take precedence over the configuration."""
    named = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    files = {file.stem: file for file in named} | {DEFAULT: folder / "chat_template.jinja"}
    found = {n: _text(file) for n, file in files.items() if file.is_file()}
    if DEFAULT in found:
        return found
    path = folder / "tokenizer_config.json"
    configured = read_json(path).get("chat_template")
    if isinstance(configured, str):
        return {DEFAULT: configured} | found
    try:
        return {entry["name"]: entry["template"] for entry in configured or ()} | found
    except (TypeError, KeyError) as error:
        raise ChatTemplateError(
            f"chat_template in {path} must be a text, or a list of objects with name and template"
        ) from error


def special_tokens(folder: Path) -> dict[str, str]:
    """Return the texts of a tokenizer's special tokens by name, such as `bos_token`."""
    given = {
        **read_json(folder / "special_tokens_map.json"),
        **read_json(folder / "tokenizer_config.json"),
    }
    contents = {name: token_content(given.get(name)) for name in NAMED_TOKENS}
    extra = given.get("extra_special_tokens")
    if isinstance(extra, dict):
        contents |= {name: token_content(value) for name, value in extra.items()}
    return {name: content for name, content in contents.items() if content is not None}


class _Generation(Extension):
    """Accepts `{% generation %}`, which matters only for training."""

    tags = {"generation"}  # noqa: RUF012 declared as in jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON for a model. jinja2's own filter would escape it for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class _Dict:
    """`dict` without attributes that would let a template leave the sandbox."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """`namespace` without private attributes."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *given = args
        attributes = dict(*given, **kwargs)
        for name in attributes:
            _reject_private(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _reject_private(name)
        super().__setitem__(name, value)


def _reject_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"namespace attribute {name!r} must not begin with an underscore")
