"""Converts tokenizers to the library's format."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from llguidance import LLTokenizer

from tandem.guides.errors import GuideError
from tandem.preprocessing.tokenizer import load_tokenizer


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
