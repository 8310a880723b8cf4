"""Writes a small GGUF file with random weights in the layout that llama.cpp's converter uses."""

import json
from pathlib import Path
from typing import Any

from checkpoints import END, write_tokenizer

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def write_gguf(
    path: Path, *, seed: int = 1, omit: str = "", vocab: int = 0, architecture: str = "llama"
) -> None:
    """Write a two-layer Llama in float32, with a byte-level BPE tokenizer.

    omit: name of a tensor that the file lacks. vocab: write this number of tokens without a
    tokenizer, and weights in Q8_0. architecture: the name in the file.
    """
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    writer = GGUFWriter(path, architecture)
    size = vocab or write_tokenizer(path.parent / "tokenizer")
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(size)
    if vocab:
        writer.add_tokenizer_model("none")
    else:
        _add_tokenizer(writer, path.parent / "tokenizer")
    random = np.random.default_rng(seed)
    shapes = {"token_embd": (size, 64), "output_norm": (64,)}
    for layer in range(2):
        shapes |= {
            f"blk.{layer}.{name}": shape
            for name, shape in {
                "attn_norm": (64,),
                "attn_q": (64, 64),
                "attn_k": (32, 64),
                "attn_v": (32, 64),
                "attn_output": (64, 64),
                "ffn_norm": (64,),
                "ffn_gate": (128, 64),
                "ffn_up": (128, 64),
                "ffn_down": (64, 128),
            }.items()
        }
    shapes.pop(omit, None)
    for name, shape in shapes.items():
        weights = random.normal(scale=0.3, size=shape) if len(shape) > 1 else np.ones(shape)
        weights = weights.astype(np.float32)
        if vocab and len(shape) > 1:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(f"{name}.weight", quantize(weights, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaTokenizer:
    """llama.cpp's own tokenizer of a GGUF file."""

    def __init__(self, path: Path) -> None:
        from tandem.engines.llamacpp import api

        self._llama = api.open_library()
        options = self._llama.llama_model_default_params()
        options.vocab_only = True
        self._model = api.load(self._llama, path, options)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without a BOS token and with special tokens."""
        import numpy as np

        raw, ids = text.encode(), np.zeros(len(text.encode()) + 1, np.int32)
        vocabulary = self._llama.llama_model_get_vocab(self._model)
        where = ids.ctypes.data, len(ids)
        count = self._llama.llama_tokenize(vocabulary, raw, len(raw), *where, False, True)
        return ids[:count].tolist()


def _add_tokenizer(writer: Any, folder: Path) -> None:
    from gguf import TokenType

    merged = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = sorted(merged["vocab"], key=merged["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    kinds = [TokenType.CONTROL if token == END else TokenType.NORMAL for token in tokens]
    writer.add_token_types(kinds)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merged["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)
