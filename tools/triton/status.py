"""The state of a server, as its log and its HTTP pages show it."""

from __future__ import annotations

import re
from contextlib import closing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from tandem.bls.metrics import OLDEST_DELIVERY

LOADED = re.compile(r"\"successfully loaded '([^']+)'\"")
ENGINE_LOADED = re.compile(r"^tandem: engine '([^']+)' has loaded$", re.MULTILINE)
FAILED = re.compile(r"\"failed to load '([^']+)' version \d+: (.*)\"$", re.MULTILINE)
POLL_FAILED = re.compile(r"Poll failed for model directory '([^']+)': (.*)\"$", re.MULTILINE)
ERROR = re.compile(
    r"^(?:error: |Error: |\S*tritonserver: |E\d{4} \S+ \d+ \S+\] )(.*)$", re.MULTILINE
)
TRACEBACK = re.compile(r'^E\d{4} .*\] "tandem: .*Traceback', re.MULTILINE)
# Triton 2.51 occasionally crashes with a lock_exception if models load at the same time. Another
# program can take a free port while the models are loading.
TRANSIENT_FAILURE = re.compile(r"boost::interprocess::lock_exception|Socket '[^']+' already in use")
STATUS = re.compile(
    r"^(?:Internal|Invalid argument|Not found|Unavailable|Unsupported): (?:TritonModelException: )?"
)
HARMLESS = ("CudaDriverHelper", "NVML")
SECONDS_TO_ANSWER = 5


@dataclass(frozen=True)
class TritonLog:
    """The log file of one server."""

    path: Path

    @property
    def loaded(self) -> set[str]:
        return set(LOADED.findall(self._text))

    @property
    def unnoticed(self) -> list[str]:
        """Names of engines that have loaded without Triton noticing, sorted."""
        text = self._text
        return sorted(set(ENGINE_LOADED.findall(text)) - set(LOADED.findall(text)))

    @property
    def failure(self) -> str | None:
        """One line with the first model that failed to load and the reason, or None."""
        found = FAILED.search(self._text) or POLL_FAILED.search(self._text)
        return f"model '{found[1]}' failed to load: {_first_line(found[2])}" if found else None

    @property
    def has_tracebacks(self) -> bool:
        """Whether a model logged a traceback; its client got only one line."""
        return TRACEBACK.search(self._text) is not None

    @property
    def failed_transiently(self) -> bool:
        """Whether startup failed for a transient reason: shared memory, a taken port or a stall."""
        return TRANSIENT_FAILURE.search(self._text) is not None or bool(self.unnoticed)

    @property
    def last_error(self) -> str:
        """Triton's last error, or the last line without one."""
        errors = [e for e in ERROR.findall(self._text) if not any(h in e for h in HARMLESS)]
        lines = errors or self._text.strip().splitlines() or ["no output"]
        return _first_line(lines[-1].strip('"'))

    @property
    def _text(self) -> str:
        return self.path.read_text(errors="replace")


def _first_line(reason: str) -> str:
    """Return a reason without its status and traceback.

    Triton writes newlines as backslash-n and appends the Python traceback. If the first line ends
    with a colon, the cause is in the next one.
    """
    return STATUS.sub("", re.sub(r":\\n +", ": ", reason).partition("\\n")[0])


def all_exist(host: str, port: int, *paths: str) -> bool:
    return all(_page(host, port, path)[0] == HTTPStatus.OK for path in paths)


def oldest_pending_response(host: str, port: int) -> float:
    """Return the age in seconds of the oldest response that Triton hasn't accepted.

    The value comes from the metrics; it is 0 if no response is pending.
    """
    text = _page(host, port, "/metrics")[1].decode()
    found = re.findall(rf"^{OLDEST_DELIVERY}{{.*}} (\S+)$", text, re.MULTILINE)
    return max(map(float, found), default=0.0)


def requests_in_flight(host: str, port: int) -> int:
    """Return how many requests of the loop run or wait, according to the metrics."""
    text = _page(host, port, "/metrics")[1].decode()
    found = re.findall(r"^tandem_requests_(?:running|waiting){.*} (\S+)$", text, re.MULTILINE)
    return int(sum(map(float, found)))


def http_service(host: str, port: int) -> str | None:
    """Describe the HTTP service at a port for an error, or return None without one."""
    status, text = _page(host, port, "/v2")
    if status is None:
        return None
    return "Triton's HTTP port" if b'"extensions"' in text else "an HTTP port"


def _page(host: str, port: int, path: str) -> tuple[int | None, bytes]:
    """Return the status and body of a page. The status is None without a complete response."""
    with suppress(OSError, HTTPException):  # HTTPException: also if the host can't be in a URL
        connection = HTTPConnection(host.strip("[]"), port, timeout=SECONDS_TO_ANSWER)
        with closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
    return None, b""
