"""Starts one Triton server, waits until it is ready, stops it and cleans up.

with TritonServer(repository, thread_pool_size=128) as server:
    client = InferenceServerClient(server.grpc_url)

`serving` does this for a deployment, with a status line on a terminal.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from tandem.tools.errors import TandemError
from tandem.tools.folders import TemporaryFolder, create_log, keep_log, remove_leftovers
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.profiles.profile import STARTUP_SECONDS, Profile
from tandem.tools.signals import handle_signals
from tandem.tools.triton import supervisor
from tandem.tools.triton.install import TritonInstall, find_triton
from tandem.tools.triton.launch import PREFIX, check_launch, launch_command, server_command
from tandem.tools.triton.repository import render
from tandem.tools.triton.status import (
    TritonLog,
    all_exist,
    oldest_pending_response,
    requests_in_flight,
)

POLL_SECONDS = 0.05
LOOPBACK = "127.0.0.1"
EVERY_ADDRESS = ("0.0.0.0", "::")
DRAIN_SECONDS = 5.0  # how long a server that stops waits for its requests
EXIT_SECONDS = 2  # how long Triton then waits for calls of its models
STOP_SECONDS = 5.0  # then Triton is killed, because an idle gRPC stream can block its exit forever
SUPERVISOR_SECONDS = STOP_SECONDS + 5
MAX_STARTS = 3
LOAD_NOTICE_TIMEOUT = 10.0  # Triton notices within milliseconds that an engine has loaded
EXIT_GRACE_SECONDS = 2.0  # a client may notice Triton's end before the supervisor does
SECONDS_BETWEEN_LOOKS = 2.0  # interval between checks of a running server
HUNG_STREAM_TIMEOUT = 30.0  # Triton accepts responses within milliseconds unless its streams hang


@dataclass(frozen=True)
class Ports:
    """The ports on which Triton listens; 0 picks a free port."""

    http: int = 8000
    grpc: int = 8001
    metrics: int = 8002


ANY_PORTS = Ports(0, 0, 0)


class TritonServer:
    """Context manager for a Triton server that serves one model repository.

    repository: folder with the models, in the layout that ``tandem render`` writes.
    thread_pool_size: maximum number of BLS calls in flight per model; others wait. startup_timeout:
    maximum seconds until all models are loaded. profile: the deployment's, if it has TensorRT
    engines. on_progress: called repeatedly with a line of text while the server starts.

    Entering the context starts the server and returns when every model is ready. If a model can't
    be loaded, raises TandemError with the model, the reason and the log file in one line. The log
    is removed if the server ran without errors. ``failure`` is the last error, or None.
    """

    def __init__(
        self,
        repository: Path,
        *,
        thread_pool_size: int,
        ports: Ports = ANY_PORTS,
        address: str = LOOPBACK,
        startup_timeout: float = STARTUP_SECONDS,
        profile: Profile | None = None,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.repository = repository.resolve()
        self.models = frozenset(p.parent.name for p in self.repository.glob("*/config.pbtxt"))
        self.address = address
        self.shm_prefix = f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}-"
        self._thread_pool_size = thread_pool_size
        self._startup_timeout = startup_timeout
        self._profile = profile
        self._wanted_ports = ports
        self._on_progress = on_progress
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self.failure: TandemError | None = None

    def __enter__(self) -> TritonServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def http_url(self) -> str:
        return f"{self._host}:{self.ports.http}"

    @property
    def grpc_url(self) -> str:
        return f"{self._host}:{self.ports.grpc}"

    @property
    def metrics_url(self) -> str:
        return f"http://{self._host}:{self.ports.metrics}/metrics"

    @property
    def running(self) -> bool:
        leader = self._supervisor  # another thread may set it to None
        return leader is not None and leader.poll() is None

    @property
    def processes(self) -> list[int]:
        """Ids of the server's processes: Triton itself and one stub per Python model."""
        leader = self._supervisor  # another thread may set it to None
        return list(supervisor.session_processes(leader.pid)) if leader else []

    def start(self) -> None:
        """Start Triton; return once every model is ready, or raise TandemError."""
        if not self.models:
            raise TandemError(f"{self.repository} has no models (no */config.pbtxt)")
        for _ in range(MAX_STARTS - 1):
            try:
                return self._start_once()
            except TandemError:
                # Retry only if startup failed for a transient reason, not because of a model.
                if not (self.failure and self.log.failed_transiently):
                    raise
                self.log.path.unlink()
                self.failure = None
        return self._start_once()

    def _start_once(self) -> None:
        self._stopping.clear()
        install = find_triton()
        for path in (self.repository, install.backends):
            if any(letter.isspace() for letter in str(path)):  # Python models can't start there
                raise TandemError(
                    f"Triton can't serve a path with a space: {path}; if Tandem created it, set "
                    "TMPDIR or XDG_CACHE_HOME"
                )
        self.ports = claim_ports(self._wanted_ports, self.address)
        self.command = self._command(install)
        self._log_file, log = create_log()
        self.log = TritonLog(log)
        # The stubs put the working directory first in sys.path, so it must be empty.
        self._empty_folder = TemporaryFolder()
        # The supervisor ends the server and cleans up, even if this process is killed.
        program = [sys.executable, "-I", "-S", supervisor.__file__, str(STOP_SECONDS)]
        self._supervisor = subprocess.Popen(
            [*program, self.shm_prefix, *self.command],
            stdin=subprocess.PIPE,
            stdout=self._log_file,
            stderr=self._log_file,
            cwd=self._empty_folder.path,
            env=install.environment(),
            start_new_session=True,
        )
        try:
            self._wait_until_ready()
            self._when_ready = Counter(self._names)
        except BaseException:
            self.kill()  # no need to wait, because no requests are in flight
            raise

    def watch(self, expendable: Collection[str] = ()) -> None:
        """Kill the server as soon as it can no longer serve, and set ``failure``.

        Returns when the server ends or is stopped. Triton doesn't restart the process of a model,
        and its clients would wait forever. expendable: models that the server can do without.
        """
        leader, gone = self._supervisor, Counter[str]()
        while leader and not self._stopping.wait(SECONDS_BETWEEN_LOOKS) and leader.poll() is None:
            gone_before, gone = gone, self._when_ready - Counter(self._names)
            # If Triton itself is ending, its models end a moment earlier. So check twice.
            lost = sorted((gone & gone_before).keys() - {"Triton", *expendable})
            seconds = oldest_pending_response(self._host, self.ports.metrics)
            if lost:
                reason = f"the process of model '{lost[0]}' ended, and Triton doesn't restart it"
            elif seconds > HUNG_STREAM_TIMEOUT:
                reason = f"gRPC streams hang: Triton hasn't taken a response for {seconds:.0f} s"
            else:
                continue
            if not self._stopping.is_set():
                self._failure(reason)
                supervisor.kill_session(leader.pid)
            return

    def wait(self) -> None:
        """Block until the server ends, then raise TandemError."""
        if self._supervisor is not None:
            self._supervisor.wait()
            raise self._exit_error()

    def check(self) -> None:
        """Raise TandemError if the server has ended, or ends within a moment."""
        if self._supervisor is not None:
            with suppress(subprocess.TimeoutExpired):
                self._supervisor.wait(EXIT_GRACE_SECONDS)
                raise self._exit_error()

    def stop(self, on_wait: Callable[[str], None] = lambda _: None) -> None:
        """Stop the server and its stubs and remove its shared memory, if it is running.

        on_wait: called repeatedly with a line of text while the server stops.
        """
        if self._supervisor is None:
            return
        self._stopping.set()
        try:
            if "Triton" not in self._names:  # it crashed, or a service manager stopped it too
                with suppress(TandemError):
                    self.check()
                if self._supervisor.returncode == 128 + signal.SIGTERM:
                    self.failure = None
            self._drain(on_wait)
            if self._supervisor.stdin is not None:
                self._supervisor.stdin.close()  # asks the supervisor to stop the server
            began = time.monotonic()
            while self.running and (seconds := time.monotonic() - began) < SUPERVISOR_SECONDS:
                on_wait(f"waiting for {', '.join(dict.fromkeys(self._names))} ({seconds:.0f} s)")
                with suppress(subprocess.TimeoutExpired):
                    self._supervisor.wait(POLL_SECONDS)
        finally:
            self.kill()

    def _drain(self, on_wait: Callable[[str], None]) -> None:
        """Wait for requests, because a Triton that stops rejects the calls between its models."""
        began = time.monotonic()
        while self.running and (seconds := time.monotonic() - began) < DRAIN_SECONDS:
            count = requests_in_flight(self._host, self.ports.metrics)
            if not count:
                return
            on_wait(f"waiting for {count} requests ({seconds:.0f} s)")
            time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """Kill all of the server's processes immediately, if it is running, and clean up."""
        if self._supervisor is None:
            return
        self._stopping.set()
        with handle_signals(signal.SIG_IGN):  # a second signal must not interrupt the cleanup
            if self._supervisor.poll() is None:
                supervisor.kill_session(self._supervisor.pid)
                self._supervisor.kill()
                self._supervisor.wait()
            if self._supervisor.returncode < 0:  # it was killed before it could clean up
                supervisor.kill_session(self._supervisor.pid)
                supervisor.unlink_regions(self.shm_prefix)
            if self._supervisor.stdin is not None:
                self._supervisor.stdin.close()
            self._supervisor = None
            self._empty_folder.remove()
            if self.failure or self.log.has_tracebacks:
                keep_log(self.log.path)
            else:
                self.log.path.unlink(missing_ok=True)
            os.close(self._log_file)  # until then, no other command removes the log

    @property
    def _names(self) -> list[str]:
        """Names of the server's processes: "Triton", and the model of each stub."""
        return supervisor.process_names(self.processes)

    @property
    def _host(self) -> str:
        host = LOOPBACK if self.address in EVERY_ADDRESS else self.address
        return f"[{host}]" if ":" in host else host

    def _command(self, install: TritonInstall) -> list[str]:
        # A random key keeps clients from shared memory. In Triton 2.51, a client that may register
        # regions may also read and write the Python models' regions (CVE-2025-23319 and others).
        restricted = f"shared-memory:tandem-key={secrets.token_hex(16)}"
        ipv6 = ":" in self.address
        http = f"ipv6:{self.address}" if ipv6 else self.address
        endpoints = {
            "http-address": http,
            "grpc-address": f"[{self.address}]" if ipv6 else self.address,
            "metrics-address": http,
            **{f"{name}-port": port for name, port in vars(self.ports).items()},
            "http-restricted-api": restricted,
            "grpc-restricted-protocol": restricted,
        }
        server = [
            *server_command(
                install.binary,
                self.repository,
                exit_seconds=EXIT_SECONDS,
                startup_seconds=self._startup_timeout,
                thread_pool_size=self._thread_pool_size,
            ),
            f"--backend-directory={install.backends}",
            f"--model-load-thread-count={len(self.models)}",
        ]
        listening = [f"--{name}={value}" for name, value in endpoints.items()]
        return launch_command(self._profile, server, listening, self.shm_prefix)

    def _wait_until_ready(self) -> None:
        began = noticed = time.monotonic()
        while not self._ready():
            if not self.running:
                raise self._exit_error()
            if failure := self.log.failure:
                raise self._failure(failure)
            if not (unnoticed := self.log.unnoticed):
                noticed = time.monotonic()
            if time.monotonic() - noticed > LOAD_NOTICE_TIMEOUT:
                raise self._failure(
                    f"Triton didn't notice that engine '{unnoticed[0]}' finished loading, because "
                    "its process stalled for over a second; restart the server"
                )
            seconds, total = time.monotonic() - began, len(self.models)
            missing = sorted(self.models - self.log.loaded)
            waiting = f"waiting for {', '.join(missing) or 'Triton'}"
            if seconds > self._startup_timeout:
                raise self._failure(
                    f"Triton isn't ready after {self._startup_timeout:g} s, {waiting}; raise "
                    "timeouts.startup if it needs longer"
                )
            ready = f"{total - len(missing)} of {total} models"
            self._on_progress(f"{ready}, {waiting} ({seconds:.0f} s)")
            time.sleep(POLL_SECONDS)

    def _ready(self) -> bool:
        """Return whether the server is ready; Triton opens /metrics last."""
        models = [f"/v2/models/{name}/ready" for name in self.models]
        return all_exist(self._host, self.ports.http, "/v2/health/ready", *models) and all_exist(
            self._host, self.ports.metrics, "/metrics"
        )

    def _exit_error(self) -> TandemError:
        if self.failure:
            return self.failure
        status = self._supervisor.returncode if self._supervisor else 0
        if status < 0:
            return self._failure(f"Triton's supervisor was killed by signal {-status}")
        if status > 128 and not self.log.failure:
            return self._failure(f"Triton was killed by signal {status - 128}")
        ended = f"Triton ended with exit status {status}: {self.log.last_error}"
        return self._failure(self.log.failure or ended)

    def _failure(self, reason: str) -> TandemError:
        """Return the error to raise, and keep the log."""
        self.failure = TandemError(f"{reason}; log: {self.log.path}")
        return self.failure


