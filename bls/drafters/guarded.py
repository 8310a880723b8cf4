"""Creates the drafter for a request, and isolates a custom one.

Errors of a custom drafter disable drafting for a request, but never fail it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tandem.bls.drafters.drafter import Drafter, DrafterContext, NoDrafter
from tandem.bls.drafters.hybrid import without_draft_model
from tandem.bls.drafters.registry import (
    BASELINE,
    BUILT_IN,
    COPIED_FROM,
    DRAFTERS,
    DrafterKind,
    described,
)
from tandem.bls.errors import (
    Abandoned,
    Cancelled,
    EngineCallError,
    Interrupted,
    RejectedByEngine,
    ServingError,
)
from tandem.bls.ports import NO_DRAFT, Draft, EngineCall, EngineResult, Engines
from tandem.bls.request import Request
from tandem.bls.sequence import Sequence
from tandem.bls.statistics import Statistics


def drafter_of(request: Request, context: DrafterContext, statistics: Statistics) -> Drafter:
    """Return the drafter that a request selects. statistics: of the request."""
    kind = request.drafter_kind
    context = context._replace(own=kind.settings)
    if kind.name in BUILT_IN:
        drafter = kind.make(request, context)
    else:
        drafter = GuardedDrafter(kind, request, context, statistics)
    if kind.samples_from_draft_model or not kind.drafts_in_loop:
        return drafter
    return without_draft_model(drafter, request, context)


Result = TypeVar("Result")
DRAFT = "draft"  # the only engine that a drafter may call


class DrafterFailed(Exception):
    """A custom drafter raised, or proposed a draft that the target can't verify."""


class DraftModelPaused(Exception):
    """The draft model may not be called now."""


class CheckedEngines(NamedTuple):
    """The engines of a custom drafter, which may only call the draft model."""

    drafter: GuardedDrafter
    engines: Engines

    def call(self, call: EngineCall) -> EngineResult:
        return self.engines.call(self.drafter.checked_call(call))

    def call_ahead(self, call: EngineCall) -> None:
        """Start nothing, because a custom drafter doesn't draft ahead."""

    def stop_ahead(self) -> None:
        """Do nothing."""


