"""``bls_stream``: the client-facing Triton model that runs the decoding loop.

It returns a stream of chunks or a single answer.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import triton_python_backend_utils as pb_utils

from tandem.bls.admission import (
    Admission,
    ConcurrencyLimiter,
    Permit,
    Reservation,
    blocks_for,
)
from tandem.bls.ahead import AheadPlanner
from tandem.bls.draft_length import DraftPlanner
from tandem.bls.drafters.drafter import DrafterContext
from tandem.bls.drafters.prompt_lookup import manage_pools, pools_of
from tandem.bls.drafters.registry import FOLDER, read_kind, register, with_settings
from tandem.bls.errors import Cancelled, GuideRejected, Overloaded, ServingError
from tandem.bls.inputs import TEXT, TYPE
from tandem.bls.loop import Decoding
from tandem.bls.parser import (
    Prompt,
    build_request,
    check_logits,
    is_stop,
    parse,
    pool_command,
    validate_rows,
)
from tandem.bls.request import Request
from tandem.bls.settings import LoopSettings
from tandem.bls.text import load_decode
from tandem.bls.triton.background import Watcher, log_exception, run_in_background
from tandem.bls.triton.calls import CallSlot
from tandem.bls.triton.client import Deliveries, Sender, id_of, parameters_of, timeout_of
from tandem.bls.triton.engine_calls import DraftEngineHealth, EngineClients, SequenceDraftHealth
from tandem.bls.triton.metrics import Heartbeat, Metrics
from tandem.bls.triton.requests import RequestState, SequenceState, fail_on_error
from tandem.bls.triton.responses import ResponseBuilder, returns_text_lengths, text_response
from tandem.bls.triton.tokenizer_calls import (
    answer_prefixes,
    detokenize,
    needs_tokenizer,
    tokenize,
)
from tandem.contract.entry import can_be_stopped, is_forwarded
from tandem.contract.model_parameters import decode
from tandem.contract.strings import Strings
from tandem.guides.errors import GuideError, GuideUndecided, check_library, keywords_of
from tandem.guides.matcher import GuideMatcher

if TYPE_CHECKING:
    from tandem.bls.drafters.translation import Translator
    from tandem.guides.compiler import GuideCompiler


class RequestGuides:
    """Compiles the guides of requests. Thread-safe.

    Rejects all guides if the profile's `max_guide_bytes` is 0, if this Python lacks the library
    (see `tandem/guides/errors.py`), or if the library can't read the tokenizer.

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
                f"input '{TYPE}' isn't supported by this deployment: {self._missing}", TYPE
            )

    def matcher(self, request: Request, check: Callable[[], None]) -> GuideMatcher | None:
        """Return the matcher for a request; None if it has no guide.

        Waits until a new guide is compiled. check: called before the compilation; it raises if the
        answer is no longer needed. Raises GuideRejected if the guide can't be compiled, and
        Overloaded if the machine can't test it now.
        """
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
            raise GuideRejected(f"input '{TEXT}': {error}", TEXT) from error

    def close(self) -> None:
        """End the worker processes that test guides."""
        if self._compiler is not None:
            self._compiler.close()


def _compiler(settings: LoopSettings, tokenizer_dir: Path) -> GuideCompiler | None:
    if not settings.max_guide_bytes:
        return None
    check_library()
    from tandem.guides.compiler import GuideCompiler  # noqa: PLC0415  its library may be missing

    return GuideCompiler(tokenizer_dir, settings.target.vocab_size, settings.end_ids)


# Maximum number of concurrent tokenizer calls. The tokenizer answers one call at a time,
# so more calls wouldn't be faster. Each call holds a thread of the loop's pool, which engine calls
# and chunks need too.
TOKENIZER_CALLS = 4


