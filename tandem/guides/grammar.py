"""Converts guides to grammars of the library, and tokenizers to its format."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from llguidance import LLMatcher, LLTokenizer

from tandem.contract.guide import EXACT, LAYOUT_KEY, Guide, lark_regex, layout_of
from tandem.guides.errors import GuideError, shorten
from tandem.guides.gbnf import convert_gbnf
from tandem.guides.schemas import exact_options, prepare_schema
from tandem.preprocessing.tokenizer import load_tokenizer

# A schema (``json``), and the tokens that may contain `%json` without a schema: comments, strings,
# regular expressions and special tokens.
LARK_TOKEN = re.compile(
    r"""(?:\#|//)[^\n]* | "(?:\\.|[^"\\])*"? | /(?:\\.|[^/\\])+/? | <[^<>\s]+>
    | (?P<json>%json\s*(?=\{))""",
    re.DOTALL | re.VERBOSE,
)
# A set of token ids, such as <[5]> or <[5-7,9]>
TOKEN_IDS = re.compile(r"<\[[0-9,-]+\]>")
MAX_CHOICES = 10_000


def make_grammar(guide: Guide, special: Mapping[str, int] = {}) -> str:
    """Return the library's grammar for a guide; raise GuideError if the guide is invalid.

    special: ids of the tokens that aren't text, by name. A Lark grammar may name them.
    """
    text = guide.text
    if guide.kind == "lark_grammar":

        def by_id(found: re.Match[str]) -> str:
            # The library forces the only token of a set incorrectly if the token is text.
            if TOKEN_IDS.fullmatch(found[0]):
                ids = {number.lstrip("0") or "0" for number in re.findall("[0-9]+", found[0])}
                if len(ids) == 1 and ids.isdisjoint(map(str, special.values())):
                    name = shorten(found[0])
                    raise GuideError(f"'{name}' isn't a special token; write its text instead")
            return f"<[{special[found[0]]}]>" if found[0] in special else found[0]

        text = LARK_TOKEN.sub(by_id, text)
    if guide.kind == "ebnf_grammar":
        return _gbnf(text, special)
    try:
        return GRAMMARS[guide.kind](text)
    except ValueError as error:
        raise GuideError(_first_line(error)) from error


def _json_schema(text: str) -> str:
    """Return the grammar for a JSON schema, which may set its own layout."""
    try:
        read = json.loads(text)
        compiled = prepare_schema(read)
    except (ValueError, RecursionError):  # the library reports the error
        return LLMatcher.grammar_from_json_schema(text, overrides=exact_options({}))  # type: ignore[arg-type]
    layout, options = dict(layout_of(compiled)) or None, exact_options(compiled)
    return LLMatcher.grammar_from_json_schema(json.dumps(compiled), layout, options)  # type: ignore[arg-type]


def _json(text: str) -> str:
    if text:
        raise GuideError("a guide of the type 'json' takes no text; omit it")
    return _json_schema("{}")


def _regex(text: str) -> str:
    """Return the grammar for a regular expression.

    The library's own function would change line endings in it.
    """
    return LLMatcher.grammar_from_lark(f"start: {lark_regex(text)}")


def _lark(text: str) -> str:
    """Return a Lark grammar whose JSON schemas are prepared for the library."""
    pieces, at = [], 0
    while found := LARK_TOKEN.search(text, at):
        pieces.append(text[at : found.end()])
        at = found.end()
        if found["json"]:
            schema, at = _schema_in_lark(text, at)
            pieces.append(schema)
    return LLMatcher.grammar_from_lark("".join([*pieces, text[at:]]))


def _schema_in_lark(text: str, at: int) -> tuple[str, int]:
    """Return the prepared schema at an offset of a grammar, and the offset of its end."""
    try:
        read, end = json.JSONDecoder().raw_decode(text, at)
        compiled = _exact_in_lark(read)
    except (ValueError, RecursionError):
        return "", at  # the library reports the error
    except GuideError as error:
        before = text[:at]
        line, column = before.count("\n") + 1, at - before.rfind("\n")
        raise GuideError(f"at {line}({column}): {error}") from error
    lines = "\n" * text.count("\n", at, end)  # preserves line numbers for errors
    return f"{json.dumps(compiled)[:-1]}{lines}}}", end


def _exact_in_lark(schema: dict[str, Any]) -> dict[str, Any]:
    """Prepare a schema; raise GuideError if its own options would weaken it."""
    compiled = prepare_schema(schema)
    own = compiled.get(LAYOUT_KEY, {})
    if isinstance(own, dict):
        inexact = [name for name in EXACT if own.get(name)]
        if inexact:
            raise GuideError(f"'{inexact[0]}' isn't supported in '{LAYOUT_KEY}'; remove it")
        compiled[LAYOUT_KEY] = {**own, **exact_options(compiled)}
    return compiled


def _gbnf(text: str, special: Mapping[str, int]) -> str:
    """Return the grammar for a guide in llama.cpp's EBNF (GBNF)."""
    try:
        return LLMatcher.grammar_from_lark(convert_gbnf(text, special))
    except (GuideError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise GuideError(f"it must be EBNF in llama.cpp's dialect (GBNF): {reason}") from error


def _choice(text: str) -> str:
    """Return a grammar that matches any of the given texts."""
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError):
        choices = None
    if not isinstance(choices, list) or not all(c and isinstance(c, str) for c in choices):
        raise GuideError('choices must be a JSON list of non-empty strings, such as ["yes", "no"]')
    if not 0 < len(choices) <= MAX_CHOICES:
        raise GuideError(f"there must be between 1 and {MAX_CHOICES} choices; got {len(choices)}")
    return _regex("|".join(map(_escape_literal, choices)))


def _escape_literal(text: str) -> str:
    """Return a regular expression that matches only ``text``."""
    return "".join(c if c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)


GRAMMARS: Final[dict[str, Callable[[str], str]]] = {
    "json": _json,
    "json_schema": _json_schema,
    "regex": _regex,
    "choice": _choice,
    "lark_grammar": _lark,
}


def _first_line(error: Exception) -> str:
    return shorten(str(error).strip().partition("\n")[0]) or type(error).__name__


class GuideTokenizer(NamedTuple):
    """A tokenizer in the library's format.

    special: ids of the tokens that aren't text, by name. secret: start of their names in the
    library.
    """

    library: LLTokenizer
    special: Mapping[str, int]
    secret: str

    def with_names(self, error: str) -> str:
        """Replace the library's names of special tokens in its error."""
        names = {str(token): name for name, token in self.special.items()}
        return re.sub(rf"{self.secret} (\d+)", lambda found: names[found[1]], error)


def read_tokenizer(folder: Path, vocab_size: int, end_ids: Sequence[int]) -> GuideTokenizer:
    """Read a tokenizer, with the given end-of-sequence ids.

    Raises GuideError if the library can't read the tokenizer.
    """
    read = json.loads(load_tokenizer(folder).to_str())
    special = {
        token["content"]: token["id"] for token in read["added_tokens"] if _is_special(token)
    }
    secret = secrets.token_hex(16)
    _rename(read, {name: f"{secret} {token}" for name, token in special.items()})
    try:
        library = LLTokenizer(json.dumps(read), n_vocab=vocab_size, eos_token=list(end_ids))
    except ValueError as error:
        raise GuideError("llguidance can't read its tokenizer") from error
    return GuideTokenizer(library, special, secret)


def _is_special(token: Mapping[str, Any]) -> bool:
    """Return whether an added token isn't text for the library."""
    name: str = token["content"]
    return token["special"] or (name.startswith("<") and name.endswith(">"))


def _rename(read: dict[str, Any], names: Mapping[str, str]) -> None:
    """Give the special tokens new names, which no client can guess.

    Otherwise the library would encode text that equals such a name, such as a constant in a guide,
    as the special token.
    """
    for token in read["added_tokens"]:
        if token["content"] in names:
            token |= {"content": names[token["content"]], "special": True, "normalized": False}
    model = read["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(name, name): i for name, i in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(name, name), score] for name, score in model["vocab"]]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        model["merges"] = [
            merge for merge in model["merges"] if not names.keys() & {*merge, "".join(merge)}
        ]