class GuardedDrafter(Drafter):
    """Forwards all calls to a custom drafter, and checks its proposals.

    If the drafter raises or proposes a draft that the target can't verify, the error is logged on
    one line, and the target decodes the rest of the request alone. Other requests aren't affected.

    statistics: of the request; counts the drafter's own failures. The loop counts failed engine
    calls.
    """

    def __init__(
        self,
        kind: DrafterKind,
        request: Request,
        context: DrafterContext,
        statistics: Statistics,
    ) -> None:
        self._kind = kind
        self._statistics = statistics
        self._vocab_size = context.settings.target.vocab_size
        self._health = context.health
        alone = context._replace(ahead_planner=None)  # a custom drafter doesn't draft ahead
        no_drafter: Drafter = NoDrafter()
        self._drafter = self._call(lambda: kind.make(request, alone), no_drafter)

    def can_draft(self, sequence: Sequence) -> bool:
        return self._call(lambda: bool(self._drafter.can_draft(sequence)), default=False)

    def propose(self, sequence: Sequence, limit: int, engines: Engines) -> Draft:
        """Return the drafter's proposal, or an empty draft if the target can't verify it.

        If the draft model may not be called, the proposal ends with an empty draft.
        """
        try:
            with self._convert_errors():
                draft = self._drafter.propose(sequence, limit, CheckedEngines(self, engines))
                return self._checked(draft, sequence, limit)
        except DraftModelPaused:
            return NO_DRAFT
        except DrafterFailed as error:
            self._give_up(error)
            return NO_DRAFT

    def verified(self, draft: Draft, num_accepted: int, seconds: float) -> None:
        self._call(lambda: self._drafter.verified(draft, num_accepted, seconds), None)

    def observe_plain_call(self, num_tokens: int, seconds: float) -> None:
        self._call(lambda: self._drafter.observe_plain_call(num_tokens, seconds), None)

    def failed(self, error: EngineCallError) -> None:
        if isinstance(error, RejectedByEngine):
            self._health.rejected(error)
        else:
            self._health.failed(error)
        self._call(lambda: self._drafter.failed(error), None)

    def completed(self, sequence: Sequence) -> None:
        self._call(lambda: self._drafter.completed(sequence), None)

    def _call(self, method: Callable[[], Result], default: Result) -> Result:
        """Return the result of ``method``, or ``default`` if it raises."""
        try:
            with self._convert_errors():
                return method()
        except DrafterFailed as error:
            self._give_up(error)
            return default

    def _give_up(self, error: DrafterFailed) -> None:
        self._statistics.num_drafter_failures += 1
        self._drafter = NoDrafter()
        self._health.rejected(error)

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Convert errors raised by the drafter's code into DrafterFailed."""
        try:
            yield
        except (DrafterFailed, DraftModelPaused, ServingError, Cancelled, Abandoned, Interrupted):
            raise
        except BaseException as error:  # a panic in a Rust library isn't an Exception
            raise self._failure(described(error)) from error

    def checked_call(self, call: Any) -> EngineCall:
        """Return a valid draft engine call; raise DrafterFailed for anything else."""
        if not self._kind.samples_from_draft_model:
            raise self._failure("it calls an engine; set samples_from_draft_model in its DRAFTER")
        if not isinstance(call, EngineCall):
            what = type(call).__name__
            raise self._failure(f"it may only make calls to the draft model; got {what}")
        if call.engine != DRAFT:
            raise self._failure(f"it may only call the {DRAFT} engine; got {call.engine}")
        if not self._health.available:
            raise DraftModelPaused
        if not (_is_row(call.context) and isinstance(call.max_new_tokens, int)):
            raise self._failure(
                "its call's context must be a 1-D array of ids, and its max_new_tokens an int"
            )
        if not 0 <= call.seed < 2**64:
            raise self._failure(f"its call's seed must be between 0 and 2^64-1; got {call.seed}")
        if not 0 < call.max_new_tokens < 2**31:
            raise self._failure(
                f"its call's max_new_tokens must be between 1 and 2^31-1; got {call.max_new_tokens}"
            )
        if len(call.context) and not 0 <= call.context.min() <= call.context.max() < 2**31:
            raise self._failure("the context ids of its engine call must be between 0 and 2^31-1")
        return call._replace(
            context=call.context.astype(np.int32, copy=False),
            seed=int(call.seed),
            end_id=None if call.end_id is None else int(call.end_id),
            stop_ids=tuple(int(token) for token in call.stop_ids),
        )

    def _checked(self, draft: Draft, sequence: Sequence, limit: int) -> Draft:
        """Return the draft, labeled with the name of a known drafter.

        A draft without logits is truncated after its first end-of-sequence token.

        Raises DrafterFailed if the target can't verify it.
        """
        if not isinstance(draft, Draft):
            raise self._failure(f"it must return a Draft; got {type(draft).__name__}")
        fields = (draft.logits, draft.plan, draft.result)
        uses_draft_model = any(value is not None for value in fields)
        if uses_draft_model and not self._kind.samples_from_draft_model:
            raise self._failure(
                "its draft sets logits, plan or result; set samples_from_draft_model in its DRAFTER"
            )
        if not (isinstance(draft.plain_tokens, int) and draft.plain_tokens >= 0):
            raise self._failure("its draft's plain_tokens must be an int of at least 0")
        if len(draft) > limit:
            raise self._failure(f"its draft has {len(draft)} tokens; the limit is {limit}")
        if not len(draft):
            return draft
        tokens = np.asarray(draft.tokens)
        if not _is_row(tokens):
            raise self._failure("its draft token ids must be a 1-D array of ints")
        if not ((tokens >= 0) & (tokens < self._vocab_size)).all():
            raise self._failure(f"its draft token ids must be between 0 and {self._vocab_size - 1}")
        tokens = tokens.astype(np.int32)
        if draft.logits is None:
            tokens = sequence.up_to_end(tokens)
        known = draft.drafter in {*DRAFTERS, *COPIED_FROM} and draft.drafter != BASELINE.name
        return replace(
            draft,
            tokens=tokens,
            drafter=draft.drafter if known else self._kind.name,
            num_branches=0,
            drafted_ahead=False,
            seconds_saved=0.0,
        )

    def _failure(self, what: str) -> DrafterFailed:
        return DrafterFailed(f"drafter '{self._kind.name}' failed: {what}")


def _is_row(tokens: Any) -> bool:
    return (
        isinstance(tokens, np.ndarray)
        and tokens.ndim == 1
        and np.issubdtype(tokens.dtype, np.integer)
    )
