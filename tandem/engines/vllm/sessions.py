"""Sessions keep the KV blocks of a text for its next call.

vLLM's prefix cache holds only full blocks. Each round is a vLLM request of its own, so it would
recompute the tokens in the last, partly filled block. With a session, the next request of the same
text takes over all blocks of the previous one, and computes only the tokens that they lack.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from tandem.engines.vllm.call import VllmCall
from tandem.engines.vllm.hooks import why_no_sessions

MAX_IDLE_SECONDS = 2.0  # a round is shorter; otherwise the next call computes its last block
log = logging.getLogger(__name__)


class Session(NamedTuple):
    """The last request of a text, which has finished but still has its blocks, and since when."""

    request: Any
    since: float


class Sessions:
    """The idle sessions of an engine. They replace three methods of vLLM's `KVCacheManager`.

    A session ends when blocks are needed (the oldest first), when a call is cancelled, and when it
    has been idle for too long.
    """

    @classmethod
    def start(cls, manager: Any, calls: Mapping[str, VllmCall]) -> Sessions | None:
        """Return sessions in this `KVCacheManager`, or log why it can't have any.

        calls: keyed by vLLM's request id.
        """
        reason = why_no_sessions(manager)
        if reason is None:
            return cls(manager, calls)
        log.warning("each round computes a text's last KV block again in this vLLM: %s", reason)
        return None

    def __init__(self, manager: Any, calls: Mapping[str, VllmCall]) -> None:
        self._manager = manager
        self._calls = calls
        [self._blocks] = manager.coordinator.single_type_managers
        self._idle: dict[str, Session] = {}  # by text, oldest first
        self._find, manager.get_computed_blocks = manager.get_computed_blocks, self._find_computed
        self._allocate, manager.allocate_slots = manager.allocate_slots, self._allocate_slots
        self._free, manager.free = manager.free, self._free_or_keep

    def end_old(self) -> None:
        """End the sessions that have been idle for too long."""
        oldest = time.monotonic() - MAX_IDLE_SECONDS
        while self._idle and next(iter(self._idle.values())).since < oldest:
            self._end(next(iter(self._idle)))

    def _end(self, text: str) -> None:
        session = self._idle.pop(text, None)
        if session is not None:
            self._free(session.request)

    def _text(self, request: Any) -> str:
        call = self._calls.get(request.request_id)
        return "" if call is None else call.text

    def _find_computed(self, request: Any) -> tuple[Any, ...]:
        """Return the request's computed blocks, their number of tokens and vLLM's other results.

        The blocks of a session aren't listed, because `_allocate_slots` gives them to the request.
        """
        blocks, length, *rest = self._find(request)
        text = self._text(request)
        shared = self._shared_length(text, request)
        if shared > length:
            return (self._manager.empty_kv_cache_blocks, shared, *rest)
        self._end(text)
        return (blocks, length, *rest)

    def _shared_length(self, text: str, request: Any) -> int:
        """Return how many computed tokens of a session the request can use; 0: none.

        A session can be cut only within its last block. The others are in the prefix cache, so
        other requests may use them.
        """
        session = self._idle.get(text)
        if session is None or _owner(session.request) != _owner(request):
            return 0
        last, ids = session.request._all_token_ids, request._all_token_ids
        full = self._blocks.num_cached_block.get(session.request.request_id, 0)
        shared: int = full * self._blocks.block_size
        # At least the request's last token must be computed.
        limit = min(session.request.num_computed_tokens, len(last), len(ids) - 1)
        if limit < shared or last[:shared] != ids[:shared]:
            return 0
        while shared < limit and last[shared] == ids[shared]:
            shared += 1
        return shared

    def _allocate_slots(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Allocate blocks. End sessions if there are too few, but not the request's own one."""
        session = None
        if request.request_id not in self._blocks.req_to_blocks:
            session = self._idle.pop(self._text(request), None)
        if session is not None:
            self._rename(session.request.request_id, request.request_id)
        allocated = self._allocate(request, *args, **kwargs)
        while allocated is None and self._idle:
            self._end(next(iter(self._idle)))
            allocated = self._allocate(request, *args, **kwargs)
        if allocated is None and session is not None:
            # The request waits, and mustn't hold blocks that the running ones may need.
            self._rename(request.request_id, session.request.request_id)
            self._idle[self._text(request)] = session
        return allocated

    def _rename(self, old: str, new: str) -> None:
        blocks = self._blocks
        blocks.req_to_blocks[new] = blocks.req_to_blocks.pop(old)
        blocks.num_cached_block[new] = blocks.num_cached_block.pop(old, 0)

    def _free_or_keep(self, request: Any) -> None:
        text = self._text(request)
        if not text or not request.is_finished():  # preempted
            self._free(request)
            return
        self._end(text)
        if self._calls[request.request_id].cancelled:
            self._free(request)
        elif request.request_id in self._blocks.req_to_blocks:
            self._idle[text] = Session(request, time.monotonic())


def _owner(request: Any) -> tuple[Any, Any]:
    """Return the adapter and the cache salt, without which no request may use another's blocks."""
    return request.lora_request, request.cache_salt
