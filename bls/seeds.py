"""Derives the seeds of engine calls so that no random number is used for two tokens.

An engine with keyed randomness derives the noise of a token from (seed, absolute position). So it
gets the request's seed in every call, and its samples match the baseline no matter how the tokens
are split into rounds. An engine that starts a new generator per call needs a different seed per
call, because with one seed all rounds would use the same random numbers.
"""

from __future__ import annotations

import hashlib

from tandem.bls.request import Request
from tandem.bls.settings import LoopSettings


def derive_seed(seed: int, *key: int | str) -> int:
    """Return a 63-bit seed that depends only on ``seed`` and ``key``."""
    text = ":".join(str(part) for part in (seed, *key))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def verification_seed(seed: int, position: int, *, keyed: bool) -> int:
    """Return the seed of a target call. position: absolute position of its first new token."""
    return seed if keyed else derive_seed(seed, "verify", position)


def repair_seed(seed: int, position: int, *, keyed: bool) -> int:
    """Return the seed for sampling a token again after a guide disallowed the first sample.

    With keyed noise, the result equals a sample from the allowed tokens with the same noise. A new
    generator must not repeat the numbers of another call.
    """
    return seed if keyed else derive_seed(seed, "repair", position)


def proposal_seed(seed: int, position: int, *, keyed: bool, use_draft_logits: bool) -> int:
    """Return the seed of a draft call.

    If verification compares ids, draft and target may share their noise and then agree more often.
    In logits mode they must not share noise, because acceptance would depend on the proposal, which
    biases the output.
    """
    if not keyed:
        return derive_seed(seed, "propose", position)
    return derive_seed(seed, "propose") if use_draft_logits else seed


def output_depends_on_lengths(request: Request, settings: LoopSettings) -> bool:
    """Return whether the output for a seed depends on how many tokens each engine call has.

    In logits mode, the noise of a token depends on the draft's length. With a new generator per
    call, it depends on where the call starts. In both cases, the client's seed reproduces the
    output only if no length depends on measured times.
    """
    if request.sampling.greedy or not request.seeded:
        return False
    drafts = request.drafter_kind.drafts_in_loop
    keyed = settings.target.capabilities.keyed_randomness
    return not keyed or (drafts and request.use_draft_logits)
