"""Names of calls. Every call gets one of its own: a ``stop`` must reach that call and no other.

A client's own id is never used for that: two clients may well choose the same one, and one must not
be able to end what the other asked for.
"""

from __future__ import annotations

import uuid


def fresh() -> str:
    """Return an id that nobody can guess."""
    return f"tandem-{uuid.uuid4().hex}"
