"""Writes a small GGUF file with random weights in the layout that llama.cpp's converter uses."""

import ctypes
import json
from pathlib import Path
from typing import Any

from checkpoints import END, write_tokenizer

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def write_gguf(
    path: Path,
    *,
    seed: int = 1,
    omit: str = "",
    vocab: int = 0,
    architecture: str = "llama",
    quantization: str = "Q8_0",
    width: int = 64,
    tensors_per_file: int = 0,
    splitting: str = "gpt-2",
    window: int = 0,
    context: int = 512,
    scale: float = 0.3,
) -> None:
    """Write a two-layer Llama in float32, with a byte-level BPE tokenizer.

    omit: name of a tensor that the file lacks. vocab: write this number of tokens without a
    tokenizer, and quantized weights. architecture: the name in the file. quantization: ggml's name
    of the type; those with a K need a width of 256. tensors_per_file: split the file. splitting:
    llama.cpp's name of the rules that split a text before merges. window: length in tokens of the
    first layer's sliding window, for the architecture `gemma2`. context: context length.
    scale: standard deviation of the weights; with 0.1, outputs soon become repetitive.
    """
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFWriter

    writer = GGUFWriter(path, architecture, split_max_tensors=tensors_per_file)
    size = vocab or write_tokenizer(path.parent / "tokenizer")
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(2)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(width // 4)
    writer.add_vocab_size(size)
    if window:
        writer.add_sliding_window(window)
    if vocab:
        writer.add_tokenizer_model("none")
    else:
        _add_tokenizer(writer, path.parent / "tokenizer", splitting)
    random = np.random.default_rng(seed)
    shapes = {"token_embd": (size, width), "output_norm": (width,)}
    for layer in range(2):
        shapes |= {
            f"blk.{layer}.{name}": shape
            for name, shape in {
                "attn_norm": (width,),
                "attn_q": (width, width),
                "attn_k": (width // 2, width),
                "attn_v": (width // 2, width),
                "attn_output": (width, width),
                "ffn_norm": (width,),
                "ffn_gate": (2 * width, width),
                "ffn_up": (2 * width, width),
                "ffn_down": (width, 2 * width),
            }.items()
        }
        if architecture == "gemma2":
            names = "post_attention_norm", "post_ffw_norm"
            shapes |= {f"blk.{layer}.{name}": (width,) for name in names}
    shapes.pop(omit, None)
    for name, shape in shapes.items():
        weights = random.normal(scale=scale, size=shape) if len(shape) > 1 else np.ones(shape)
        weights = weights.astype(np.float32)
        if vocab and len(shape) > 1:
            kind = GGMLQuantizationType[quantization]
            writer.add_tensor(f"{name}.weight", _quantized(weights, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _quantized(weights: Any, kind: int) -> Any:
    """Quantize weights [rows, width] with ggml. Return bytes [rows, bytes per row]."""
    import numpy as np

    from tandem.engines.llamacpp import api

    rows, width = weights.shape
    quantize = api.open_library().ggml_quantize_chunk
    quantize.restype, where = ctypes.c_size_t, ctypes.c_void_p
    quantize.argtypes = (ctypes.c_int, where, where, *[ctypes.c_int64] * 3, where)
    result = np.empty(4 * weights.size, np.uint8)
    places = weights.ctypes.data, result.ctypes.data
    size = quantize(kind, *places, 0, rows, width, None)
    return result[:size].reshape(rows, -1)


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


def _add_tokenizer(writer: Any, folder: Path, splitting: str) -> None:
    from gguf import TokenType

    merged = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = sorted(merged["vocab"], key=merged["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitting)
    writer.add_token_list(tokens)
    kinds = [TokenType.CONTROL if token == END else TokenType.NORMAL for token in tokens]
    writer.add_token_types(kinds)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merged["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)
