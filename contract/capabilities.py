"""What an engine can do. The entries reject inputs that need other capabilities."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Capabilities:
    """Abilities of an engine kind.

    verifies_drafts: takes `draft_input_ids` and verifies them in one step.
    drafts_itself: speculates inside; the loop must not draft for it.
    keyed_randomness: the noise of a token depends only on (seed, absolute position, purpose), so a
        seed gives the same text however it is divided into calls.
    log_probs_with_drafts: returns log-probabilities of the tokens that a verification emits.
    top_log_probs: returns the most likely tokens at each position.
    prompt_log_probs: returns log-probabilities of a context's tokens.
    stops_when_unsure: supports `draft_stop_probability`, and returns log-probabilities of drafts.
    logits_tell_all: it draws from its `generation_logits`, warped as in transformers: they include
        bias, penalties, bans and masks.
    shares_logits: as a draft it returns `shared_logits_handle`, as a target it reads that
        instead of `draft_logits`.
    warps_draft_logits: takes `draft_logits` raw; otherwise they must be log-probabilities.
    compares_ids_exactly: without `draft_logits`, its own first different sample is the correction.
    top_p_with_drafts: under top-p, verification draws from the same distribution as sampling.
    min_p: supports `min_p`.
    branches: as a draft it supports `branch_counts`: one call drafts on after several outcomes of a
        verification.
    masks_tokens: supports `token_masks`: which tokens are allowed at each position. An engine that
        drafts by itself takes one mask, for a call of one token.
    returns_logits: as a draft it returns the logits that it drew its tokens from.
    """

    verifies_drafts: bool
    drafts_itself: bool
    keyed_randomness: bool
    log_probs_with_drafts: bool
    top_log_probs: bool
    prompt_log_probs: bool
    stops_when_unsure: bool
    logits_tell_all: bool
    shares_logits: bool
    warps_draft_logits: bool
    compares_ids_exactly: bool
    top_p_with_drafts: bool
    min_p: bool
    branches: bool
    masks_tokens: bool
    returns_logits: bool
