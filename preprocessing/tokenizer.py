"""Loads the tokenizer of a Hugging Face folder as `AutoTokenizer` would, by `tokenizers` alone.

``tokenizer.json`` holds nearly all of it, BOS and EOS included: as transformers 5 does, the
config's ``add_bos_token`` is followed only where there is no such file. ``tokenizer_config.json``
adds special tokens that ``tokenizer.json`` does not mark. Its ``clean_up_tokenization_spaces`` is
not followed: it takes spaces out of the model's own text (``x . y`` becomes ``x. y``), which
spoils code, and transformers 5 ignores it for BPE as well.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from tandem.preprocessing.errors import TokenizerError

GPT2_CLASSES = ("GPT2Tokenizer", "GPT2TokenizerFast")
GPT2_END = "<|endoftext|>"
UNKNOWN_WORD_BYTES = 256  # one id may stand for any word that is not in the vocabulary
NORMALIZED_BYTES = 4  # of which a normalizer makes one: Unicode's forms shrink no text more
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")
TOKEN_LISTS = ("additional_special_tokens", "extra_special_tokens")


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer of a folder; raises TokenizerError."""
    if not folder.is_dir():
        raise TokenizerError(f"tokenizer folder '{folder}' does not exist")
    config = read_json(folder / "tokenizer_config.json")
    tokenizer = _read_tokenizer(folder, config)
    _add_configured_tokens(tokenizer, folder, config)
    _mark_named_tokens(tokenizer, read_json(folder / "special_tokens_map.json") | config)
    # Training may have left both in the file, but a prompt must not be cut or padded.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def special_token_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Return the ids that a decoder skips when it skips special tokens."""
    added = tokenizer.get_added_tokens_decoder()
    return frozenset(token_id for token_id, token in added.items() if token.special)


def longest_token_bytes(tokenizer: Tokenizer) -> int:
    """Return an upper bound of a text's bytes of UTF-8 per token.

    Some texts exceed it: an unknown word, or spaces next to a special token, may have any length.
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
    """Read an object; {} where the file does not exist."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerError(f"'{path}' is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"'{path}' holds no JSON object")
    return content


def _read_tokenizer(folder: Path, config: dict[str, Any]) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        if _is_gpt2(folder, config):
            return _gpt2_tokenizer(folder, config)
        raise TokenizerError(
            f"'{folder}' has no tokenizer.json; make one where transformers is installed: "
            f"AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
        )
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower one
        raise TokenizerError(f"'{path}' cannot be read: {' '.join(str(error).split())}") from error


def _is_gpt2(folder: Path, config: dict[str, Any]) -> bool:
    """Say whether vocab.json and merges.txt are GPT-2's.

    Other families (Qwen2) ship files of the same names and split text by other rules, which are
    written nowhere in them: taking those for GPT-2's would give wrong ids in silence.
    """
    if not all((folder / name).is_file() for name in ("vocab.json", "merges.txt")):
        return False
    kind = config.get("tokenizer_class")
    if kind is None:
        return bool(read_json(folder / "config.json").get("model_type", "gpt2") == "gpt2")
    return str(kind) in GPT2_CLASSES


def _gpt2_tokenizer(folder: Path, config: dict[str, Any]) -> Tokenizer:
    try:
        model = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    except Exception as error:  # the library raises no narrower one
        raise TokenizerError(
            f"'{folder}': vocab.json, merges.txt cannot be read: {error}"
        ) from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=bool(config.get("add_prefix_space", False))
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = _bos_and_eos(tokenizer, config)
    if tokenizer.token_to_id(GPT2_END) is not None:
        tokenizer.add_special_tokens([GPT2_END])
    return tokenizer


def _add_configured_tokens(tokenizer: Tokenizer, folder: Path, config: dict[str, Any]) -> None:
    """Add what the config's added_tokens_decoder knows and tokenizer.json does not, in its order.

    A token whose id would come out another than the config says is refused.
    """
    known = tokenizer.get_added_tokens_decoder()
    configured = {int(i): token for i, token in config.get("added_tokens_decoder", {}).items()}
    for token_id, fields in sorted(configured.items()):
        token = AddedToken(**{k: v for k, v in fields.items() if not k.startswith("_")})
        same = known.get(token_id)
        if same and (same.content, same.special) == (token.content, token.special):
            continue
        tokenizer.add_tokens([token])
        if tokenizer.token_to_id(token.content) != token_id:
            raise TokenizerError(
                f"'{folder}': tokenizer_config.json says token '{token.content}' is id {token_id}, "
                f"tokenizer.json makes it {tokenizer.token_to_id(token.content)}"
            )


def _mark_named_tokens(tokenizer: Tokenizer, config: dict[str, Any]) -> None:
    """Make BOS, EOS, ... special where they are ordinary words of the vocabulary.

    A name that has no id is left out: the models were never trained on it.
    """
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    named = [config.get(name) for name in NAMED_TOKENS]
    for items in (config.get(name) for name in TOKEN_LISTS):
        named += items if isinstance(items, list) else []
    for content in map(_content, named):
        if content and content not in added and tokenizer.token_to_id(content) is not None:
            tokenizer.add_special_tokens([content])


def _content(value: Any) -> str | None:
    """Return the text of a token, which a config writes plainly or as an object."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _bos_and_eos(tokenizer: Tokenizer, config: dict[str, Any]) -> processors.TemplateProcessing:
    names = {side: _content(config.get(f"{side}_token")) or GPT2_END for side in ("bos", "eos")}
    ids = {name: tokenizer.token_to_id(name) for name in names.values()}
    added = {
        side: [name] if config.get(f"add_{side}_token") and ids[name] is not None else []
        for side, name in names.items()
    }
    template = [*added["bos"], "$A", *added["eos"]]
    special = [(name, token_id) for name, token_id in ids.items() if token_id is not None]
    return processors.TemplateProcessing(
        single=template, pair=[*template, "$B"], special_tokens=special
    )
