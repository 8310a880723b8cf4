"""Convert our settings and requests to TensorRT-LLM's arguments. Pure.

Names are from TensorRT-LLM 1.2.1: `BaseLlmArgs`, `TorchLlmArgs`, `KvCacheConfig` and the subclasses
of `DecodingBaseConfig` in tensorrt_llm/llmapi/llm_args.py, and `SamplingParams` in
tensorrt_llm/sampling_params.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from tandem.engines.decoding import reject
from tandem.engines.engine import EngineRequest, Floats, SamplingParams
from tandem.engines.errors import LoadError
from tandem.engines.llmapi.settings import LlmApiSettings

_MAX_STOP_TOKENS = 64
NO_END = -1  # without an end id, TensorRT-LLM would use the tokenizer's


def llm_arguments(settings: LlmApiSettings, api: Any) -> dict[str, Any]:
    """Return the arguments of `LLM()`. api: the module `tensorrt_llm.llmapi.llm_args`.

    Raises LoadError if this version doesn't support the speculation method.
    """
    more = dict(settings.llm_args or {})
    arguments = {
        "model": settings.model,
        "skip_tokenizer_init": True,  # token ids in, token ids out
        "tensor_parallel_size": settings.tensor_parallel_size,
        "dtype": settings.dtype,
        "trust_remote_code": settings.trust_remote_code,
        "max_seq_len": settings.max_seq_len + settings.longest_draft,
        "max_num_tokens": settings.max_num_tokens,
        "enable_chunked_prefill": True,
        "kv_cache_config": api.KvCacheConfig(
            enable_block_reuse=settings.enable_block_reuse,
            max_tokens=settings.kv_cache_tokens,
            free_gpu_memory_fraction=settings.free_gpu_memory_fraction,
            tokens_per_block=settings.kv_block_tokens,
            **more.pop("kv_cache_config", {}),
        ),
        **more,
    }
    if settings.max_batch_size is not None:
        arguments["max_batch_size"] = settings.max_batch_size
    if settings.speculative_config is not None:
        arguments["speculative_config"] = decoding_config(settings.speculative_config, api)
    return arguments


def decoding_config(config: Mapping[str, Any], api: Any) -> Any:
    """Return TensorRT-LLM's configuration object for `speculative_config`.

    The installed version's `decoding_type`s determine the class, which then checks the other keys.
    TensorRT-LLM itself turns off the overlap scheduler for the types that require that. Raises
    LoadError for an unknown type and for an invalid key or value.
    """
    fields = dict(config)
    requested = fields.pop("decoding_type")
    classes = {
        decoding_type: kind
        for name, kind in vars(api).items()
        if name.endswith("DecodingConfig")
        and isinstance(decoding_type := _decoding_type(kind), str)
    }
    kind = next(
        (classes[name] for name in classes if _normalize(name) == _normalize(requested)), None
    )
    if kind is None:
        raise LoadError(
            f'speculative_config.decoding_type "{requested}" isn\'t supported by the installed '
            "TensorRT-LLM; "
            f"choose one of: {', '.join(sorted(classes))}"
        )
    # Without this, 1.2.1 decodes every request greedily with one-model speculation.
    if "allow_advanced_sampling" in _field_names(kind):
        fields.setdefault("allow_advanced_sampling", True)
    try:
        return kind(**fields)
    except ValueError as error:
        # The first line of pydantic's own message doesn't name the key.
        details = error.errors()[0] if hasattr(error, "errors") else {"loc": (), "msg": str(error)}
        key = ".".join(map(str, ("speculative_config", *details["loc"])))
        raise LoadError(f"{key}: {details['msg']}") from error


def _decoding_type(kind: Any) -> Any:
    """Return the decoding type that a configuration class stands for.

    Older versions store the type as a class attribute, later versions as the default of a pydantic
    field.
    """
    field = getattr(kind, "model_fields", {}).get("decoding_type")
    return field.default if field is not None else getattr(kind, "decoding_type", None)


def _normalize(decoding_type: str) -> str:
    """Normalize a type name. TensorRT-LLM's docs use DraftTarget, its classes Draft_Target."""
    return decoding_type.replace("_", "").lower()


def _field_names(kind: Any) -> Collection[str]:
    fields: Collection[str] = getattr(kind, "model_fields", ())
    return fields


def applies_penalties(settings: LlmApiSettings, api: Any) -> bool:
    """Return whether the installed TensorRT-LLM applies penalties.

    Versions without the key `enable_penalty` (pull request 17701) may ignore penalties. Versions
    that have it reject penalties with one-model speculation unless it is true.
    """
    config = settings.speculative_config
    if "enable_penalty" not in _field_names(api.DecodingBaseConfig):
        return False
    return config is None or bool(config.get("enable_penalty"))


