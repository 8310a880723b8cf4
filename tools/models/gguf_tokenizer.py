"""Writes the tokenizer and configuration of a GGUF file, in a separate process: FILE FOLDER."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

from tandem.engines.errors import LoadError, typed_line
from tandem.engines.llamacpp import api

# llama.cpp's names of the rules that split a text at each digit (llama-vocab.cpp)
SPLIT_DIGITS = ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b")
LONGEST_NAME = 100  # bytes


def write_tokenizer(path: Path, folder: Path) -> None:
    """Write config.json, generation_config.json, and the tokenizer with the file's chat template.

    Raises LoadError.
    """
    llama = api.open_library()
    options = llama.llama_model_default_params()
    options.vocab_only = True
    model = api.load(llama, path, options)
    from transformers import AutoConfig, AutoTokenizer  # noqa: PLC0415  takes seconds

    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    config = AutoConfig.from_pretrained(**where, local_files_only=True)
    AutoTokenizer.from_pretrained(**where, local_files_only=True).save_pretrained(folder)
    name = ctypes.create_string_buffer(LONGEST_NAME)
    llama.llama_model_meta_val_str(model, b"tokenizer.ggml.pre", name, LONGEST_NAME)
    if name.value.decode() in SPLIT_DIGITS:
        _split_digits(folder / "tokenizer.json")
    vocabulary = llama.llama_model_get_vocab(model)
    config.vocab_size = size = llama.llama_vocab_n_tokens(vocabulary)
    ends = [i for i in range(size) if llama.llama_vocab_is_eog(vocabulary, i)]
    # Engines stop at the first one themselves, so it must be the file's own.
    own = llama.llama_vocab_eos(vocabulary)
    config.eos_token_id = sorted(ends, key=lambda token: token != own) or None
    llama.llama_model_free(model)
    config.save_pretrained(folder)


def _split_digits(file: Path) -> None:
    """Split a text at each digit first, which transformers omits."""
    content = json.loads(file.read_text())
    digits = {"type": "Digits", "individual_digits": True}
    steps = [digits, content["pre_tokenizer"]]
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    file.write_text(json.dumps(content, ensure_ascii=False))


def main() -> None:
    path, folder = map(Path, sys.argv[1:])
    try:
        write_tokenizer(path, folder)
    except LoadError as error:
        sys.exit(str(error))
    except Exception as error:  # noqa: BLE001  the caller gets one line of any error
        sys.exit(f"can't read {path}: {typed_line(error)}")


if __name__ == "__main__":
    main()
