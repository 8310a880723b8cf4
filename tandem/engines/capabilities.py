"""The capabilities of each kind of engine."""

from __future__ import annotations

from dataclasses import fields, replace

from tandem.contract.engine import Capabilities

TORCH = Capabilities(
    verifies_drafts=True,
    drafts_itself=False,
    keyed_randomness=True,
    log_probs_with_drafts=True,
    top_log_probs=True,
    prompt_log_probs=True,
    stops_when_unsure=True,
    samples_exactly=True,
    shares_logits=True,
    min_p=True,
    branches=True,
    masks_tokens=True,
    cache_salt=True,
    returns_logits=True,
)
# It shares all code but the model itself with `torch`.
LLAMACPP = TORCH
_NONE = Capabilities(**{field.name: False for field in fields(Capabilities)})
# NVIDIA's C++ backend creates a new random generator for each call, and computes no
# log-probabilities when it verifies drafts. `bls.lossless` describes the effect on
# sampled drafts. The backend supports no branches: it returns several rows only as several
# responses to one call, which would deadlock, and it reports no alternative tokens.
TENSORRTLLM = replace(_NONE, verifies_drafts=True, returns_logits=True)
# The synthetic language knows only the probabilities of its own tokens.
EMULATED = replace(TORCH, top_log_probs=False, prompt_log_probs=False)
# TensorRT-LLM's Python API draws from one generator for all requests. Version 1.2.1 accepts min_p
# but ignores it (github.com/NVIDIA/TensorRT-LLM pull request 16590).
LLMAPI = replace(
    _NONE,
    log_probs_with_drafts=True,
    stops_when_unsure=True,
    samples_exactly=True,
)
LLMAPI_SPECULATIVE = replace(LLMAPI, drafts_itself=True)
# vLLM has one generator per request. As the draft engine it returns no logits, so its drafts are
# verified by ids.
VLLM = replace(
    _NONE,
    verifies_drafts=True,
    log_probs_with_drafts=True,
    top_log_probs=True,
    stops_when_unsure=True,
    samples_exactly=True,
    shares_logits=True,
    masks_tokens=True,
    cache_salt=True,
)
VLLM_SPECULATIVE = replace(VLLM, verifies_drafts=False, drafts_itself=True, shares_logits=False)
