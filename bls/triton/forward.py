"""``bls`` and ``ensemble``: entries that forward to ``bls_stream`` and return a single response.

``bls_stream`` is decoupled, because it streams, and Triton rejects plain `infer` for decoupled
models. These entries aren't decoupled. They can still serve many requests at the same time, because
``execute`` returns nothing and each answer is sent through its response sender.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from tandem.bls.errors import (
    Abandoned,
    BadRequest,
    EngineCallError,
    EngineUnavailable,
    ServingError,
)
from tandem.bls.inputs import check_sizes, reject_unknown
from tandem.bls.settings import ForwarderSettings
from tandem.bls.triton.background import Watcher, log_exception, run_in_background
from tandem.bls.triton.calls import Calls, CallSlot
from tandem.bls.triton.client import Sender, parameters_of, timeout_of
from tandem.bls.triton.metrics import Heartbeat
from tandem.contract import entry as tensors
from tandem.contract.entry import new_forwarded_id
from tandem.contract.model_parameters import decode
from tandem.contract.strings import Strings

# Extra time after which a call is abandoned if `bls_stream` fails to enforce the deadline.
GRACE_SECONDS = 10.0
# A `stop` that arrives before its request has no effect, so it is repeated until the request has
# ended. Only one `stop` is pending at a time, because a hung entry never answers it.
STOP_INTERVAL = 0.2


class ForwardEntry:
    """Triton's model object. Its only state is the current calls."""

    def initialize(self, args: dict[str, str]) -> None:
        pb_utils.deserialize_bytes_tensor = Strings
        self._settings = decode(ForwarderSettings, json.loads(args["model_config"]))
        self._calls = Calls()
        self._watcher = Watcher(Heartbeat(args["model_name"]).beat)

    def execute(self, requests: list[Any]) -> None:
        """Forward each request on its own thread."""
        for request in requests:
            forwarded = _Forwarded(request, self._settings, self._calls)
            self._watcher.add(forwarded)
            run_in_background(forwarded.run, forwarded.send_error)

    def finalize(self) -> None:
        self._watcher.stop()


class _Forwarded:
    """One request that is forwarded to ``bls_stream``."""

    def __init__(self, request: Any, settings: ForwarderSettings, calls: Calls) -> None:
        self._request = request
        self._sender = Sender(request, decoupled=False)
        self._settings = settings
        self._calls = calls
        self._id = new_forwarded_id()
        self._call_slot = CallSlot(calls)
        self._next_stop = 0.0
        self._stopping = False

    @property
    def closed(self) -> bool:
        """Whether the final response has been sent."""
        return self._sender.closed

    def run(self) -> None:
        """Make the call and send its answer."""
        try:
            tensors_of_answer = self._call().output_tensors()
            answer = pb_utils.InferenceResponse(output_tensors=tensors_of_answer)
            self._sender.send(answer, final=True)
        except Abandoned:
            return
        except EngineUnavailable as error:
            self.send_error(error)
        except EngineCallError as error:
            # The message of `bls_stream`, unchanged
            self._sender.send_error(error.what, error.code)
        except ServingError as error:
            self.send_error(error)
        except BaseException as error:  # noqa: BLE001  the client must get an answer
            log_exception("failed to forward a request", error)
            self._sender.send_error(
                "internal error while forwarding the request; see the server's log"
            )

    def send_error(self, error: ServingError) -> None:
        """Send an error to the client."""
        self._sender.send_error(error.line, error.code)

    def check(self, now: float) -> None:
        """Stop the request if its client has left. Abandon the call if it is overdue."""
        due = now >= self._next_stop and not self._stopping
        if due and self._sender.is_cancelled():
            self._next_stop = now + STOP_INTERVAL
            self._stopping = True
            run_in_background(self._stop, self._stop_later)
        overdue = self._call_slot.check(now)
        if overdue is not None:
            self.send_error(overdue)

    def _call(self) -> Any:
        parameters = parameters_of(self._request)
        reject_unknown(parameters)
        model = self._settings.stream_model
        request = pb_utils.InferenceRequest(
            model_name=model,
            request_id=self._id,
            requested_output_names=list(self._request.requested_output_names()),
            inputs=self._inputs(),
            timeout=timeout_of(self._request, parameters),
        )
        return self._call_slot.infer(
            model,
            request,
            request_id=self._id,
            timeout=self._settings.request_timeout + GRACE_SECONDS,
            decoupled=True,
            may_be_empty=True,  # if the client requests only outputs that aren't produced
        )

    def _inputs(self) -> list[Any]:
        """Return the client's inputs, with this entry's default drafter if none is given."""
        sent = {tensor.name(): tensor for tensor in self._request.inputs()}
        check_sizes({name: tensor.as_numpy() for name, tensor in sent.items()}, self._settings)
        inputs = {name: _as_sent(tensor) for name, tensor in sent.items()}
        for tensor, advice in (
            (tensors.STOP, "send it to"),
            (tensors.STREAM, "to stream, send the request to"),
        ):
            if tensor in inputs and inputs[tensor].as_numpy().any():
                raise BadRequest(
                    f"input '{tensor}' isn't supported by this model; {advice} "
                    f"'{self._settings.stream_model}'",
                    tensor,
                )
        drafter = self._settings.drafter
        if drafter is not None and tensors.DRAFTER not in inputs and inputs:
            rows = next(iter(inputs.values())).shape()[0]
            names = np.full((rows, 1), drafter.encode(), dtype=object)
            inputs[tensors.DRAFTER] = pb_utils.Tensor(tensors.DRAFTER, names)
        return list(inputs.values())

    def _stop_later(self, _: ServingError) -> None:
        self._stopping = False

    def _stop(self) -> None:
        """Ask ``bls_stream`` to stop this request, because its client has left."""
        model = self._settings.stream_model
        request = pb_utils.InferenceRequest(
            model_name=model,
            request_id=self._id,
            requested_output_names=[],
            inputs=[pb_utils.Tensor(tensors.STOP, np.array([[True]]))],
        )
        try:
            with suppress(EngineCallError):  # the `stop` is repeated if it fails
                self._calls.infer(model, request, decoupled=True, may_be_empty=True)
        finally:
            self._stopping = False


_SCALARS = frozenset(tensor for tensor in tensors.INPUTS if tensor.scalar)


def _as_sent(tensor: Any) -> Any:
    """Undo Triton's reshape of a scalar: the client sent [b, 1], but the model receives [b]."""
    if tensor.name() not in _SCALARS:
        return tensor
    return pb_utils.Tensor(tensor.name(), tensor.as_numpy().reshape(-1, 1))
