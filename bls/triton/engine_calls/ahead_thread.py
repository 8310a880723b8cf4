"""A second thread of a sequence. It drafts ahead while the first thread blocks in a call."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tandem.bls.effects import StepsAhead
from tandem.bls.errors import Cancelled, Failure, Overloaded, ServingError
from tandem.bls.request import Request
from tandem.bls.triton.background import in_background, log_exception
from tandem.bls.triton.engine_calls.call_slot import Abandoned
from tandem.bls.triton.engine_calls.clients import EngineClients
from tandem.bls.triton.engine_calls.sequence_caller import SequenceCaller


class AheadThread:
    """Runs steps that draft ahead on a thread, one generator at a time.

    If a call is overdue, the thread becomes ``lost``: it is abandoned and takes no more steps.
    """

    def __init__(self, clients: EngineClients, request: Request) -> None:
        self.lost = False
        self._clients = clients
        self._caller = SequenceCaller(clients, request)
        self._steps: queue.SimpleQueue[StepsAhead | None] = queue.SimpleQueue()
        self._result: Future[Any] | None = None  # of the current steps
        self._then: Callable[[], None] | None = None
        self._left = False
        self._lock = threading.Lock()

    @classmethod
    def if_free(cls, clients: EngineClients, request: Request) -> AheadThread | None:
        """Return a new running thread, or None if the loop or the system has no more threads."""
        if not clients.ahead_threads.acquire(blocking=False):
            return None
        thread = cls(clients, request)
        try:
            in_background(thread._work)
        except Overloaded:
            thread._leave()
            return None
        return thread

    def begin(self, steps: StepsAhead) -> Future[Any] | None:
        """Start the steps and return their future result; None if the last steps haven't ended."""
        with self._lock:
            if self._result is not None or self.lost:
                return None
            self._caller.interruption = None  # an interruption applies to the last steps only
            result = self._result = Future()
        self._steps.put(steps)
        return result

    def stop(self) -> None:
        """Stop the steps. Interrupts their current call, and prevents further calls."""
        self._caller.interrupt(Cancelled())

    def check(self, now: float) -> None:
        """Abandon the thread if its call is overdue."""
        overdue = self._caller.check(now)
        if overdue is not None:
            self.lost = True
            self._ended(error=overdue)

    def close(self, then: Callable[[], None]) -> None:
        """End the thread. Calls ``then`` after its last call has ended."""
        with self._lock:
            busy = self._result is not None
            self._then = then
        self._steps.put(None)
        if busy:
            self.stop()
        else:
            self._leave()
            then()

    def _work(self) -> None:
        while (steps := self._steps.get()) is not None:
            try:
                self._ended(self._carry_out(steps))
            except (ServingError, Cancelled) as error:
                self._ended(error=error)
            except Abandoned:
                return
            except BaseException as error:  # noqa: BLE001  the sequence must still end
                log_exception("drafting ahead failed", error)
                self._ended()

    def _carry_out(self, steps: StepsAhead) -> Any:
        """Make the calls that the steps yield; return the result of the steps.

        The branches of a stopped call are dropped. No round reads them, and the call's duration is
        too short to learn from.
        """
        try:
            call = next(steps)
            while True:
                answer = self._caller.answer(call)
                if self._caller.interruption is not None:
                    answer = answer._replace(branches=())
                call = steps.send(answer)
        except StopIteration as ended:
            return ended.value

    def _ended(self, result: Any = None, error: Failure | None = None) -> None:
        """Record the end of the steps. If the thread is lost or closed, release it."""
        with self._lock:
            future, self._result = self._result, None
            then, self._then = self._then, None
        if future is not None and error is None:
            future.set_result(result)
        elif future is not None:
            future.set_exception(error)
        if self.lost or then is not None:
            self._leave()
        if then is not None:
            then()

    def _leave(self) -> None:
        """Let another sequence draft ahead. A second call does nothing."""
        with self._lock:
            left, self._left = self._left, True
        if not left:
            self._clients.ahead_threads.release()
