"""Writes the tokenizer and configuration of a GGUF file, in a separate process: FILE FOLDER."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from tandem.engines.errors import typed_line
from tandem.tools.errors import TandemError


def write_tokenizer(path: Path, folder: Path) -> None:
    """Write config.json, generation_config.json and the tokenizer. Raises TandemError."""
    import llama_cpp  # noqa: PLC0415  an extra
    from transformers import AutoConfig, AutoTokenizer  # noqa: PLC0415  takes seconds

    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    config = AutoConfig.from_pretrained(**where, local_files_only=True)
    AutoTokenizer.from_pretrained(**where, local_files_only=True).save_pretrained(folder)

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
    def ignore(_level: int, _text: bytes, _data: ctypes.c_void_p) -> None: ...

    llama_cpp.llama_log_set(ignore, ctypes.c_void_p(0))
    options = llama_cpp.llama_model_default_params()
    options.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path), options)
    if not model:
        raise TandemError("llama.cpp can't read its vocabulary")
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    config.vocab_size = size = llama_cpp.llama_vocab_n_tokens(vocabulary)
    ends = [i for i in range(size) if llama_cpp.llama_vocab_is_eog(vocabulary, i)]
    # Engines stop at the first one themselves, so it must be the file's own.
    own = llama_cpp.llama_vocab_eos(vocabulary)
    config.eos_token_id = sorted(ends, key=lambda token: token != own) or None
    llama_cpp.llama_model_free(model)
    config.save_pretrained(folder)


def main() -> None:
    try:
        write_tokenizer(Path(sys.argv[1]), Path(sys.argv[2]))
    except Exception as error:  # noqa: BLE001  the caller gets one line of any error
        sys.exit(str(error) if isinstance(error, TandemError) else typed_line(error))


if __name__ == "__main__":
    main()
