"""Compiles the guides of requests, and creates their matchers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.bls.errors import GuideRefused, Overloaded
from tandem.bls.parsing.guide_inputs import TEXT, TYPE
from tandem.bls.request import Request
from tandem.bls.settings import LoopSettings
from tandem.guides.errors import GuideError, GuideUndecided
from tandem.guides.library import check_library
from tandem.guides.matcher import GuideMatcher
from tandem.guides.refusals import keywords_of

if TYPE_CHECKING:
    from tandem.guides.compiler import GuideCompiler


class RequestGuides:
    """Compiles the guides of requests, or rejects guides if it can't compile any. Thread-safe.

    It can't if the profile's `max_guide_bytes` is 0, if this Python lacks the library (see
    `guides/library.py`), or if the library can't read the tokenizer. folder: of the model.
    count_refused: called with each keyword of a guide that could not be compiled.
    """

    def __init__(
        self, settings: LoopSettings, folder: Path, count_refused: Callable[[str], None]
    ) -> None:
        self._count_refused = count_refused
        self._max_waiting_bytes = settings.max_queue_bytes_each
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._compiler: GuideCompiler | None = None
        self._missing = ""  # why there is no compiler
        try:
            self._compiler = _compiler(settings, folder / settings.tokenizer_dir)
        except GuideError as error:
            self._missing = str(error)

    def check(self, requests: Sequence[Request]) -> None:
        """Raise GuideRefused for a guide if none can be compiled."""
        if self._compiler is None and any(request.guide for request in requests):
            raise GuideRefused(
                f"input '{TYPE}' isn't supported by this deployment: {self._missing}"
            )

    def matchers(
        self, requests: Sequence[Request], check: Callable[[], None]
    ) -> list[GuideMatcher | None]:
        """Return the matcher of each request's answer; None for a request without a guide.

        Waits until new guides are compiled. check: called before each one; raises if the answer is
        no longer needed. Raises GuideRefused, or Overloaded if the machine can't try a guide.
        """
        with self._waiting(sum(self._new_bytes(request) for request in requests)):
            return [self._matcher(request, check) for request in requests]

    def close(self) -> None:
        """End the processes that try guides."""
        if self._compiler is not None:
            self._compiler.close()

    def _new_bytes(self, request: Request) -> int:
        """Return the size of a request's guide if it has to be compiled first, otherwise 0."""
        guide = request.guide
        if guide is None or self._compiler is None or self._compiler.has(guide):
            return 0
        return sys.getsizeof(guide.text)

    @contextmanager
    def _waiting(self, size: int) -> Iterator[None]:
        """Count the bytes of guides that wait. Raises Overloaded if they are too many."""
        with self._lock:
            held = self._waiting_bytes + size
            if size and self._waiting_bytes and held > self._max_waiting_bytes:
                raise Overloaded(
                    f"{self._waiting_bytes} bytes of guides are waiting; the limit is "
                    f"{self._max_waiting_bytes}; try again later"
                )
            self._waiting_bytes = held
        try:
            yield
        finally:
            with self._lock:
                self._waiting_bytes -= size

    def _matcher(self, request: Request, check: Callable[[], None]) -> GuideMatcher | None:
        if request.guide is None or self._compiler is None:
            return None
        try:
            return self._compiler.matcher(request.guide, request.end_ids, check)
        except OSError as error:
            raise Overloaded(
                "the server can't start a process to compile the guide; try again later"
            ) from error
        except GuideUndecided as error:
            raise Overloaded(
                f"the server can't compile the guide: {error}; try again later"
            ) from error
        except GuideError as error:
            for keyword in keywords_of(str(error)):
                self._count_refused(keyword)
            raise GuideRefused(f"input '{TEXT}': {error}") from error


def _compiler(settings: LoopSettings, tokenizer_dir: Path) -> GuideCompiler | None:
    if not settings.max_guide_bytes:
        return None
    check_library()
    from tandem.guides.compiler import GuideCompiler  # noqa: PLC0415  its library may be missing

    return GuideCompiler(tokenizer_dir, settings.target.vocab_size, settings.end_ids)
