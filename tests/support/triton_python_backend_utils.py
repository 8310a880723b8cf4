"""A small replacement for Triton's Python module of this name, as strict as Triton 2.51."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class TritonModelException(Exception):
    pass


class TritonError:
    INTERNAL, INVALID_ARG, UNAVAILABLE, UNSUPPORTED = "internal", "invalid", "unavailable", "no"
    UNKNOWN, NOT_FOUND, EXISTS, CANCELLED = "unknown", "not found", "exists", "cancelled"

    def __init__(self, message: str, code: str = INTERNAL) -> None:
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> str:
        return self._code


class Tensor:
    def __init__(self, name: str, array: Any) -> None:
        self._name, self._array = str(name), array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._array

    def shape(self) -> tuple[int, ...]:
        return self._array.shape


class InferenceResponse:
    def __init__(self, output_tensors: Any = (), error: TritonError | None = None) -> None:
        self._tensors, self._error = list(output_tensors), error

    @property
    def arrays(self) -> dict[str, Any]:
        """Return the output arrays that a client receives, by name."""
        return {tensor.name(): tensor.as_numpy() for tensor in self._tensors}

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> Any:
        return self._error


def response_of(arrays: Mapping[str, Any]) -> InferenceResponse:
    """Return a response with these outputs."""
    return InferenceResponse([Tensor(name, array) for name, array in arrays.items()])


class InferenceRequest:
    """A call to another model. `answer`, which tests set, returns the response to a request."""

    answer: Any = None

    def __init__(self, model_name: str, **given: Any) -> None:
        self.model_name, self.given = model_name, given

    @property
    def arrays(self) -> dict[str, Any]:
        """Return the input arrays, by name."""
        return {tensor.name(): tensor.as_numpy() for tensor in self.given["inputs"]}

    def exec(self, *, decoupled: bool = False) -> Any:
        if owner_of(threading.current_thread()) is not owner_of(threading.main_thread()):
            raise TritonModelException("the test that made this call is over")
        response = InferenceRequest.answer(self)
        return [response] if decoupled else response


class Sent(NamedTuple):
    """A response that was sent to a client, and its flags."""

    response: InferenceResponse | None
    flags: int

    @property
    def line(self) -> str:
        assert self.response is not None
        return str(self.response.error().message())


class ResponseSender:
    """Records responses, and enforces Triton's rules (python_backend, src/response_sender.cc).

    A model that isn't decoupled sends a single response, and no response follows a final flag. The
    sender counts a response before it copies the response, so a response that doesn't fit into
    shared memory counts too.

    fits: returns whether a response fits into shared memory. hold: called before each response is
    sent.
    """

    def __init__(
        self,
        fits: Any = lambda response: True,
        hold: Any = lambda: None,
        *,
        decoupled: bool = True,
    ) -> None:
        self.sent: list[Sent] = []
        self.cancelled = False
        self._fits, self._hold, self._decoupled = fits, hold, decoupled
        self._closed = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        if self._closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        self._closed = bool(flags) or not self._decoupled
        self._hold()
        if not self._fits(response):
            raise TritonModelException("Failed to increase the shared memory pool size for key 'x'")
        self.sent.append(Sent(response, flags))

    def is_cancelled(self) -> bool:
        assert not self._closed, "Triton 2.51 crashes here"
        return self.cancelled


class Request:
    """A client's request to a model."""

    def __init__(
        self,
        sender: ResponseSender | None,
        arrays: Mapping[str, Any] = MappingProxyType({}),
        wanted: Iterable[str] = (),
        request_id: str = "",
    ) -> None:
        self._inputs = [Tensor(name, array) for name, array in arrays.items()]
        self._wanted, self._sender, self._id = list(wanted), sender, request_id

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def requested_output_names(self) -> list[str]:
        return self._wanted

    def get_response_sender(self) -> ResponseSender | None:
        return self._sender

    def request_id(self) -> str:
        return self._id

    def parameters(self) -> str:
        return ""

    def timeout(self) -> int:
        return 0


class Logger:
    ERROR, INFO = "error", "info"
    lines: list[str] = []  # noqa: RUF012
    full = False

    @staticmethod
    def log_error(line: str) -> None:
        if Logger.full:
            raise TritonModelException("Failed to increase the shared memory pool size")
        Logger.lines.append(line)

    log_warn = log_info = log_error

    @staticmethod
    def log(line: str, _level: str) -> None:
        Logger.log_error(line)


class MetricFamily:
    """A family of metrics. Decreasing a counter fails. If `full` is set, all calls fail."""

    COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
    metrics: dict[Any, Metric] = {}  # noqa: RUF012
    full = False

    def __init__(self, name: str, description: str, kind: str) -> None:
        self.name, self.kind = name, kind

    def Metric(self, labels: dict[str, str], **_: Any) -> Metric:  # noqa: N802
        return MetricFamily.metrics.setdefault(
            (self.name, frozenset(labels.items())), Metric(self.kind)
        )


class Metric:
    def __init__(self, kind: str) -> None:
        self.kind, self.value = kind, 0.0
        self.observed: list[float] = []

    def increment(self, value: float) -> None:
        self._reach()
        if self.kind == MetricFamily.COUNTER and not value >= 0:
            raise TritonModelException("TRITONSERVER_METRIC_KIND_COUNTER can only be increased")
        self.value += value

    def set(self, value: float) -> None:
        self._reach()
        self.value = value

    def observe(self, value: float) -> None:
        self._reach()
        self.observed.append(value)

    @staticmethod
    def _reach() -> None:
        if MetricFamily.full:
            raise TritonModelException("Failed to increase the shared memory pool size")


def owner_of(thread: threading.Thread) -> object:
    """Return the test that a thread belongs to, or None if the test wasn't recorded."""
    return getattr(thread, "owner", None)


def reset() -> None:
    """Clear all records, and make calls from threads of earlier tests fail."""
    threading.current_thread().owner = object()  # type: ignore[attr-defined]
    Logger.lines, Logger.full = [], False
    MetricFamily.metrics, MetricFamily.full = {}, False
    InferenceRequest.answer = None
