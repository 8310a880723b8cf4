"""Derives the seeds of engine calls so that no random number is used for two tokens.

An engine with keyed randomness derives the noise of a token from (seed, absolute position). With
the request's own seed it repeats the draws of the baseline, however the tokens are split into
rounds. An engine that starts a new generator per call needs a different seed per call, or each
round would draw the same numbers.
"""

from __future__ import annotations

import hashlib

from tandem.bls.request import Request
from tandem.bls.settings import LoopSettings


def derived_seed(seed: int, *key: int | str) -> int:
    """Return a 63-bit seed that depends on ``seed`` and ``key`` alone."""
    text = ":".join(str(part) for part in (seed, *key))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def verification_seed(seed: int, position: int, *, keyed: bool) -> int:
    """Return the seed of a target call. position: position of its first new token."""
    return seed if keyed else derived_seed(seed, "verify", position)


def repair_seed(seed: int, position: int, *, keyed: bool) -> int:
    """Return the seed for redrawing a token because a guide forbids the first draw.

    With keyed noise, the token equals a draw among the allowed tokens. A new generator must not
    repeat the numbers of another call.
    """
    return seed if keyed else derived_seed(seed, "repair", position)


def proposal_seed(seed: int, position: int, *, keyed: bool, use_draft_logits: bool) -> int:
    """Return the seed of a draft call.

    If ids are compared, draft and target may share their noise and thus agree more often. In logits
    mode they must not: acceptance would depend on the proposal, which biases the output.
    """
    if not keyed:
        return derived_seed(seed, "propose", position)
    return derived_seed(seed, "propose") if use_draft_logits else seed


def lengths_decide_text(request: Request, settings: LoopSettings) -> bool:
    """Return whether a seed repeats an output only if all calls have the same lengths as before.

    In logits mode, the noise of a token depends on the draft's length. With a new generator per
    call, it depends on the call's start. Such lengths must not depend on measured times.
    """
    if request.sampling.greedy or not request.seeded:
        return False
    drafts = request.kind.drafts_in_loop
    keyed = settings.target.capabilities.keyed_randomness
    return not keyed or (drafts and request.use_draft_logits)
