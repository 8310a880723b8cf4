"""Names of calls. Every call gets one of its own: a ``stop`` must reach that call and no other.

A client's own id is never used for that: two clients may well choose the same one, and one must not
be able to end what the other asked for.
"""

from __future__ import annotations

import uuid

_FORWARDED = "tandem-forwarded-"


def fresh() -> str:
    """Return an id that nobody can guess."""
    return f"tandem-{uuid.uuid4().hex}"


def fresh_forwarded() -> str:
    """Return the id of a request on its way from a forwarder to ``bls_stream``."""
    return f"{_FORWARDED}{uuid.uuid4().hex}"


def is_forwarded(request_id: str) -> bool:
    """Whether a ``stop`` with this id may end a request of ``bls_stream``."""
    return request_id.startswith(_FORWARDED)
