"""A stand-in for Triton's `triton_python_backend_utils`, as far as an engine uses it.

A sender keeps Triton 2.51's rules (python_backend, src/response_sender.cc): a model that is not
decoupled sends once, nothing comes behind a final flag, and it counts before it copies: a response
that does not fit has used the sender up.
"""

from __future__ import annotations

from typing import Any, ClassVar

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class TritonModelException(Exception):
    pass


class TritonError:
    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, EXISTS, CANCELLED = range(
        8
    )

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code


class Tensor:
    def __init__(self, name: str, array: Any) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._array


class InferenceResponse:
    def __init__(self, output_tensors: Any = (), error: TritonError | None = None) -> None:
        self.tensors = {tensor.name(): tensor.as_numpy() for tensor in output_tensors}
        self.error = error


class Sender:
    """What was sent, with its flags; `fails`: which sends, counted from 0, do not fit."""

    def __init__(self, *, decoupled: bool, fails: tuple[int, ...] = ()) -> None:
        self.sent: list[tuple[InferenceResponse, int]] = []
        self._decoupled = decoupled
        self._fails = fails
        self._tried = 0
        self._closed = False

    def send(self, response: InferenceResponse, flags: int) -> None:
        if self._closed or (self._tried and not self._decoupled):
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        self._closed = flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
        self._tried += 1
        if self._tried - 1 in self._fails:
            raise TritonModelException("Failed to increase the shared memory pool size")
        self.sent.append((response, flags))


class Request:
    def __init__(self, arrays: Any, wanted: list[str], sender: Sender, request_id: str) -> None:
        self._inputs = [Tensor(name, array) for name, array in arrays.items()]
        self._wanted, self._sender, self._id = wanted, sender, request_id

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def requested_output_names(self) -> list[str]:
        return self._wanted

    def get_response_sender(self) -> Sender:
        return self._sender

    def request_id(self) -> str:
        return self._id


class _Metric:
    def increment(self, _by: float) -> None:
        """Counted by nobody."""


class MetricFamily:
    COUNTER = 0

    def __init__(self, **_given: Any) -> None:
        pass

    @staticmethod
    def Metric(**_given: Any) -> _Metric:  # noqa: N802 (Triton's name)
        return _Metric()


class Logger:
    ERROR, INFO = "error", "info"
    lines: ClassVar[list[str]] = []

    @classmethod
    def log(cls, line: str, _level: str) -> None:
        cls.lines.append(line)
