"""``bls_stream``: the entry that holds the loop. Text in, chunks (or one answer) out."""

from __future__ import annotations

import json
import secrets
import threading
import time
from typing import Any

from bls.admission import Admission
from bls.draft_length import Experience
from bls.drafters import drafter_of
from bls.drafters.draft_model import DrafterHealth
from bls.errors import BadRequest, Cancelled, TandemError
from bls.loop import Decoding
from bls.lossless import lossless
from bls.request import Request, Sampling
from bls.settings import LoopSettings
from bls.triton import request_ids
from bls.triton.answers import Answers
from bls.triton.awaited import Lost, Wait
from bls.triton.background import in_background, log_exception
from bls.triton.driver import Driver
from bls.triton.health import DraftHealth, NoDraftEngine
from bls.triton.job import Job, Lane
from bls.triton.metrics import Heartbeat, Metrics
from bls.triton.reader import Options, Prompt, Reader
from bls.triton.sender import Sender
from bls.triton.tokenizers import Tokens, tokens_of, tokens_request
from bls.triton.watcher import Watcher
from contract import entry as tensors
from contract.parameters import decode


class StreamEntry:
    """Triton's model object. One instance serves all requests, a thread for each prompt."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the settings and get everything that requests share."""
        settings = decode(LoopSettings, json.loads(args["model_config"]))
        self._settings = settings
        self._driver = Driver(settings)
        self._health: DrafterHealth = self._draft_health()
        self._experience = Experience(
            settings.max_draft_len, rated=settings.draft_stops_when_unsure
        )
        self._metrics = Metrics(args["model_name"], settings.drafters)
        self._admission = Admission(
            max_running=settings.max_requests,
            max_waiting=settings.max_queue,
            kv_blocks=settings.kv_tokens // settings.kv_block_tokens,
        )
        self._jobs: dict[str, Job] = {}
        self._jobs_lock = threading.Lock()
        self._watcher = Watcher(Heartbeat(args["model_name"]).beat, self._publish)

    def execute(self, requests: list[Any]) -> None:
        """Take requests in and return at once; answers follow from other threads."""
        for request in requests:
            sender = Sender(
                request,
                decoupled=True,
                codes_errors=request_ids.is_forwarded(request.request_id()),
            )
            try:
                self._take(request, sender)
            except TandemError as error:
                sender.refuse(str(error), error.code)
            except Exception as error:  # noqa: BLE001  the client must not wait for ever
                log_exception("a request could not be read", error)
                sender.refuse("internal error while reading the request; see the server's log")

    def finalize(self) -> None:
        """End what the instance started."""
        self._watcher.stop()

    def _draft_health(self) -> DrafterHealth:
        if "draft" not in self._driver.engines:
            return NoDraftEngine()
        return DraftHealth(
            self._driver.engines["draft"], self._driver.calls, self._settings.drafter_pause
        )

    def _take(self, request: Any, sender: Sender) -> None:
        reader = Reader(request.inputs(), request.parameters())
        if reader.is_stop:
            self._stop(request.request_id(), sender)
            return
        options = reader.options(self._settings)
        prompts = reader.prompts(self._settings)
        timeout = self._settings.request_timeout
        if request.timeout():
            timeout = min(timeout, request.timeout() / 1e6)
        job = Job(
            sender,
            Answers(request.requested_output_names(), options),
            options,
            deadline=time.monotonic() + timeout,
            timeout=timeout,
            wait=Wait(self._driver.lost),
        )
        self._remember(request.request_id(), job)
        self._watcher.add(job)
        in_background(lambda: self._begin(job, prompts))

    def _begin(self, job: Job, prompts: list[Prompt]) -> None:
        """Tokenize a request's prompts and queue them."""
        try:
            lanes = self._lanes(job, prompts)
            job.open([lane for lane, _ in lanes])
            self._admission.enter(
                [lane.ticket(self._admission, blocks, self._driver) for lane, blocks in lanes]
            )
        except (Lost, Cancelled):
            return
        except TandemError as error:
            job.fail(error)
        except Exception as error:  # noqa: BLE001  the client must not wait for ever
            log_exception("a request could not be started", error)
            job.fail(TandemError("internal error while starting the request"))

    def _lanes(self, job: Job, prompts: list[Prompt]) -> list[tuple[Lane, int]]:
        """Return each prompt's lane and the KV blocks that it may come to need."""
        lanes = []
        for index, (prompt, tokens) in enumerate(
            zip(prompts, self._tokens(job, prompts), strict=True)
        ):
            request = self._request(prompt, tokens, job.options)
            prefix = "" if job.options.exclude_input_in_output else prompt.words.text
            drafter = drafter_of(request, self._settings, self._health, self._experience)
            decoding = Decoding(request, self._settings, drafter)
            lane = Lane(index, decoding, prefix, job, self._metrics)
            lanes.append((lane, self._blocks(request)))
        return lanes

    def _tokens(self, job: Job, prompts: list[Prompt]) -> list[Tokens]:
        words = [prompt.words for prompt in prompts]
        given = [Tokens(p.input_ids) for p in prompts if p.input_ids is not None]
        if len(given) == len(prompts) and not any(map(any, words)):
            return given  # there is no word to tokenize
        model = self._settings.preprocessing_model
        call = job.wait.begin(model, "", self._settings.target_timeout)
        try:
            response = self._driver.calls.once(model, tokens_request(model, words))
        finally:
            job.wait.end(call)
        return [
            tokens if prompt.input_ids is None else tokens._replace(prompt_ids=prompt.input_ids)
            for prompt, tokens in zip(prompts, tokens_of(response, words), strict=True)
        ]

    def _request(self, prompt: Prompt, tokens: Tokens, options: Options) -> Request:
        self._check_length(len(tokens.prompt_ids), prompt.max_tokens)
        end_ids = self._settings.end_ids
        if prompt.end_id is not None:
            end_ids = () if prompt.end_id < 0 else (prompt.end_id,)
        request = Request(
            prompt_ids=tokens.prompt_ids,
            max_tokens=prompt.max_tokens,
            min_tokens=prompt.min_tokens,
            sampling=Sampling(
                temperature=prompt.temperature,
                top_k=prompt.top_k,
                top_p=prompt.top_p,
                seed=secrets.randbits(63) if prompt.seed is None else prompt.seed,
                repetition_penalty=prompt.repetition_penalty,
                presence_penalty=prompt.presence_penalty,
                frequency_penalty=prompt.frequency_penalty,
                bad_words=tokens.bad_words,
                embedding_bias=tokens.embedding_bias,
            ),
            end_ids=end_ids,
            stop_strings=prompt.stop_words,
            **prompt.drafting._asdict(),
            max_draft_len=self._settings.max_draft_len,
            streams_text=options.stream,
            wants_log_probs=prompt.return_log_probs,
            wants_context_logits=prompt.return_context_logits,
            wants_generation_logits=prompt.return_generation_logits,
            wants_kv_blocks=options.return_perf_metrics,
        )
        return lossless(request, self._settings)

    def _check_length(self, prompt_length: int, max_tokens: int) -> None:
        """Engines cut what is too long in silence; so it is refused at the door."""
        settings = self._settings
        room = settings.max_seq_len - settings.max_draft_len
        if prompt_length < 1:
            raise BadRequest(f"input '{tensors.TEXT_INPUT}' gives no tokens; send some text")
        if prompt_length + max_tokens > room:
            raise BadRequest(
                f"input '{tensors.MAX_TOKENS}': {prompt_length} prompt tokens and {max_tokens} new "
                f"ones exceed {room}, which is max_seq_len {settings.max_seq_len} less room for "
                f"{settings.max_draft_len} draft tokens"
            )

    def _blocks(self, request: Request) -> int:
        tokens = len(request.prompt_ids) + request.max_tokens + request.longest_draft
        return -(-tokens // self._settings.kv_block_tokens)

    def _remember(self, request_id: str, job: Job) -> None:
        """Make a forwarded request known to the ``stop`` that may follow it."""
        with self._jobs_lock:
            self._jobs = {name: j for name, j in self._jobs.items() if not j.closed}
            if request_ids.is_forwarded(request_id):
                self._jobs[request_id] = job

    def _stop(self, request_id: str, sender: Sender) -> None:
        job = self._jobs.get(request_id)
        if job is not None:
            job.fail(Cancelled())
        sender.close()

    def _publish(self) -> None:
        none_lost = {engine.model: 0 for engine in self._driver.engines.values()}
        self._metrics.publish(
            running=self._admission.running,
            waiting=self._admission.waiting,
            kv_reserved=self._admission.kv_reserved,
            lost={**none_lost, **self._driver.lost.by_model},
        )
