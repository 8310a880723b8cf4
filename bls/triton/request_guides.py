"""The guides of requests: whether this process can compile them, and their matchers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.bls.errors import GuideRefused, Overloaded
from tandem.bls.guide_inputs import TEXT, TYPE
from tandem.bls.request import Request
from tandem.bls.settings import LoopSettings
from tandem.guides.errors import GuideError, GuideTakesLong, GuideUndecided
from tandem.guides.library import check_library
from tandem.guides.matcher import GuideMatcher
from tandem.guides.refusals import keywords_of
from tandem.guides.trial import LAST_ATTEMPT

if TYPE_CHECKING:
    from tandem.guides.compiler import GuideCompiler


class RequestGuides:
    """Has the guides of requests compiled; refuses those that nobody here can. Thread-safe.

    Nobody can where a profile's `max_guide_bytes` is 0, without the library in this Python (see
    `guides/library.py`), and with a tokenizer that it cannot read. folder: of the model.
    count_refused: is told the keywords of each guide that could not be compiled.
    """

    def __init__(
        self, settings: LoopSettings, folder: Path, count_refused: Callable[[str], None]
    ) -> None:
        self._count_refused = count_refused
        self._compiler: GuideCompiler | None = None
        self._missing = ""  # why there is none
        try:
            self._compiler = _compiler(settings, folder / settings.tokenizer_dir)
        except GuideError as error:
            self._missing = str(error)

    def check(self, requests: Sequence[Request]) -> None:
        """Refuse guides where none can be compiled."""
        if self._compiler is None and any(request.guide for request in requests):
            raise GuideRefused(
                f"input '{TYPE}' is not supported by this deployment: {self._missing}"
            )

    def has_all(self, requests: Sequence[Request]) -> bool:
        """Whether nothing has to be compiled for these."""
        guides = {request.guide for request in requests if request.guide is not None}
        return all(self._compiler is not None and self._compiler.has(guide) for guide in guides)

    def matcher(self, request: Request, attempt: int = LAST_ATTEMPT) -> GuideMatcher | None:
        """Return the matcher of a request's answer, if it has a guide.

        Raises GuideRefused, or Overloaded where the machine had no means to try it; GuideTakesLong
        where a later attempt may be enough.
        """
        if request.guide is None or self._compiler is None:
            return None
        try:
            return self._compiler.matcher(request.guide, request.end_ids, attempt=attempt)
        except OSError as error:
            raise Overloaded(
                "the server can start no process to try a new guide in; try again later"
            ) from error
        except GuideTakesLong:
            raise
        except GuideUndecided as error:
            raise Overloaded(
                f"the server could not try a new guide: {error}; try again later"
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
