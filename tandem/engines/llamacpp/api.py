"""llama.cpp's C API, called in the library of the package xllamacpp.

xllamacpp has wheels on PyPI, but its Python classes have no forward pass with several sequences.
The declarations equal those in llama.h of `VERSION`; they change between versions.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_bool, c_char_p, c_float, c_int, c_int32, c_size_t, c_uint32, c_void_p
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tandem.engines.errors import LoadError

PACKAGE = "xllamacpp"
VERSION = "2026.10.11549"
F16, BF16 = 1, 30  # ggml_type
FLASH_ATTENTION = 1  # llama_flash_attn_type
ERROR_LEVEL = 4  # ggml_log_level
LogCallback = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)
_errors: list[str] = []  # of llama.cpp, since a load began


class ModelParams(ctypes.Structure):
    """llama_model_params."""

    _fields_ = (
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int),
        ("load_mode", c_int),
        ("lazy_mode", c_int),
        ("main_gpu", c_int32),
        ("tensor_split", c_void_p),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", c_void_p),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
    )


class ContextParams(ctypes.Structure):
    """llama_context_params."""

    _fields_ = (
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32),
        ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int),
        ("rope_scaling_type", c_int),
        ("pooling_type", c_int),
        ("attention_type", c_int),
        ("flash_attn_type", c_int),
        ("rope_freq_base", c_float),
        ("rope_freq_scale", c_float),
        ("yarn_ext_factor", c_float),
        ("yarn_attn_factor", c_float),
        ("yarn_beta_fast", c_float),
        ("yarn_beta_slow", c_float),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int),
        ("type_v", c_int),
        ("moe_cache_size", c_size_t),
        ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p),
        ("embeddings", c_bool),
        ("offload_kqv", c_bool),
        ("no_perf", c_bool),
        ("op_offload", c_bool),
        ("swa_full", c_bool),
        ("kv_unified", c_bool),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
    )


class Batch(ctypes.Structure):
    """llama_batch. The pointers are addresses of arrays that the caller keeps."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", c_void_p),
        ("embd", c_void_p),
        ("pos", c_void_p),
        ("n_seq_id", c_void_p),
        ("seq_id", c_void_p),
        ("logits", c_void_p),
    )


FUNCTIONS: dict[str, tuple[Any, ...]] = {  # name -> types of result and arguments
    "llama_backend_init": (None,),
    "llama_log_set": (None, LogCallback, c_void_p),
    "llama_print_system_info": (c_char_p,),
    "llama_model_default_params": (ModelParams,),
    "llama_model_load_from_file": (c_void_p, c_char_p, ModelParams),
    "llama_model_free": (None, c_void_p),
    "llama_model_has_encoder": (c_bool, c_void_p),
    "llama_model_is_recurrent": (c_bool, c_void_p),
    "llama_model_is_hybrid": (c_bool, c_void_p),
    "llama_model_is_diffusion": (c_bool, c_void_p),
    "llama_model_n_ctx_train": (c_int32, c_void_p),
    "llama_model_n_swa": (c_int32, c_void_p),
    "llama_model_get_vocab": (c_void_p, c_void_p),
    "llama_model_meta_val_str": (c_int32, c_void_p, c_char_p, c_char_p, c_size_t),
    "llama_vocab_n_tokens": (c_int32, c_void_p),
    "llama_vocab_eos": (c_int32, c_void_p),
    "llama_vocab_is_eog": (c_bool, c_void_p, c_int32),
    "llama_tokenize": (c_int32, c_void_p, c_char_p, c_int32, c_void_p, c_int32, c_bool, c_bool),
    "llama_context_default_params": (ContextParams,),
    "llama_init_from_model": (c_void_p, c_void_p, ContextParams),
    "llama_free": (None, c_void_p),
    "llama_get_memory": (c_void_p, c_void_p),
    "llama_memory_clear": (None, c_void_p, c_bool),
    "llama_memory_seq_rm": (c_bool, c_void_p, c_int32, c_int32, c_int32),
    "llama_memory_seq_cp": (None, c_void_p, c_int32, c_int32, c_int32, c_int32),
    "llama_memory_seq_pos_min": (c_int32, c_void_p, c_int32),
    "llama_memory_seq_pos_max": (c_int32, c_void_p, c_int32),
    "llama_state_seq_get_size": (c_size_t, c_void_p, c_int32),
    "llama_state_seq_get_data": (c_size_t, c_void_p, c_void_p, c_size_t, c_int32),
    "llama_state_seq_set_data": (c_size_t, c_void_p, c_void_p, c_size_t, c_int32),
    "llama_decode": (c_int32, c_void_p, Batch),
    "llama_get_logits": (ctypes.POINTER(c_float), c_void_p),
}


def open_library() -> Any:
    """Return the library, with its functions declared. Raises ImportError."""
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise ImportError(f"no module named {PACKAGE!r}")
    if (version := metadata.version(PACKAGE)) != VERSION:
        raise ImportError(f"{PACKAGE} must be {VERSION}; got {version}")
    file = next(Path(found.origin).parent.glob(f"{PACKAGE}*.so"))
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:  # such as a missing libgomp.so.1
        raise ImportError(f"can't load {file}: {error}") from error
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.llama_log_set(_log, None)
    return library


def load(library: Any, path: Path, options: ModelParams) -> Any:
    """Load a file or the first part of a split one. Raises LoadError."""
    _errors.clear()
    model = library.llama_model_load_from_file(os.fsencode(path), options)
    if not model:
        raise LoadError(f"llama.cpp can't load {path}: {reason()}")
    return model


def reason() -> str:
    """Return the first error since the last load began, without the name of its function."""
    first = _errors[0] if _errors else "it gives no reason"
    return first.rpartition("error loading model: ")[2]


@LogCallback  # type: ignore[untyped-decorator]
def _log(level: int, text: bytes, _: int | None) -> None:
    """Keep llama.cpp's errors, which explain why a load fails, and drop the rest."""
    if level == ERROR_LEVEL:
        _errors.append(text.decode(errors="replace").strip())
