"""What a failed call says, as an error that a client may read."""

from __future__ import annotations

import re

from tandem.bls.errors import EngineCallError, EngineRefused
from tandem.contract.errors import ErrorCode, decoded

REFUSALS: frozenset[ErrorCode] = frozenset({"INVALID_ARG", "UNSUPPORTED"})

# Triton's own lines about its shared memory contain the name of the region: who knows it can have
# it registered as his own.
REGION = re.compile("shared memory (pool size for key|key|region) '|_backend_shm_region_")
# What Triton says of a call to a model whose process has ended or stands still; it gives no code.
NOT_HEALTHY = re.compile(r"Stub process '[^']*' is not healthy")
NO_MEMORY = "Triton's shared memory is full (/dev/shm; docker's --shm-size); see the server's log"


def failure(model: str, said: object, code: ErrorCode = "INTERNAL") -> EngineCallError:
    """Return the error for what a call of ``model`` said, and under which code.

    A code before the line, which the call could not lose on its way, is the better one.
    """
    written, line = decoded(_one_line(said))
    code = written or ("UNAVAILABLE" if NOT_HEALTHY.match(line) else code)
    line = line if REGION.search(line) is None else NO_MEMORY
    return (EngineRefused if code in REFUSALS else EngineCallError)(model, line, code)


def _one_line(error: object) -> str:
    """The first line: where a model raised, Triton and engines add a stack, which they log."""
    return str(error).strip().partition("\n")[0]