def sampling_arguments(request: EngineRequest, *, penalties: bool) -> dict[str, Any]:
    """Return the arguments of `SamplingParams()`. Raises UnsupportedError.

    penalties: see `applies_penalties`.
    """
    reject_unsupported(request, penalties=penalties)
    sampling = request.sampling
    arguments: dict[str, Any] = {
        "max_tokens": request.max_new_tokens,
        "end_id": NO_END if request.end_id is None else request.end_id,
        "detokenize": False,
        "return_perf_metrics": request.return_perf_metrics,
        **_choice(sampling),
        **_penalties(sampling),
    }
    if sampling.min_tokens and request.end_id is not None:
        arguments["min_tokens"] = sampling.min_tokens
    if request.stop_words and stops_by_itself(request):
        arguments["stop_token_ids"] = request.stop_words.singles.tolist()
        arguments["include_stop_str_in_output"] = True  # otherwise the stop tokens are cut off, too
    if request.return_log_probs:
        arguments["logprobs"] = 1
    return arguments


def stops_by_itself(request: EngineRequest) -> bool:
    """Whether TensorRT-LLM can end the answer at every point that the request asks for.

    TensorRT-LLM gets only a limited number of single-token words, because it compares every token
    with each of them. It ignores `min_tokens` for such words.
    """
    words = request.stop_words
    few_tokens = words.longest <= 1 and len(words) <= _MAX_STOP_TOKENS
    return few_tokens and not (words and request.sampling.min_tokens)


def embedding_bias(request: EngineRequest, vocab_size: int) -> Floats | None:
    """Return the values to add to the logits [vocab_size]: the caller's bias, and -inf for bans.

    A bias replaces single-token bad words, because the sampler applies biases (pull request 6464,
    August 2025) but ignores bad words. The loop uses it to ban end ids until `min_tokens`.
    """
    banned = request.sampling.bad_words.singles
    bias = request.sampling.embedding_bias
    if not len(banned):
        return bias
    changed: Floats = np.zeros(vocab_size, np.float32) if bias is None else bias.copy()
    changed[banned] = -np.inf
    return changed


def reject_unsupported(request: EngineRequest, *, penalties: bool) -> None:
    """Raise UnsupportedError, which names the input, if TensorRT-LLM would ignore an input.

    The sampler of 1.2.1's PyTorch workflow accepts bad words but silently ignores them
    (github.com/NVIDIA/TensorRT-LLM pull request 16052 of July 2026 adds them). It can't return
    logits of a request with speculation, or stop at a probability.
    """
    sampling = request.sampling
    rejected = {
        "draft_logits": request.draft_logits is not None,
        "draft_acceptance_threshold": request.draft_acceptance_threshold is not None,
        "draft_stop_probability": request.draft_stop_probability is not None,
        "num_top_log_probs": request.num_top_log_probs > 0,
        "return_prompt_log_probs": request.return_prompt_log_probs,
        "branch_counts": request.branches,
        "token_masks": request.token_masks is not None,
        "return_context_logits": request.return_context_logits,
        "return_generation_logits": request.return_generation_logits,
        "bad_words_list with words of several tokens": sampling.bad_words.longest > 1,
        "min_p": sampling.min_p != 0,
        "cache_salt": request.cache_salt != 0,
        **dict.fromkeys(_penalties(sampling), not penalties),
    }
    reject(rejected, "by this engine (llmapi); omit it")


def _penalties(sampling: SamplingParams) -> dict[str, float]:
    """Return the penalties that have an effect. TensorRT-LLM also counts both prompt and output."""
    penalties = {
        "repetition_penalty": (sampling.repetition_penalty, 1),
        "presence_penalty": (sampling.presence_penalty, 0),
        "frequency_penalty": (sampling.frequency_penalty, 0),
    }
    return {name: value for name, (value, neutral) in penalties.items() if value != neutral}


def _choice(sampling: SamplingParams) -> dict[str, Any]:
    """Return arguments for choosing a token. Without a temperature, TensorRT-LLM is greedy."""
    if sampling.greedy:
        return {"top_k": 1}
    arguments: dict[str, Any] = {"temperature": sampling.temperature}
    if sampling.top_k:
        arguments["top_k"] = sampling.top_k
    if sampling.top_p < 1:
        arguments["top_p"] = sampling.top_p
    if sampling.seed is not None:
        arguments["seed"] = sampling.seed  # 1.2.1 ignores it: docs/deploy/llmapi.md
    return arguments