class StreamEntry:
    """Triton's model object: the loop. Each prompt has its own thread."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the settings and create the objects that all requests share."""
        pb_utils.deserialize_bytes_tensor = Strings
        model_config = json.loads(args["model_config"])
        _check_instances(args["model_name"], model_config)
        self._settings = settings = decode(LoopSettings, model_config)
        version_folder = Path(args["model_repository"], args["model_version"])
        for module in settings.drafter_modules:
            register(
                with_settings(read_kind(version_folder / FOLDER / module.file), module.settings)
            )
        self._clients = EngineClients(settings, version_folder)
        draft = self._clients.engines.get("draft")
        self._health = DraftEngineHealth(draft, settings.drafter_pause)
        model = args["model_name"]
        self._pools = pools_of(settings, version_folder)
        self._translator = _translator(settings, version_folder)
        self._decode = (
            load_decode(
                version_folder / settings.tokenizer_dir,
                skip_special_tokens=settings.skip_special_tokens,
            )
            if settings.detokenize_in_loop
            else None
        )
        has_pools = self._pools is not None
        self._metrics = Metrics(model, settings.drafters, has_pools=has_pools)
        self._admission = Admission(
            max_running=settings.max_requests,
            max_waiting=settings.max_queue,
            kv_blocks=settings.target.kv_blocks,
            draft_kv_blocks=settings.draft_kv_blocks,
        )
        self._draft_planner = DraftPlanner(
            settings.target.max_draft_len,
            self._admission.load,
            clock=time.monotonic,
            stops_when_unsure=settings.draft_stops_when_unsure,
        )
        self._ahead_planner = AheadPlanner(settings, self._admission.load)
        self._tokenizer_limiter = ConcurrencyLimiter(TOKENIZER_CALLS, settings.max_queue_bytes)
        self._guides = RequestGuides(settings, version_folder, self._metrics.count_rejected_guide)
        self._deliveries = Deliveries()
        self._states: list[tuple[str, RequestState]] = []  # (id, state) of stoppable requests
        self._states_lock = threading.Lock()
        self._watcher = Watcher(Heartbeat(model).beat, self._publish)

    def execute(self, requests: list[Any]) -> None:
        """Accept requests and return immediately. Other threads answer them."""
        for request in requests:
            sender = Sender(
                request,
                decoupled=True,
                with_error_codes=is_forwarded(id_of(request)),
                deliveries=self._deliveries,
            )
            try:
                self._accept(request, sender)
            except ServingError as error:
                sender.send_error(error.line, error.code, error.field)
            except Exception as error:  # noqa: BLE001  the client must get an answer
                log_exception("failed to read a request", error)
                sender.send_error("internal error while reading the request; see the server's log")

    def finalize(self) -> None:
        """Stop all threads and processes that the loop started."""
        self._guides.close()
        self._watcher.stop()

    def _accept(self, request: Any, sender: Sender) -> None:
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        parameters = parameters_of(request)
        rows = validate_rows(inputs, parameters, self._settings)
        if is_stop(rows):
            self._stop(id_of(request), sender)
            return
        if (command := pool_command(rows)) is not None:
            run_in_background(partial(self._manage_pools, command, sender))
            return
        outputs = request.requested_output_names()
        prompts = parse(rows, self._settings, return_text_lengths=returns_text_lengths(outputs))
        options = prompts[0].request
        self._guides.check([prompt.request for prompt in prompts])
        timeout = self._settings.request_timeout
        if client_timeout := timeout_of(request, parameters):
            timeout = min(timeout, client_timeout / 1e6)
        state = RequestState(
            sender,
            ResponseBuilder(outputs, options),
            options,
            deadline=time.monotonic() + timeout,
            timeout=timeout,
            call_slot=CallSlot(self._clients.calls),
            arrivals=self._admission.arrive(len(prompts)),
        )
        self._register(id_of(request), state)
        with fail_on_error(state):
            self._queue(state, prompts)
        self._watcher.add(state)

    def _queue(self, state: RequestState, prompts: list[Prompt]) -> None:
        """Start a request. If it needs the tokenizer, wait for a permit first without blocking."""

        def begin(permit: Permit | None = None) -> None:
            def abort(error: ServingError) -> None:
                if permit is not None:
                    permit.release_unused()
                state.fail(error)

            run_in_background(partial(self._prepare, state, prompts, permit), abort)

        if any(needs_tokenizer(prompt, state.options) for prompt in prompts):
            size = sum(prompt.num_bytes for prompt in prompts)
            state.permit = self._tokenizer_limiter.acquire(begin, size)
        else:
            begin()

    def _prepare(self, state: RequestState, prompts: list[Prompt], permit: Permit | None) -> None:
        """Tokenize a request's prompts, compile its guides, and queue its sequences."""
        with fail_on_error(state):
            try:
                tokens = tokenize(prompts, self._settings, state.call_slot)
                prefixes = answer_prefixes(
                    prompts,
                    state.options,
                    self._decode
                    or partial(detokenize, settings=self._settings, call_slot=state.call_slot),
                )
            finally:
                if permit is not None:
                    permit.release()
            check_logits(
                [len(t.prompt_ids) for t in tokens],
                [p.request.max_tokens for p in prompts],
                state.options,
                self._settings,
            )
            requests = [
                build_request(prompt, its_tokens, self._settings)
                for prompt, its_tokens in zip(prompts, tokens, strict=True)
            ]
            matchers = [self._guides.matcher(r, state.raise_if_failed) for r in requests]
            sequences = [
                self._sequence(state, index, *parts)
                for index, parts in enumerate(zip(requests, matchers, prefixes, strict=True))
            ]
            state.open(sequences)
            state.arrivals.enter([sequence.reservation for sequence in sequences])

    def _sequence(
        self,
        state: RequestState,
        index: int,
        request: Request,
        matcher: GuideMatcher | None,
        prefix: str,
    ) -> SequenceState:
        blocks = blocks_for(request, self._settings)
        reservation = Reservation(*blocks, priority=request.priority)
        context = DrafterContext(
            self._settings,
            SequenceDraftHealth(reservation, self._health),
            self._draft_planner,
            self._ahead_planner,
            self._pools,
            self._translator,
            self._admission.load,
        )
        decoding = Decoding(request, context, matcher)
        return SequenceState(
            index,
            decoding,
            prefix,
            state,
            metrics=self._metrics,
            admission=self._admission,
            reservation=reservation,
            clients=self._clients,
            decode=self._decode,
        )

    def _register(self, request_id: str, state: RequestState) -> None:
        """Remember a request so that a later ``stop`` can find it."""
        with self._states_lock:
            self._states = [(name, known) for name, known in self._states if not known.closed]
            if can_be_stopped(request_id):
                self._states.append((request_id, state))

    def _stop(self, request_id: str, sender: Sender) -> None:
        """Cancel the requests with this id."""
        if can_be_stopped(request_id):
            for name, state in self._states:
                if name == request_id:
                    state.fail(Cancelled())
        sender.close()

    def _manage_pools(self, command: str, sender: Sender) -> None:
        try:
            sender.send(text_response(manage_pools(self._pools, command)), final=True)
        except ServingError as error:
            sender.send_error(error.line, error.code, error.field)

    def _publish(self) -> None:
        engines = self._clients.engines.values()
        none_abandoned = {engine.settings.model: 0 for engine in engines}
        self._metrics.publish(
            running=self._admission.running,
            waiting=self._admission.waiting,
            kv_reserved=self._admission.kv_reserved,
            pool_tokens=self._pools.num_tokens if self._pools else 0,
            oldest_delivery=self._deliveries.oldest_seconds,
            abandoned={**none_abandoned, **self._clients.calls.abandoned},
        )


def _check_instances(name: str, model_config: dict[str, Any]) -> None:
    """Raise ValueError for several instances. Each would use all of the engines' KV caches."""
    count = sum(group["count"] for group in model_config.get("instance_group", []))
    if count > 1:
        raise ValueError(
            f"config.pbtxt of '{name}': instance_group starts {count} loops; set its count to 1"
        )


def _translator(settings: LoopSettings, folder: Path) -> Translator | None:
    draft_tokenizer = settings.draft_tokenizer
    if draft_tokenizer is None:
        return None
    from tandem.bls.drafters.translation import Translator  # noqa: PLC0415  its library is large

    return Translator(
        folder / settings.tokenizer_dir, folder / draft_tokenizer.folder, draft_tokenizer.end_ids
    )
