"""What an engine can do. The entries refuse by name what its capabilities exclude."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Capabilities:
    """Abilities of an engine kind.

    verifies_drafts: takes `draft_input_ids` and verifies them in one step.
    drafts_itself: speculates inside; the loop must not draft for it.
    keyed_randomness: the noise of a token depends on (seed, absolute position, purpose) alone, so
        that a seed gives one text however it is cut into calls.
    log_probs_with_drafts: returns log-probabilities of what a verification emits.
    top_log_probs: tells the likeliest tokens beside those that it emits.
    prompt_log_probs: returns log-probabilities of a context's tokens.
    stops_when_unsure: honours `draft_stop_probability`, and rates the tokens it drafts.
    logits_tell_all: its `generation_logits`, warped as transformers does, are what it draws from:
        bias, penalties, bans and masks are in them.
    shares_logits: as a draft it returns `shared_logits_handle`, as a target it reads that
        instead of `draft_logits`.
    warps_draft_logits: takes `draft_logits` raw; otherwise they must be log-probabilities.
    compares_ids_exactly: without `draft_logits`, its own sample that differs is the correction.
    top_p_with_drafts: draws under top-p from the same distribution, verifying or not.
    min_p: draws by `min_p`.
    branches: as a draft it honours `branch_counts`: it drafts on behind several outcomes of a
        verification in one call.
    masks_tokens: honours `token_masks`: which tokens may come at each place.
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
