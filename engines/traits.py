"""What an engine can do, declared; the entries refuse by name what the traits exclude."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Traits:
    """Abilities of an engine kind.

    verifies_drafts: takes `draft_input_ids` and verifies them in one step.
    drafts_itself: speculates inside; the loop must not draft for it.
    keyed_randomness: the noise of a token depends on (seed, absolute position, purpose) alone, so
        that a seed gives one text however it is cut into calls.
    draft_logits: verifies against `draft_logits` too; its `generation_logits` can be sent as such.
    log_probs_with_drafts: returns log-probabilities of what a verification emits.
    stop: a second call with `stop` and the same request id ends a running one.
    streaming: answers token by token when asked to.
    """

    verifies_drafts: bool
    drafts_itself: bool
    keyed_randomness: bool
    draft_logits: bool
    log_probs_with_drafts: bool
    stop: bool
    streaming: bool


TORCH = Traits(
    verifies_drafts=True,
    drafts_itself=False,
    keyed_randomness=True,
    draft_logits=True,
    log_probs_with_drafts=True,
    stop=True,
    streaming=True,
)
