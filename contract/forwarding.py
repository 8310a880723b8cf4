"""How a request says that a program of ours forwards it, rather than a client of its own.

Its errors are then to have their code before the line (``contract.errors``): a call between models
loses the code before Triton 25.04, and so does a stream. Triton's own remedy for streams, the
header ``triton_grpc_error``, makes Triton 2.51 crash where many of them end in errors.
"""

from __future__ import annotations

import re
import uuid

_FORWARDED = "tandem-forwarded-"
_ID = re.compile(rf"{_FORWARDED}[0-9a-f]{{32}}")


def fresh_forwarded() -> str:
    """Return the id of a request on its way to ``bls_stream``; nobody can guess it."""
    return f"{_FORWARDED}{uuid.uuid4().hex}"


def is_forwarded(request_id: str) -> bool:
    """Whether a program of ours forwards the request; a ``stop`` with its id may end it."""
    return _ID.fullmatch(request_id) is not None
