"""Capabilities of engines. Entries reject inputs that need a capability that an engine lacks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Capabilities:
    """Capabilities of an engine kind.

    verifies_drafts: accepts `draft_input_ids` and verifies them in one step.
    drafts_itself: speculates internally, so the loop must not draft for it.
    keyed_randomness: the noise of a token depends only on (seed, absolute position, purpose), so a
        seed gives the same output no matter how it is divided into calls.
    log_probs_with_drafts: returns log-probabilities of the tokens that a verification emits.
    top_log_probs: returns the most likely tokens at each position.
    prompt_log_probs: returns log-probabilities of the context's tokens.
    stops_when_unsure: supports `draft_stop_probability`, and returns log-probabilities of drafts.
    samples_exactly: samples from its `generation_logits`, warped as in transformers. These logits
        include bias, penalties, bans and masks. Verifying a draft by ids or by the draft's raw
        logits keeps this distribution. `bls.lossless` describes the other engines.
    shares_logits: as a draft engine, returns `shared_logits_handle`; as a target, reads it instead
        of `draft_logits`.
    min_p: supports `min_p`.
    branches: as a draft engine, supports `branch_counts`: one call drafts branches for several
        outcomes of a verification.
    masks_tokens: supports `token_masks`, the allowed tokens at each position. An engine that drafts
        by itself accepts a single mask, for a call of one token.
    cache_salt: supports `cache_salt`.
    returns_logits: as a draft engine, returns the logits that it sampled its tokens from.
    """

    verifies_drafts: bool
    drafts_itself: bool
    keyed_randomness: bool
    log_probs_with_drafts: bool
    top_log_probs: bool
    prompt_log_probs: bool
    stops_when_unsure: bool
    samples_exactly: bool
    shares_logits: bool
    min_p: bool
    branches: bool
    masks_tokens: bool
    cache_salt: bool
    returns_logits: bool
