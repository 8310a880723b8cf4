"""Sends prompts to a server. The variants alternate, so that noise affects all equally."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

from tandem.bls.drafters import registry
from tandem.bls.drafters.registry import DRAFTERS, DrafterKind, DrafterName
from tandem.contract import entry as tensors
from tandem.contract.model_parameters import encode
from tandem.tools.benchmark.report import Measurement
from tandem.tools.benchmark.variant import BASELINE, Scenario, Variant
from tandem.tools.client.answer import Answer, Answers
from tandem.tools.client.client import MODEL, Client, Inputs, inputs_for
from tandem.tools.errors import TandemError
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.triton.server import TritonServer, serving, status_line


@dataclass(frozen=True)
class MeasuredServer:
    """A server, the entry to call, the drafters that requests can choose, and limits in tokens.

    name: HOST:PORT of a running server's gRPC endpoint, or the name of the deployment to serve.
    """

    name: str
    entry: str
    drafters: Mapping[DrafterName, DrafterKind]
    default_drafter: DrafterName
    max_draft_len: int
    context: int
    deployment: Deployment | None = None

    def check_drafter(self, name: DrafterName) -> None:
        """Raise TandemError if requests can't choose this drafter."""
        if name not in self.drafters:
            raise TandemError(
                f"--drafter must be one of {', '.join(self.drafters)} for {self.name}; got {name}"
            )

    def check_baseline(self) -> None:
        """Raise TandemError if requests can't turn drafts off."""
        if registry.BASELINE.name not in self.drafters:
            raise TandemError(
                "the target drafts inside the engine, so there is no baseline to compare with; "
                "serve a second target without it, and measure each --url"
            )

    @contextmanager
    def running(self) -> Iterator[str]:
        """Yield HOST:PORT of the gRPC endpoint. Serve the deployment until the context ends."""
        if self.deployment is None:
            yield self.name
            return
        with serving(self.deployment) as server:
            warm_up(server, self.deployment)
            yield server.grpc_url


WARM_UP_SECONDS, WARM_UP_TOKENS = 3.0, 12  # at most; for each fixed draft length
WARM_UP_LENGTHS = (2, 4, 8)
WARM_UP_TEXT = "Once upon a time, a fisherman and his daughter lived in a small house by the sea.\n"
AUTO_TOKENS = 32  # about as many as the first measurement of `auto` takes


def warm_up(server: TritonServer, deployment: Deployment) -> None:
    """Send a few requests to a new server, because the first calls of engines are slow.

    The last two use the server's draft length, so `auto` measures its costs: of the draft model,
    and of copies, because the last prompt repeats itself. A failure is ignored, because the first
    request of a user reports it.
    """
    end, entry = time.monotonic() + WARM_UP_SECONDS, deployment.stream_entry.name
    longest = deployment.loop_settings().target.max_draft_len
    variants: list[Inputs] = [
        {tensors.NUM_DRAFT_TOKENS: n} for n in WARM_UP_LENGTHS if n <= longest
    ]
    variants.append(BASELINE.inputs)
    requests = [inputs_for(WARM_UP_TEXT, WARM_UP_TOKENS, variant) for variant in variants]
    requests += [inputs_for(text, AUTO_TOKENS, {}) for text in (WARM_UP_TEXT, 3 * WARM_UP_TEXT)]
    with status_line("warming up"), suppress(TandemError), Client(server.grpc_url) as client:
        for inputs in requests:
            with closing(client.stream(entry, inputs)) as chunks:
                if any(time.monotonic() > end for _ in chunks):
                    return