def claim_ports(ports: Ports, address: str, also: Mapping[str, int] = {}) -> Ports:
    """Return the ports, with a free one for each 0; raise TandemError if any is taken.

    also: ports of other servers by name, which are only checked.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    numbers: dict[str, int] = {}
    reasons: dict[tuple[str, int], OSError] = {}
    with ExitStack() as stack:
        for name, port in {**vars(ports), **also}.items():
            bound = stack.enter_context(socket.socket(family))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                bound.bind((address, port))
            except OSError as error:
                reasons[name, port] = error
            else:
                numbers[name] = bound.getsockname()[1]
    if reasons:
        taken = ", ".join(f"{address}:{port} ({name})" for name, port in reasons)
        texts = [error.strerror or str(error) for error in reasons.values()]
        options = " ".join(f"--{name}-port 0" for name, _ in reasons)
        raise TandemError(
            f"can't listen on {taken}: {'; '.join(dict.fromkeys(texts))}; "
            f"use {options}, or another --base-port or --address"
        )
    return Ports(*(numbers[name] for name in vars(ports)))


@contextmanager
def serving(
    deployment: Deployment, ports: Ports = ANY_PORTS, address: str = LOOPBACK
) -> Iterator[TritonServer]:
    """Yield a server that serves a deployment until the context ends.

    A second Ctrl-C while the server stops kills it.
    """
    check_launch(deployment.profile)
    remove_leftovers()
    with linked_repository(deployment) as models:
        with status_line("starting Triton") as show:
            server = TritonServer(
                models,
                thread_pool_size=deployment.thread_pool_size,
                ports=ports,
                address=address,
                startup_timeout=deployment.profile.timeouts.startup,
                profile=deployment.profile,
                on_progress=show,
            )
            server.start()
        draft = deployment.profile.models.draft  # without it, the target decodes alone
        threading.Thread(target=server.watch, args=[[draft]], daemon=True).start()
        try:
            yield server
        except TandemError:
            server.check()  # if Triton has ended, this is the reason for the client's error
            raise
        finally:
            try:
                with status_line("stopping Triton (Ctrl-C kills it)") as show:
                    server.stop(show)
            finally:
                server.kill()
                if server.failure:  # also the result if Ctrl-C followed
                    raise server.failure


@contextmanager
def linked_repository(deployment: Deployment) -> Iterator[Path]:
    """Render a deployment, with links, into a temporary folder for the duration of the context."""
    folder = TemporaryFolder()
    try:
        models = folder.path / "repository"
        render(deployment, models, link=True)
        yield models
    finally:
        with handle_signals(signal.SIG_IGN):  # a second signal must not interrupt the cleanup
            folder.remove()


@contextmanager
def status_line(title: str) -> Iterator[Callable[[str], None]]:
    """Show a title. Yield a function that adds text to it on a terminal."""
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.print(title)
    with console.status(escape(title)) as status:
        yield lambda text: status.update(escape(f"{title}: {text}"))
