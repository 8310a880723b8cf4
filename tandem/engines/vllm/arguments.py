"""Convert our settings and requests to vLLM's arguments. Pure.

Names are from vLLM 0.27.1: `EngineArgs` in vllm/engine/arg_utils.py and `SamplingParams` in
vllm/sampling_params.py.
"""

from __future__ import annotations

from typing import Any

from tandem.contract.engine import MAX_TOP_LOG_PROBS
from tandem.engines.constraints import ending_ids
from tandem.engines.decoding import reject
from tandem.engines.engine import EngineRequest
from tandem.engines.vllm.lora import lora_arguments
from tandem.engines.vllm.settings import COPY_LEN, PROMPT_LOOKUP, VllmSettings

PLUG_IN = "tandem.engines.vllm.plug_in"
NO_PROPOSER = f"{PLUG_IN}.NoProposer"


def engine_arguments(settings: VllmSettings) -> dict[str, Any]:
    """Return the arguments of `EngineArgs()`. Raises LoadError if an adapter can't be applied."""
    arguments: dict[str, Any] = {
        "model": settings.model,
        "skip_tokenizer_init": True,  # token ids in, token ids out
        "max_model_len": settings.max_seq_len,
        "max_num_seqs": settings.max_batch_size,
        "max_num_batched_tokens": settings.max_batch_tokens,
        "block_size": settings.kv_block_tokens,
        # vLLM reserves one block for itself.
        "num_gpu_blocks_override": settings.kv_cache_tokens // settings.kv_block_tokens + 1,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "dtype": settings.dtype,
        "load_format": "safetensors",  # pickled weights can run code
        "gpu_memory_utilization": settings.gpu_memory_fraction,
        "enforce_eager": settings.enforce_eager,
        "trust_remote_code": settings.trust_remote_code,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "async_scheduling": False,  # otherwise a step would start before its draft is known
        "scheduler_cls": f"{PLUG_IN}.DraftScheduler",
        "max_logprobs": MAX_TOP_LOG_PROBS,
        "disable_log_stats": True,
        **lora_arguments(settings.lora_adapters),
        **(settings.arguments or {}),
    }
    if settings.speculative_config:
        own = dict(settings.speculative_config)
        own.pop(COPY_LEN, None)
        if own.get("method") == PROMPT_LOOKUP:
            own |= {"method": "custom_class", "model": NO_PROPOSER}
        arguments["speculative_config"] = own
    elif settings.max_draft_len:
        arguments["speculative_config"] = {
            "method": "custom_class",
            "model": NO_PROPOSER,
            "num_speculative_tokens": settings.max_draft_len,
        }
    return arguments


def environment(settings: VllmSettings) -> dict[str, str]:
    """Return the environment variables for vLLM's process.

    Values that the deployment sets take precedence.
    """
    variables = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        # Pinned threads wait for each other if the cores have other work.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; only checked: vLLM allocates kv_cache_tokens
    }
    if settings.enforce_eager:
        variables["TORCHDYNAMO_DISABLE"] = "1"  # otherwise the sampler still compiles on first use
    if settings.device_ids:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, settings.device_ids))
    if settings.threads:
        # vLLM's `ngram` uses Numba, which replaces OpenMP's number with its own.
        variables["OMP_NUM_THREADS"] = variables["NUMBA_NUM_THREADS"] = str(settings.threads)
    return variables


def sampling_arguments(request: EngineRequest, vocab_size: int) -> dict[str, Any]:
    """Return the arguments of `SamplingParams()`, without those that the plug-in handles."""
    sampling = request.sampling
    arguments: dict[str, Any] = {
        "max_tokens": request.max_new_tokens + request.decode_ahead_len,
        "detokenize": False,
        "ignore_eos": True,  # each request has its own end ids
        "temperature": 0.0 if sampling.greedy else sampling.temperature,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    }
    if not sampling.greedy:
        arguments |= {"top_k": sampling.top_k, "top_p": sampling.top_p}
        if sampling.seed is not None:
            arguments["seed"] = sampling.seed & (2**63 - 1)
    if request.return_log_probs or request.draft_stop_probability:
        arguments["logprobs"] = request.num_top_log_probs
    if not len(request.draft_ids) and not sampling.min_tokens:
        arguments["stop_token_ids"] = ending_ids(request, vocab_size).tolist()
    return arguments


def needs_each_step(request: EngineRequest) -> bool:
    """Whether we must check each step's tokens, because vLLM can't end the call correctly."""
    return (
        request.streaming
        or request.decode_ahead_len > 0
        or request.draft_stop_probability is not None
        or request.stop_words.longest > 1
        or (request.sampling.min_tokens > 0 and not len(request.draft_ids))
    )


def reject_unsupported(request: EngineRequest, *, drafts_itself: bool) -> None:
    """Raise UnsupportedError, which names the input, if vLLM can't apply an input as requested.

    drafts_itself: whether vLLM speculates by itself. Then the plug-in's penalties aren't installed,
    and vLLM's own ones don't count the prompt.
    """
    sampling, masked = request.sampling, request.token_masks is not None
    rejected = {
        "draft_input_ids": drafts_itself and len(request.draft_ids) > 0,
        "token_masks for several tokens": drafts_itself and masked and request.max_new_tokens > 1,
        "draft_acceptance_threshold": request.draft_acceptance_threshold is not None,
        "branch_counts": request.branches,
        "return_context_logits": request.return_context_logits,
        "return_generation_logits": request.return_generation_logits,
        "return_prompt_log_probs": request.return_prompt_log_probs,
        "embedding_bias": sampling.embedding_bias is not None,
        "min_p": sampling.min_p != 0,
        "presence_penalty": drafts_itself and sampling.presence_penalty != 0,
        "frequency_penalty": drafts_itself and sampling.frequency_penalty != 0,
    }
    reject(rejected, "by this engine (vllm); omit it")
