"""A second thread of a sequence. It drafts ahead while the first thread blocks in a call."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tandem.bls.effects import StepsAhead
from tandem.bls.errors import Cancelled, Overloaded, ServingError
from tandem.bls.request import Request
from tandem.bls.triton.background import log_exception, run_in_background
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
        self._steps: queue.SimpleQueue[StepsAhead | None] = queue.SimpleQueue()  # None: end
        self._result: Future[Any] = Future()  # of the last steps
        self._result.set_result(None)

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

    def begin(self, steps: StepsAhead) -> Future[Any] | None:
        """Start the steps and return their future result; None if the last steps haven't ended."""
        if self.lost or not self._result.done():
            return None
        self._caller.interruption = None  # an interruption applies to the last steps only
        self._result = Future()
        self._steps.put(steps)
        return self._result

    def stop(self) -> None:
        """Stop the steps. Interrupts their current call, and prevents further calls."""
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
        self._steps.put(None)
        self._result.add_done_callback(lambda _: then())

    def _work(self) -> None:
        while (steps := self._steps.get()) is not None:
            try:
                self._result.set_result(self._run_steps(steps))
            except (ServingError, Cancelled) as error:
                self._result.set_exception(error)
            except Abandoned:  # `check` has set the result
                return
            except BaseException as error:  # noqa: BLE001  the sequence must still end
                log_exception("drafting ahead failed", error)
                self._result.set_result(None)
        if not self.lost:
            self._clients.ahead_threads.release()

    def _run_steps(self, steps: StepsAhead) -> Any:
        """Make the calls that the steps yield; return the result of the steps.

        The branches of a stopped call are dropped. No round reads them, and the call's duration is
        too short to learn from.
        """
        try:
            call = next(steps)
            while True:
                result = self._caller.call_engine(call)
                if self._caller.interruption is not None:
                    result = result._replace(branches=())
                call = steps.send(result)
        except StopIteration as ended:
            return ended.value
