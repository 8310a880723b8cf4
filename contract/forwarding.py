"""What the id of a request says: that a program of ours forwards it, and that it can be stopped.

A ``stop`` ends the request with the same id, and its sender need not be the one who asked. So only
ids that nobody can guess are stopped: random UUIDs (version 4), in hexadecimal with hyphens or
without, and those of forwarded requests.

The errors of a forwarded request have their code before the line (``contract.errors``): a call
between models loses the code before Triton 25.04, and so does a stream. Triton's own remedy for
streams, the header ``triton_grpc_error``, makes Triton 2.51 crash where many of them end in errors.
"""

from __future__ import annotations

import re
import uuid

_FORWARDED = "tandem-forwarded-"
_ID = re.compile(rf"{_FORWARDED}[0-9a-f]{{32}}")
_UUID4 = re.compile(
    r"[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}", re.IGNORECASE
)


def fresh_forwarded() -> str:
    """Return the id of a request on its way to ``bls_stream``; nobody can guess it."""
    return f"{_FORWARDED}{uuid.uuid4().hex}"


def is_forwarded(request_id: str) -> bool:
    return _ID.fullmatch(request_id) is not None


def can_be_stopped(request_id: str) -> bool:
    return is_forwarded(request_id) or _UUID4.fullmatch(request_id) is not None