def measured_server(
    deployment: Deployment | None, url: str | None = None, entry: str | None = None
) -> MeasuredServer:
    """Return the server to measure: the deployment, or the running server at ``url``.

    entry: the entry to call; only with ``url`` (default: MODEL). Raises TandemError.
    """
    kinds: Mapping[DrafterName, DrafterKind] = DRAFTERS
    if deployment:
        name, entry = deployment.profile.name, deployment.stream_entry.name
        kinds = deployment.drafter_kinds
        parameters: Mapping[str, str] = encode(deployment.loop_settings())
    else:
        assert url
        name = url
        with Client(url) as client:
            entry, _, parameters = client.entry(entry or MODEL)
    try:
        limits = json.loads(parameters["target"])
        return MeasuredServer(
            name=name,
            entry=entry,
            drafters={
                # A running server reports only the names of its custom drafters.
                drafter: kinds.get(drafter)
                or DrafterKind(name=drafter, description="the deployment's", module="")
                for drafter in json.loads(parameters["drafters"])
            },
            default_drafter=parameters["drafter"],
            max_draft_len=limits["max_draft_len"],
            context=limits["max_seq_len"] - limits["max_draft_len"],
            deployment=deployment,
        )
    except KeyError as error:
        raise TandemError(
            f"entry '{entry}' at {url} isn't one of Tandem's: it has no parameter "
            f"{error}; set --model to one that is"
        ) from error


PRIMING_TOKENS = 2  # the fewest output tokens for which the draft model reads the prompt
T = TypeVar("T")


@dataclass(frozen=True)
class LoadPlan:
    """The plan of a benchmark run.

    concurrencies: numbers of concurrent streams. repetitions: measured requests per prompt.
    streamed: streamed requests per prompt. more: inputs to add to every request. prompts_each: the
    maximum number of prompts that each of several concurrent streams sends (None: all).
    """

    scenarios: Sequence[Scenario]
    variants: Sequence[Variant]
    concurrencies: Sequence[int]
    max_tokens: int
    repetitions: int
    streamed: int
    more: Inputs
    prompts_each: int | None = None

    @property
    def num_answers(self) -> int:
        prompts = [len(scenario.prompts) for scenario in self.scenarios]
        turns = self.repetitions + self.streamed
        asked = sum(c * self.prompts_per_stream(n, c) for n in prompts for c in self.concurrencies)
        return len(self.variants) * (sum(prompts) + turns * asked)

    def prompts_per_stream(self, prompts: int, concurrency: int) -> int:
        """Return how many of the prompts each stream sends; a single stream sends all."""
        return prompts if concurrency == 1 else min(prompts, self.prompts_each or prompts)


