"""Sends the calls of a model to the replicas of a remote engine.

The tensors are forwarded as they are, so every feature of the remote engine works. All calls of a
sequence go to one replica, whose KV cache has their context. A call has no state that only one
replica knows, so a call that fails with its replica is sent to another one.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray

from tandem.contract import engine as tensors
from tandem.contract.errors import ErrorCode, split_code
from tandem.engines.engine import ForwardedCall, Forwarder
from tandem.engines.errors import EngineError, LoadError, UnreachableError, first_line
from tandem.engines.remote.replica import Replica, line, resolve, smallest_inputs, triton_input
from tandem.engines.remote.settings import RemoteSettings

SECONDS_BETWEEN_CHECKS = 1.0  # of replicas that aren't ready, and of the names' addresses
STOP_SECONDS = 5.0  # for the answer to a `stop`
# A caller abandons a call at its timeout, so the call must end slightly earlier.
SHARE_OF_TIMEOUT = 0.95
MAX_SEQUENCES = 4096  # whose replicas are remembered; more than run at the same time
NOT_HEALTHY = re.compile("Stub process '[^']*' is not healthy")  # the model's process has died
_CODES: dict[str, ErrorCode] = {  # gRPC's codes
    "INVALID_ARGUMENT": "INVALID_ARG",
    "UNIMPLEMENTED": "UNSUPPORTED",
    "NOT_FOUND": "NOT_FOUND",
    "CANCELLED": "CANCELLED",
}
log = logging.getLogger(__name__)


@dataclass
class _Forwarding:
    """A call. tried: the replicas that failed it. deadline: in seconds of the monotonic clock."""

    given: ForwardedCall
    inputs: Sequence[triton.InferInput]
    outputs: Sequence[triton.InferRequestedOutput]
    deadline: float | None
    tried: list[Replica] = field(default_factory=list)


class RemoteEngine(Forwarder):
    """A remote engine. All methods may be called from any thread."""

    computed_tokens = 0  # the remote servers count their own

    def __init__(self, settings: RemoteSettings) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._settings = settings
        self._vocab_size = json.loads(settings.expected)["vocab_size"]
        self._replicas: dict[str, Replica] = {}  # by address
        self._of_sequence: OrderedDict[str, Replica] = OrderedDict()  # last used last
        self._running: dict[str, Replica] = {}  # by request id
        self._chosen = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._check_replicas(loading=True)
        self._thread = threading.Thread(target=self._watch, name="remote-replicas", daemon=True)
        self._thread.start()

    def forward(self, call: ForwardedCall) -> None:
        """Start a call. It fails if it takes almost as long as its timeout."""
        timeout = SHARE_OF_TIMEOUT * call.timeout
        deadline = time.monotonic() + timeout if timeout else None
        wanted = [triton.InferRequestedOutput(name) for name in call.outputs]
        inputs = [triton_input(name, array) for name, array in call.arrays.items()]
        self._send(_Forwarding(call, inputs, wanted, deadline))

    def stop(self, request_id: str) -> None:
        """End the running call with this id, if any, as soon as its replica stops it."""
        with self._lock:
            replica = self._running.get(request_id)
        if replica is None:
            return
        replica.client.async_infer(
            self._settings.model,
            [*smallest_inputs(), triton_input(tensors.STOP, np.ones((1, 1), np.bool_))],
            lambda result, error: None,  # noqa: ARG005  the call itself ends
            request_id=request_id,
            client_timeout=STOP_SECONDS,
            headers=replica.headers(),
        )

    def counts(self) -> dict[tuple[str, str], int]:
        with self._lock:
            return dict(self._counts)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        for replica in self._replicas.values():
            replica.client.close()

    def _send(self, call: _Forwarding) -> None:
        left = None if call.deadline is None else call.deadline - time.monotonic()
        replica = self._choose(call)
        if replica is None:
            call.given.fail(self._why_none(), "UNAVAILABLE", "")
            return
        if left is not None and left <= 0:
            self._release(call, replica)
            call.given.fail(self._overdue(call, replica), "INTERNAL", "")
            return
        try:
            replica.client.async_infer(
                self._settings.model,
                call.inputs,
                lambda result, error: self._on_answer(call, replica, result, error),
                outputs=call.outputs,
                request_id=call.given.request_id,
                client_timeout=left,
                headers=replica.headers(),
            )
        except (EngineError, triton.InferenceServerException, ValueError) as error:
            self._release(call, replica)
            call.given.fail(f"can't call {replica.name}: {error}", "UNAVAILABLE", "")

    def _choose(self, call: _Forwarding) -> Replica | None:
        """Return the replica of the call's sequence if it is ready; for a new one, the least busy.

        Returns None if there is none. Ids of the loop are `sequence-call`; others have no sequence.
        """
        sequence = call.given.request_id.rpartition("-")[0]
        with self._lock:
            ready = [r for r in self._replicas.values() if r.ready and r not in call.tried]
            if not ready:
                return None
            replica = self._of_sequence.pop(sequence, None)
            if replica not in ready:
                replica = min(ready, key=lambda r: (r.suspect, r.calls, r.last_chosen))
                self._chosen += 1
                replica.last_chosen = self._chosen
            if sequence:
                self._of_sequence[sequence] = replica
                if len(self._of_sequence) > MAX_SEQUENCES:
                    self._of_sequence.popitem(last=False)
            replica.calls += 1
            if call.given.request_id:
                self._running[call.given.request_id] = replica
            return replica

    def _release(self, call: _Forwarding, replica: Replica, *, succeeded: bool = False) -> None:
        with self._lock:
            replica.calls -= 1
            self._running.pop(call.given.request_id, None)
            self._counts[replica.name, "ok" if succeeded else "failed"] += 1

    def _on_answer(
        self,
        call: _Forwarding,
        replica: Replica,
        result: triton.InferResult | None,
        error: triton.InferenceServerException | None,
    ) -> None:
        self._release(call, replica, succeeded=error is None)
        if error is None:
            assert result is not None
            names = [output.name for output in result.get_response().outputs]
            try:
                arrays = {name: result.as_numpy(name) for name in names}
                self._check_logits(arrays.get(tensors.GENERATION_LOGITS))
            except Exception as wrong:  # noqa: BLE001  tritonclient checks no response
                reason = f"{replica.name}: its response can't be read: {first_line(wrong)}"
                call.given.fail(reason, "INTERNAL", "")
            else:
                call.given.respond(arrays)
            return
        status = str(error.status()).removeprefix("StatusCode.")
        code, field, text = split_code(line(error))
        if status == "DEADLINE_EXCEEDED":
            replica.suspect = True
            call.given.fail(self._overdue(call, replica), "INTERNAL", "")
        elif code == "UNAVAILABLE" or status == "UNAVAILABLE" or NOT_HEALTHY.search(text):
            self._lose(replica, text)
            call.tried.append(replica)
            self._send(call)
        else:
            code = code or _CODES.get(status, "INTERNAL")
            call.given.fail(f"{replica.name}: {text}", code, field)

    def _check_logits(self, logits: NDArray[Any] | None) -> None:
        """Raise ValueError for logits that the other engine would reject with the request."""
        if logits is not None and (
            logits.dtype != np.float32 or logits.shape[-1:] != (self._vocab_size,)
        ):
            raise ValueError(f"its logits have the shape {logits.shape} in {logits.dtype}")

    def _lose(self, replica: Replica, reason: str) -> None:
        """Send no more calls to a replica until it has been checked again."""
        with self._lock:
            was_ready, replica.ready, replica.reason = replica.ready, False, reason
        if was_ready:
            log.error("%s doesn't serve calls: %s", replica.name, reason)

    def _overdue(self, call: _Forwarding, replica: Replica) -> str:
        return f"{replica.name} didn't answer within {call.given.timeout:g} s"

    def _why_none(self) -> str:
        with self._lock:
            reasons = [f"{r.name}: {r.reason}" for r in self._replicas.values()]
        more = f" (and {len(reasons) - 1} more replicas)" if len(reasons) > 1 else ""
        return (
            f"{reasons[0]}{more}" if reasons else f"no address of {self._settings.url[0]} is known"
        )

    def _watch(self) -> None:
        while not self._closing.wait(SECONDS_BETWEEN_CHECKS):
            try:
                self._check_replicas()
            except Exception:
                log.exception("failed to check the replicas")

    def _check_replicas(self, *, loading: bool = False) -> None:
        """Add the names' new addresses, check the replicas that aren't ready, and drop old ones.

        Raises LoadError while loading, if a replica serves a different model.
        """
        try:
            found = {address: (host, name) for host, address, name in resolve(self._settings)}
        except UnreachableError as error:
            if loading:
                log.error("%s", error)  # noqa: TRY400
            return
        for address, (host, name) in found.items():
            replica = self._replicas.get(address)
            if replica is None:
                replica = Replica(self._settings, host, address, name)
                with self._lock:
                    self._replicas[address] = replica
            if not replica.ready or replica.suspect:
                self._check(replica, loading=loading)
        for address in self._replicas.keys() - found.keys():
            if not self._replicas[address].ready:  # it may still serve after its name has changed
                with self._lock:
                    gone = self._replicas.pop(address)
                gone.client.close()

    def _check(self, replica: Replica, *, loading: bool) -> None:
        try:
            facts = replica.read_facts()
            if facts != self._settings.expected:
                raise LoadError(_difference(replica.name, self._settings, facts))
            replica.make_smallest_call()
        except EngineError as error:
            if loading and isinstance(error, LoadError):
                raise
            if str(error) != replica.reason:
                log.error("%s", error)  # noqa: TRY400
            with self._lock:
                replica.ready, replica.reason = False, str(error)
            return
        if not replica.ready:
            log.info("%s serves calls", replica.name)
        with self._lock:
            replica.ready, replica.suspect = True, False


def _difference(name: str, settings: RemoteSettings, facts: str) -> str:
    """Return the first fact in which a model differs from the expected one."""
    old, new = json.loads(settings.expected), json.loads(facts)
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            return (
                f"model '{settings.model}' at {name} has {key} {new.get(key)!r}, but this "
                f"repository was rendered for {old.get(key)!r}; render it again"
            )
    return f"model '{settings.model}' at {name} is from another version; render it again"
