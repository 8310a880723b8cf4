"""A second thread of a sequence. It drafts ahead while the first thread verifies."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future

from tandem.bls.errors import Abandoned, Cancelled, Overloaded, ServingError
from tandem.bls.ports import NO_TOKENS, EngineCall, EngineResult
from tandem.bls.request import Request
from tandem.bls.triton.background import log_exception, run_in_background
from tandem.bls.triton.engine_calls.clients import EngineClients
from tandem.bls.triton.engine_calls.sequence_caller import SequenceCaller


class AheadThread:
    """Makes draft calls on a thread, one at a time.

    If a call is overdue, the thread becomes ``lost``: it is abandoned and takes no more calls.
    """

    def __init__(self, clients: EngineClients, request: Request) -> None:
        self.lost = False
        self._clients = clients
        self._caller = SequenceCaller(clients, request)
        self._calls: queue.SimpleQueue[EngineCall | None] = queue.SimpleQueue()  # None: end
        self._result: Future[EngineResult] = Future()  # of the last call
        self._result.set_result(EngineResult(NO_TOKENS))

    @classmethod
    def start_if_free(cls, clients: EngineClients, request: Request) -> AheadThread | None:
        """Return a new running thread, or None if the loop or the system has no more threads."""
        if not clients.ahead_threads.acquire(blocking=False):
            return None
        thread = cls(clients, request)
        try:
            run_in_background(thread._work)
        except Overloaded:
            clients.ahead_threads.release()
            return None
        return thread

    def begin(self, call: EngineCall) -> Future[EngineResult] | None:
        """Start a call and return its future result. Stop the last call if it hasn't ended."""
        if self.lost:
            return None
        if not self._result.done():
            self.stop()
            return None
        self._caller.interruption = None  # an interruption applies to the last call only
        self._result = Future()
        self._calls.put(call)
        return self._result

    def stop(self) -> None:
        """Stop the current call. Its result then has no branches."""
        self._caller.interrupt(Cancelled())

    def check(self, now: float) -> None:
        """Abandon the thread if its call is overdue, and let another sequence draft ahead."""
        overdue = self._caller.check(now)
        if overdue is not None:
            self.lost = True
            self._clients.ahead_threads.release()
            self._result.set_exception(overdue)

    def close(self, then: Callable[[], None]) -> None:
        """End the thread. Calls ``then`` after its last call has ended."""
        self.stop()
        self._calls.put(None)
        self._result.add_done_callback(lambda _: then())

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                result = self._caller.call_engine(call)
                if self._caller.interruption is not None:
                    # No round reads these branches, and the call's duration is too short to learn
                    # from.
                    result = result._replace(branches=())
                self._result.set_result(result)
            except (ServingError, Cancelled) as error:
                self._result.set_exception(error)
            except Abandoned:  # `check` has set the result
                return
            except BaseException as error:  # noqa: BLE001  the sequence must still end
                log_exception("drafting ahead failed", error)
                self._result.set_result(EngineResult(NO_TOKENS))
        if not self.lost:
            self._clients.ahead_threads.release()