class LoadGenerator(AbstractContextManager["LoadGenerator"]):
    """Runs a load plan, with one connection per concurrent stream.

    on_answer: called after each answer with its variant, in the thread of the stream.
    """

    def __init__(
        self,
        url: str,
        entry: str,
        plan: LoadPlan,
        on_answer: Callable[[Variant], None] = lambda _: None,
    ) -> None:
        self._entry = entry
        self._plan = plan
        self._on_answer = on_answer
        self._open = ExitStack()
        self._ending = threading.Event()  # if set, threads stop their requests and send no others
        max_concurrency = max(plan.concurrencies)
        self._clients = [
            self._open.enter_context(Client(url, self._ending)) for _ in range(max_concurrency)
        ]
        self._threads = self._open.enter_context(ThreadPoolExecutor(max_concurrency))

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._open.close()

    def measurements(self) -> list[Measurement]:
        """Run the whole plan; raise TandemError if the server rejects a request."""
        return [row for scenario in self._plan.scenarios for row in self._measure(scenario)]

    def _measure(self, scenario: Scenario) -> list[Measurement]:
        plan = self._plan
        self._prime(scenario)
        measurements: dict[tuple[int, Variant], Measurement] = {}
        baseline_first = sorted(plan.variants, key=lambda variant: not variant.is_baseline)
        for concurrency, variant in product(plan.concurrencies, baseline_first):
            measurements[concurrency, variant] = Measurement(
                scenario.name,
                concurrency,
                variant,
                baseline=measurements.get((concurrency, BASELINE)),
                alone=measurements.get((1, variant)),
            )
        for number in range(plan.repetitions + plan.streamed):
            stream = number >= plan.repetitions
            for concurrency in plan.concurrencies:
                for variant, repetition in self._repetition(
                    scenario, concurrency, number, stream=stream
                ):
                    measurement = measurements[concurrency, variant]
                    (measurement.streamed if stream else measurement.whole).append(repetition)
        return [*measurements.values()]

    def _prime(self, scenario: Scenario) -> None:
        """Send each prompt once, so that the KV caches contain it for every measured request.

        If `auto` chooses the length, the answer to the last prompt is a whole one, so that `auto`
        has measured the costs of a warm server before the first measured request.
        """
        clients = len(self._clients)

        def prime(number: int) -> None:
            prompts = scenario.prompts[number::clients]
            for prompt, variant in product(prompts, self._plan.variants):
                is_whole = variant.learns and prompt is scenario.prompts[-1]
                max_tokens = self._plan.max_tokens
                if not is_whole:
                    max_tokens = min(PRIMING_TOKENS, max_tokens)
                if not self._ending.is_set():
                    self._ask(self._clients[number], variant, prompt, max_tokens, stream=False)

        list(self._threads.map(prime, range(clients)))

    def _repetition(
        self, scenario: Scenario, concurrency: int, number: int, *, stream: bool
    ) -> Iterator[tuple[Variant, Answers]]:
        """Send all prompts once with every variant.

        A single stream sends each prompt with every variant before the next prompt. Several streams
        send all their prompts with one variant before the next variant. If they switched variants
        after each prompt, all streams would wait for its longest answer.
        """
        variants = self._plan.variants
        if concurrency > 1:
            for variant in _rotate(variants, number):
                yield variant, self._run_streams(scenario, variant, concurrency, stream=stream)
            return
        answers: dict[Variant, list[Answer]] = {variant: [] for variant in variants}
        for prompt in range(len(scenario.prompts)):
            for variant in _rotate(variants, number + prompt):
                answers[variant] += self._run_stream(0, scenario, variant, [prompt], stream=stream)
        for variant in variants:
            yield variant, Answers(answers[variant])

    def _run_streams(
        self, scenario: Scenario, variant: Variant, concurrency: int, *, stream: bool
    ) -> Answers:
        """Run concurrent streams, each of which starts at a different prompt."""
        prompts = range(len(scenario.prompts))
        each = self._plan.prompts_per_stream(len(prompts), concurrency)
        apart = 1 if each == len(prompts) else each

        def ask(number: int) -> tuple[list[Answer], float, float]:
            own = _rotate(prompts, number * apart)[:each]
            began = time.perf_counter()
            answers = self._run_stream(number, scenario, variant, own, stream=stream)
            return answers, began, time.perf_counter()

        done = [*self._threads.map(ask, range(concurrency))]
        began, ended = min(began for _, began, _ in done), max(ended for *_, ended in done)
        return Answers([answer for answers, *_ in done for answer in answers], ended - began)

    def _run_stream(
        self, client: int, scenario: Scenario, variant: Variant, prompts: list[int], *, stream: bool
    ) -> list[Answer]:
        """Send prompts over one connection. prompts: their numbers in the scenario."""
        max_tokens, answers = self._plan.max_tokens, []
        for number in prompts:
            if self._ending.is_set():
                break
            prompt = scenario.prompts[number]
            answer = self._ask(self._clients[client], variant, prompt, max_tokens, stream=stream)
            answer.prompt = number
            answers.append(answer)
        return answers

    def _ask(
        self, client: Client, variant: Variant, prompt: Inputs, max_tokens: int, *, stream: bool
    ) -> Answer:
        more = {**self._plan.more, **variant.inputs}
        inputs = inputs_for(prompt, max_tokens, more, stream=stream)
        try:
            answer = client.answer(self._entry, inputs)
        except TandemError:
            self._ending.set()
            raise
        self._on_answer(variant)
        return answer


def _rotate(items: Sequence[T], by: int) -> list[T]:
    """Return the items in the same cyclic order, starting at index ``by`` modulo the length."""
    start = by % len(items)
    return [*items[start:], *items[:start]]
