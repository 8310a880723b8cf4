"""What an engine can do, declared; the entries refuse by name what its capabilities exclude."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Capabilities:
    """Abilities of an engine kind.

    verifies_drafts: takes `draft_input_ids` and verifies them in one step.
    drafts_itself: speculates inside; the loop must not draft for it.
    keyed_randomness: the noise of a token depends on (seed, absolute position, purpose) alone, so
        that a seed gives one text however it is cut into calls.
    draft_logits: verifies against `draft_logits` too; its `generation_logits` can be sent as such.
    log_probs_with_drafts: returns log-probabilities of what a verification emits.
    top_log_probs: tells the likeliest tokens beside those that it emits.
    prompt_log_probs: returns log-probabilities of a context's tokens.
    stop: a second call with `stop` and the same request id ends a running one.
    streaming: answers token by token when asked to.
    stops_when_unsure: honours `draft_stop_probability`, and rates the tokens it drafts.
    logits_tell_all: its `generation_logits`, warped as transformers does, are what it draws from:
        bias, penalties and bans are in them.
    shares_logits: as a draft it offers `logits_loan`, as a target it takes one for `draft_logits`.
    warps_draft_logits: takes `draft_logits` raw; otherwise they must be log-probabilities.
    compares_ids_exactly: without `draft_logits`, its own sample that differs is the correction.
    top_p_with_drafts: draws under top-p from the same distribution, verifying or not.
    """

    verifies_drafts: bool
    drafts_itself: bool
    keyed_randomness: bool
    draft_logits: bool
    log_probs_with_drafts: bool
    top_log_probs: bool
    prompt_log_probs: bool
    stop: bool
    streaming: bool
    stops_when_unsure: bool
    logits_tell_all: bool
    shares_logits: bool
    warps_draft_logits: bool
    compares_ids_exactly: bool
    top_p_with_drafts: bool


TORCH = Capabilities(
    verifies_drafts=True,
    drafts_itself=False,
    keyed_randomness=True,
    draft_logits=True,
    log_probs_with_drafts=True,
    top_log_probs=True,
    prompt_log_probs=True,
    stop=True,
    streaming=True,
    stops_when_unsure=True,
    logits_tell_all=True,
    shares_logits=True,
    warps_draft_logits=True,
    compares_ids_exactly=True,
    top_p_with_drafts=True,
)
# NVIDIA's C++ backend starts a fresh random generator a call, and computes no log-probabilities
# where it verifies drafts. What it does to sampled drafts, bls.lossless tells.
TENSORRTLLM = replace(
    TORCH,
    keyed_randomness=False,
    log_probs_with_drafts=False,
    top_log_probs=False,
    prompt_log_probs=False,
    stops_when_unsure=False,
    logits_tell_all=False,
    shares_logits=False,
    warps_draft_logits=False,
    compares_ids_exactly=False,
    top_p_with_drafts=False,
)
# A synthetic language knows how likely the tokens are that it says.
EMULATED = replace(TORCH, top_log_probs=False, prompt_log_probs=False)
TORCH_LOOKUP = replace(
    TORCH, verifies_drafts=False, drafts_itself=True, draft_logits=False, shares_logits=False
)
# TensorRT-LLM's Python interface: its sampler draws from one generator for all requests.
LLMAPI = replace(
    TORCH,
    verifies_drafts=False,
    keyed_randomness=False,
    draft_logits=False,
    top_log_probs=False,
    prompt_log_probs=False,
    shares_logits=False,
)
LLMAPI_SPECULATIVE = replace(LLMAPI, drafts_itself=True)
