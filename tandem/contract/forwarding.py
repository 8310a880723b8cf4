"""Request ids that mark forwarded requests, and ids that can be stopped.

A ``stop`` ends the request with the same id, and any client can send it. So it only works for ids
that can't be guessed: random UUIDs (version 4) in hexadecimal, with or without hyphens, and ids of
requests that Tandem's own programs forward.

Errors of forwarded requests have the code before the message (``contract.errors``), because calls
between models and streams lose the code before Triton 25.04. Triton's own solution for streams, the
header ``triton_grpc_error``, crashes Triton 2.51 if many streams end with errors.
"""

from __future__ import annotations

import re
import uuid

_FORWARDED = "tandem-forwarded-"
_ID = re.compile(rf"{_FORWARDED}[0-9a-f]{{32}}")
_UUID4 = re.compile(
    r"[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}", re.IGNORECASE
)


def new_forwarded_id() -> str:
    """Return an unguessable id for a request that is forwarded to ``bls_stream``."""
    return f"{_FORWARDED}{uuid.uuid4().hex}"


def is_forwarded(request_id: str) -> bool:
    return _ID.fullmatch(request_id) is not None


def can_be_stopped(request_id: str) -> bool:
    return is_forwarded(request_id) or _UUID4.fullmatch(request_id) is not None
