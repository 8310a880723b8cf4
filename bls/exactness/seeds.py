"""Which seed an engine call is given, so that no random number decides two tokens.

An engine with keyed randomness draws the noise of a token from (seed, absolute position): given the
request's own seed it repeats the control's draws, whatever the rounds look like. An engine that
starts a fresh generator a call needs another seed for every call, or each round would see the same
numbers again.
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
    """Seed of a target call whose first new token has absolute position ``position``."""
    return seed if keyed else derived_seed(seed, "verify", position)


def repair_seed(seed: int, position: int, *, keyed: bool) -> int:
    """Seed of a target call that draws one token again, after the first one was forbidden.

    With the same noise by position the token is that of a draw among the allowed ones alone. A
    fresh generator must not see a number again that another call has used.
    """
    return seed if keyed else derived_seed(seed, "repair", position)


def proposal_seed(seed: int, position: int, *, keyed: bool, use_draft_logits: bool) -> int:
    """Seed of a draft call.

    Comparing ids, draft and target may share their noise, and agree more often for it. In logits
    mode they must not: acceptance would correlate with the proposal, and the text be biased.
    """
    if not keyed:
        return derived_seed(seed, "propose", position)
    return derived_seed(seed, "propose") if use_draft_logits else seed


def lengths_decide_text(request: Request, settings: LoopSettings) -> bool:
    """Whether a seed repeats a text only if each call has the length that it had before.

    In logits mode it depends on the draft's length which noise a token is drawn with; a fresh
    generator a call draws by the call's beginning. Such lengths must not follow from times.
    """
    if request.sampling.greedy or not request.seeded:
        return False
    drafts = request.kind.drafts_in_loop
    keyed = settings.target.capabilities.keyed_randomness
    return not keyed or (drafts and request.use_draft_logits)
