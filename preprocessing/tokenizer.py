"""Load a Hugging Face tokenizer as `AutoTokenizer` would, with only the `tokenizers` library.

``tokenizer.json`` contains nearly everything, including BOS and EOS, so the config's
``add_bos_token`` is ignored, as in transformers 5. ``tokenizer_config.json`` adds special tokens
that ``tokenizer.json`` doesn't mark. Its ``clean_up_tokenization_spaces`` is ignored, as in
transformers 5 for BPE: it would remove spaces from the model's text (``x . y`` becomes ``x. y``),
which breaks code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

UNKNOWN_WORD_BYTES = 256  # one id may stand for any word that isn't in the vocabulary
NORMALIZED_BYTES = 4  # bytes that a normalizer may turn into one; no Unicode form shrinks more
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")
TOKEN_LISTS = ("additional_special_tokens", "extra_special_tokens")


class InputError(ValueError):
    """A request's tensor is wrong. The message is one line that names it. field: its name."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class TokenizerError(ValueError):
    """A tokenizer cannot be loaded. The message is one line with the folder and the fix."""


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer in a folder. Raises TokenizerError."""
    if not folder.is_dir():
        raise TokenizerError(f"tokenizer folder '{folder}' doesn't exist")
    config = read_json(folder / "tokenizer_config.json")
    tokenizer = _read_tokenizer(folder)
    _add_configured_tokens(tokenizer, folder, config)
    _mark_named_tokens(tokenizer, read_json(folder / "special_tokens_map.json") | config)
    # Training may have left both settings in the file, but a prompt must not be cut or padded.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def special_token_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Return the ids that a decoder omits when it skips special tokens."""
    added = tokenizer.get_added_tokens_decoder()
    return frozenset(token_id for token_id, token in added.items() if token.special)


def longest_token_bytes(tokenizer: Tokenizer) -> int:
    """Return the maximum number of UTF-8 bytes per token of an ordinary text.

    Other texts exceed it, because an unknown word, or spaces next to a special token, may have any
    length.
    """
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    bytewise = '"ByteLevel"' in _state(tokenizer.decoder)
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    longest = max(
        (
            len(token) if bytewise and token not in added else len(token.encode())
            for token in vocabulary
        ),
        default=1,
    )
    if not bytewise and '"ByteFallback"' not in _state(tokenizer.decoder):
        longest = max(longest, UNKNOWN_WORD_BYTES)
    return longest * (NORMALIZED_BYTES if tokenizer.normalizer is not None else 1)


def _state(part: Any) -> str:
    return "" if part is None else part.__getstate__().decode()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Return {} if the file doesn't exist."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(content, ensure_ascii=False).encode()  # fails for half of a surrogate pair
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"can't read '{path}': {error}") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"'{path}' must be a JSON object")
    return content


def _read_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(
            f"'{folder}' has no tokenizer.json; create it with transformers: "
            f"AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
        )
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower exception
        raise TokenizerError(f"can't read '{path}': {' '.join(str(error).split())}") from error


def _add_configured_tokens(tokenizer: Tokenizer, folder: Path, config: dict[str, Any]) -> None:
    """Add the tokens that only the config's added_tokens_decoder has, in its order.

    Raises TokenizerError if a token is invalid or its id would differ from the config's.
    """
    known = tokenizer.get_added_tokens_decoder()
    try:
        configured = {
            int(token_id): AddedToken(**{k: v for k, v in fields.items() if not k.startswith("_")})
            for token_id, fields in config.get("added_tokens_decoder", {}).items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise TokenizerError(
            f"added_tokens_decoder in '{folder / 'tokenizer_config.json'}' must be an object with "
            f"tokens by id: {error}"
        ) from error
    for token_id, token in sorted(configured.items()):
        same = known.get(token_id)
        if same and (same.content, same.special) == (token.content, token.special):
            continue
        tokenizer.add_tokens([token])
        if tokenizer.token_to_id(token.content) != token_id:
            raise TokenizerError(
                f"'{folder}': token '{token.content}' has id {token_id} in tokenizer_config.json "
                f"but {tokenizer.token_to_id(token.content)} in tokenizer.json"
            )


def _mark_named_tokens(tokenizer: Tokenizer, config: dict[str, Any]) -> None:
    """Mark BOS, EOS and so on as special if they are ordinary words of the vocabulary.

    Names without an id are ignored, because the model was never trained on them.
    """
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    named = [config.get(name) for name in NAMED_TOKENS]
    for items in (config.get(name) for name in TOKEN_LISTS):
        named += items if isinstance(items, list) else []
    for content in map(token_content, named):
        if content and content not in added and tokenizer.token_to_id(content) is not None:
            tokenizer.add_special_tokens([content])


def token_content(value: Any) -> str | None:
    """Return the text of a token, which a config stores as a string or an object."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None
