"""Compiles the guides that requests contain, and creates their matchers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.bls.errors import GuideRejected, Overloaded
from tandem.bls.inputs import TEXT, TYPE
from tandem.bls.request import Request
from tandem.bls.settings import LoopSettings
from tandem.guides.errors import GuideError, GuideUndecided
from tandem.guides.library import check_library
from tandem.guides.matcher import GuideMatcher
from tandem.guides.rejections import keywords_of

if TYPE_CHECKING:
    from tandem.guides.compiler import GuideCompiler


class RequestGuides:
    """Compiles the guides of requests. Thread-safe.

    Rejects all guides if the profile's `max_guide_bytes` is 0, if this Python lacks the library
    (see `tandem/guides/library.py`), or if the library can't read the tokenizer.

    folder: folder of the Triton model. count_rejected: called with the unsupported keyword of each
    guide that can't be compiled.
    """

    def __init__(
        self, settings: LoopSettings, folder: Path, count_rejected: Callable[[str], None]
    ) -> None:
        self._count_rejected = count_rejected
        self._compiler: GuideCompiler | None = None
        self._missing = ""  # reason for the missing compiler, for error messages
        try:
            self._compiler = _compiler(settings, folder / settings.tokenizer_dir)
        except GuideError as error:
            self._missing = str(error)

    def check(self, requests: Sequence[Request]) -> None:
        """Raise GuideRejected if a request has a guide and there is no compiler."""
        if self._compiler is None and any(request.guide for request in requests):
            raise GuideRejected(
                f"input '{TYPE}' isn't supported by this deployment: {self._missing}"
            )

    def matchers(
        self, requests: Sequence[Request], check: Callable[[], None]
    ) -> list[GuideMatcher | None]:
        """Return a matcher for each request; None for a request without a guide.

        Waits until new guides are compiled. check: called before each compilation; it raises if the
        answer is no longer needed. Raises GuideRejected if a guide can't be compiled, and
        Overloaded if the machine can't test it now.
        """
        return [self._matcher(request, check) for request in requests]

    def close(self) -> None:
        """End the worker processes that test guides."""
        if self._compiler is not None:
            self._compiler.close()

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
                self._count_rejected(keyword)
            raise GuideRejected(f"input '{TEXT}': {error}") from error


def _compiler(settings: LoopSettings, tokenizer_dir: Path) -> GuideCompiler | None:
    if not settings.max_guide_bytes:
        return None
    check_library()
    from tandem.guides.compiler import GuideCompiler  # noqa: PLC0415  its library may be missing

    return GuideCompiler(tokenizer_dir, settings.target.vocab_size, settings.end_ids)
