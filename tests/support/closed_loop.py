"""Simulates streams of requests to one pair of engines in virtual time.

Each stream sends its next request as soon as the previous one is answered. The decoding loop, the
drafters and their controllers are the real ones. Engines, messages and the clock are modeled:

- A call takes one step per token that it decodes. A verification takes one step, which grows with
  the draft. All calls of an engine share its steps: a call waits until the running step ends. Every
  call after the first makes a step longer by ``batch_slope``.
- A draft call that drafts ahead computes all its branches in parallel.
- Each call needs the loop's processor before and after the engine. All streams share this
  processor and use it in the order of their calls. On a small machine with many streams, most of
  the time is spent waiting for the processor.

The texts depend only on the language and the stream, so they are the same for every setting.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from greenlet import getcurrent, greenlet
from numpy.typing import NDArray

from tandem.bls.ahead import AheadPlanner
from tandem.bls.draft_length import DraftPlanner
from tandem.bls.drafters.drafter import DrafterContext
from tandem.bls.loop import Decoding
from tandem.bls.ports import (
    BranchDraft,
    Branching,
    Chunk,
    DecodedText,
    EngineCall,
    EngineResult,
)
from tandem.bls.request import Request
from tandem.bls.settings import DrafterName, EngineSettings, LoopSettings
from tandem.bls.statistics import Statistics
from tandem.engines.kinds import EMULATED

MAX_DRAFT_LEN = 32
ANSWER_LEN = 300
MAX_COPY_LEN = 10
PROMPT_LEN = 200
WORDS = 10**6  # size of the vocabulary, large enough that no token repeats by chance
NEW_LEN = 10  # mean tokens between match stretches
STEPS_ALONE = 20
FLOOR = 1e-9  # lower bound for divisors and arguments of logarithms
# The exponent r: if the draft's first guess is wrong, the right token is among its next F guesses
# with probability 1 - (F + 1)^-r. The emulated engines use the same formula.
ALTERNATIVES_EXPONENT = 0.67

TARGET = EngineSettings(
    model="target",
    vocab_size=WORDS,
    max_seq_len=10**6,
    kv_cache_tokens=10**9,
    kv_block_tokens=32,
    timeout=60.0,
    max_draft_len=MAX_DRAFT_LEN,
    capabilities=EMULATED,
)
SETTINGS = LoopSettings(
    target=TARGET,
    draft=replace(TARGET, model="draft"),
    preprocessing_model="",
    postprocessing_model="",
)


@dataclass(frozen=True)
class PairTimes:
    """Timing of two engines and of the loop.

    target, draft: seconds per step. verify_slope, batch_slope, branch_slope: relative slowdown of a
    step per draft token, per call after the first, and per branch after the first. hop: message
    time per call, in seconds. processor: time of the loop's processor per call, in seconds.
    """

    target: float
    draft: float
    verify_slope: float = 0.005
    batch_slope: float = 0.0
    branch_slope: float = 0.003
    hop: float = 0.6e-3
    processor: float = 0.2e-3


class AcceptanceModel(NamedTuple):
    """A language whose states determine how well the draft predicts the text.

    alphas: probability that a draft token is accepted, per state. stay: probability of staying in
    each state. copy_len: mean length of the stretches match from the prompt; 0: no copies.
    """

    alphas: tuple[float, ...]
    stay: tuple[float, ...] = (1.0,)
    copy_len: int = 0


class SimulatedText(NamedTuple):
    """A prompt, the target's answer, and the draft's guess at each position of the answer."""

    prompt: NDArray[np.int32]  # [PROMPT_LEN]
    answer: NDArray[np.int32]  # [n]
    guesses: NDArray[np.int32]  # [n]
    log_probs: NDArray[np.float32]  # [n], the draft's log-probability of its guess
    ranks: NDArray[np.int64]  # [n], rank of the right token among the draft's guesses; 0: first


@lru_cache(maxsize=4096)
def text_of(language: AcceptanceModel, seed: int) -> SimulatedText:
    """Return the random text of a language for a seed."""
    random, length = np.random.default_rng(seed), ANSWER_LEN + MAX_DRAFT_LEN + 1
    prompt = random.integers(2, WORDS, PROMPT_LEN, np.int32)
    answer = random.integers(2, WORDS, length, np.int32)
    if language.copy_len:
        _copy_stretches(prompt, answer, language.copy_len, random)
    states, state = [], 0
    for move in random.random(length).tolist():
        state = (state + (move > language.stay[state])) % len(language.alphas)
        states.append(state)
    sure = np.array(language.alphas)[states]
    right = random.random(length) < sure
    ranks = (1 - random.random(length)) ** (-1 / ALTERNATIVES_EXPONENT)
    return SimulatedText(
        prompt,
        answer,
        np.where(right, answer, 0).astype(np.int32),
        np.log(np.maximum(sure, FLOOR)).astype(np.float32),
        np.where(right, 0, np.minimum(ranks, WORDS)).astype(np.int64),
    )


def _copy_stretches(
    prompt: NDArray[np.int32],
    answer: NDArray[np.int32],
    copy_len: int,
    random: np.random.Generator,
) -> None:
    at = 0
    while at < len(answer):
        at += int(random.geometric(1 / NEW_LEN))
        length = min(int(random.geometric(1 / copy_len)), max(0, len(answer) - at), PROMPT_LEN)
        start = int(random.integers(0, PROMPT_LEN - length + 1))
        answer[at : at + length] = prompt[start : start + length]
        at += length


class Phase(NamedTuple):
    """A period with constant load.

    streams: number of streams. seconds: duration. languages: stream i uses languages[i %
    len(languages)]. draft: seconds per step of the draft engine from this phase on; None:
    unchanged.
    """

    streams: int
    seconds: float
    languages: tuple[AcceptanceModel, ...]
    draft: float | None = None


@dataclass
class TokenCount:
    """The token count of one stream, and the times of its first and last chunk."""

    tokens: int = 0
    num_first: int = 0  # tokens of the first chunk, whose call began before counting
    first: float = 0.0
    last: float = 0.0

    def add(self, tokens: int, now: float) -> None:
        if not self.tokens:
            self.num_first, self.first = tokens, now
        self.tokens += tokens
        self.last = now

    @property
    def rate(self) -> float:
        """Tokens per second between the first and the last chunk."""
        return (self.tokens - self.num_first) / max(FLOOR, self.last - self.first)


class Clock:
    """A virtual clock, which jumps from event to event."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), action))

    def advance(self) -> None:
        self.now, _, action = heapq.heappop(self._events)
        action()


@dataclass(eq=False)
class SimulatedCall:
    """A call of a `SimulatedEngine`. slope: how much longer it makes each of its steps."""

    steps_left: int
    slope: float
    began: float
    then: Callable[[float], None]


class SimulatedEngine:
    """An engine whose steps serve all calls together. A call joins when the running step ends."""

    def __init__(self, clock: Clock, step: float, pair: PairTimes) -> None:
        self.step = step
        self._clock = clock
        self._pair = pair
        self._calls: list[SimulatedCall] = []
        self._runs = False  # whether a step is under way

    def serve(self, steps: int, slope: float, then: Callable[[float], None]) -> Callable[[], None]:
        """Serve a call, then call ``then`` with its duration in seconds.

        Returns a function that ends the call early.
        """
        call = SimulatedCall(steps, slope, self._clock.now, then)
        self._calls.append(call)
        if not self._runs:
            self._begin_step()
        return lambda: self._end(call)

    def _begin_step(self) -> None:
        batch = list(self._calls)
        self._runs = bool(batch)
        if batch:
            slope = self._pair.batch_slope * (len(batch) - 1) + sum(call.slope for call in batch)
            self._clock.after(self.step * (1 + slope), partial(self._end_step, batch))

    def _end_step(self, batch: list[SimulatedCall]) -> None:
        for call in batch:
            call.steps_left -= 1
            if call.steps_left <= 0:
                self._end(call)
        self._begin_step()

    def _end(self, call: SimulatedCall) -> None:
        if call in self._calls:
            self._calls.remove(call)
            call.then(self._clock.now - call.began)


class Processor:
    """The loop's processor, which all streams share."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free_at = 0.0

    def work(self, seconds: float, then: Callable[[], None]) -> None:
        """Occupy the processor for ``seconds`` as soon as it is free, then call ``then``."""
        self._free_at = max(self._clock.now, self._free_at) + seconds
        self._clock.after(self._free_at - self._clock.now, then)


class Healthy:
    """A health check that always reports the draft engine as available."""

    available = True

    def failed(self, error: Exception, without: str = "") -> None:
        """Raise the error, because simulated calls never fail."""
        raise error

    rejected = failed


class AheadCall(Future[EngineResult]):
    """A call that drafts ahead in virtual time. stop: ends it early. wake: called at its end."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.stopped = False
        self.stop: Callable[[], None] = lambda: None
        self._world = world

    def result(self, timeout: float | None = None) -> EngineResult:
        if not self.done():
            self._world.wait_for(self, timeout or 0.0)
        return super().result(0)

    def give_up(self) -> None:
        if not self.done():
            self.stopped = True
            self.stop()


class Stream(greenlet):
    """The requests of one stream, which run as plain code in a greenlet. The `Ports` of its loop.

    It switches to the world (its parent) to wait, and the world switches back.
    """

    def __init__(self, world: World, number: int) -> None:
        super().__init__(self._answers)
        self._world = world
        self._number = number
        self._ahead: AheadCall | None = None

    def reserve(self, _: int) -> bool:
        return True

    def call(self, call: EngineCall) -> EngineResult:
        self._world.call(call, self._text, self.switch)
        result: EngineResult = self.parent.switch()
        return result

    def call_ahead(self, call: EngineCall) -> AheadCall | None:
        if self._ahead is not None and not self._ahead.done():
            self._ahead.give_up()
        self._ahead = ahead = AheadCall(self._world)
        self._world.call(call, self._text, ahead.set_result, ahead)
        return ahead

    def stop_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.give_up()

    def decode(self, *_: Any, **__: Any) -> DecodedText:
        return DecodedText("")

    def send(self, chunk: Chunk) -> None:
        self._world.count(self._number, len(chunk.tokens))

    def _answers(self) -> None:
        for answer in itertools.count():
            if self._world.pauses(self._number, self):
                self.parent.switch()
            decoding, self._text = self._world.request(self._number, answer)
            decoding.run(self)
            self._world.add(decoding.statistics)


class World:
    """A simulation: both engines, the loop's processor and all streams.

    draft_len: draft tokens per round; 0 for the target alone. draft_ahead: the request option; with
    None, the loop decides. stops_when_unsure: whether the draft engine returns probabilities.
    seed: selects the texts.
    """

    def __init__(
        self,
        pair: PairTimes,
        draft_len: int,
        *,
        drafter: DrafterName = "draft_model",
        draft_ahead: bool | None = False,
        stops_when_unsure: bool = True,
        streams_text: bool = False,
        seed: int = 0,
        settings: LoopSettings = SETTINGS,
    ) -> None:
        self.clock = Clock()
        self.rounds = self.hits = 0  # hits: rounds that used a draft from drafting ahead
        self._pair = pair
        self._settings = settings
        self._request = Request(
            prompt_ids=np.empty(0, np.int32),
            max_tokens=ANSWER_LEN,
            drafter=drafter if draft_len else "none",
            draft_len=draft_len,
            draft_ahead=draft_ahead,
            max_draft_len=MAX_DRAFT_LEN,
            prompt_lookup_num_tokens=MAX_COPY_LEN,
            max_matching_ngram_size=3,
            stream=streams_text,
        )
        self._languages: tuple[AcceptanceModel, ...] = ()
        self._counts: dict[int, TokenCount] = {}  # by stream
        self._wanted = self._running = 0  # number of streams
        self._paused: dict[int, Stream] = {}
        self._processor = Processor(self.clock)
        self._engines = {
            "target": SimulatedEngine(self.clock, pair.target, pair),
            "draft": SimulatedEngine(self.clock, pair.draft, pair),
        }
        self._seed = seed
        self._planner = DraftPlanner(
            MAX_DRAFT_LEN,
            lambda: self._running,
            clock=lambda: self.clock.now,
            stops_when_unsure=stops_when_unsure,
        )
        self._ahead_planner = AheadPlanner(settings, lambda: self._running)

    def enter(self, phase: Phase) -> None:
        """Begin a phase. New streams start now. Surplus streams end after their current answers."""
        self._languages = phase.languages
        if phase.draft is not None:
            self._engines["draft"].step = phase.draft
        self._wanted = phase.streams
        for number in range(phase.streams):
            if number not in self._counts or number in self._paused:
                self._running += 1
                paused = self._paused.pop(number) if number in self._paused else None
                (paused or Stream(self, number)).switch()

    def pause(self, seconds: float, period: Callable[[], float]) -> None:
        """Pause the loop's processor again and again, as a busy host does.

        seconds: duration of a pause. period: returns the seconds until the next pause begins.
        """

        def pause() -> None:
            self._processor.work(seconds, lambda: None)
            self.clock.after(period(), pause)

        self.clock.after(period(), pause)

    def pass_time(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.advance()

    def begin_counting(self) -> None:
        """Reset all counters without stopping the streams."""
        self.rounds = self.hits = 0
        for count in self._counts.values():
            count.tokens = 0

    def tokens_of(self, number: int) -> int:
        """Return the number of tokens that a stream has generated since `begin_counting`."""
        return self._counts[number].tokens

    @property
    def tokens(self) -> int:
        return sum(count.tokens for count in self._counts.values())

    @property
    def tokens_per_second(self) -> float:
        """Total tokens per second of all streams."""
        return sum(count.rate for count in self._counts.values())

    def pauses(self, number: int, stream: Stream) -> bool:
        """Return whether a stream sends no requests until a later phase needs it."""
        self._counts.setdefault(number, TokenCount())
        if number < self._wanted:
            return False
        self._running -= 1
        self._paused[number] = stream
        return True

    def request(self, number: int, answer: int) -> tuple[Decoding, SimulatedText]:
        """Return the next request of a stream, and its text."""
        language = self._languages[number % len(self._languages)]
        text = text_of(language, number + 1000 * answer + 10**6 * self._seed)
        request = replace(self._request, prompt_ids=text.prompt)
        context = DrafterContext(self._settings, Healthy(), self._planner, self._ahead_planner)
        return Decoding(request, context, clock=lambda: self.clock.now), text

    def add(self, statistics: Statistics) -> None:
        self.rounds += statistics.num_rounds
        self.hits += statistics.ahead.num_hits

    def count(self, number: int, tokens: int) -> None:
        self._counts[number].add(tokens, self.clock.now)

    def wait_for(self, ahead: AheadCall, timeout: float) -> None:
        """Block the current stream until a call ends, or raise TimeoutError."""
        stream, waiting = getcurrent(), True

        def wake() -> None:
            nonlocal waiting
            if waiting:
                waiting = False
                stream.switch()

        ahead.add_done_callback(lambda _: wake())
        self.clock.after(timeout, wake)
        stream.parent.switch()
        if not ahead.done():
            raise TimeoutError

    def call(
        self,
        call: EngineCall,
        text: SimulatedText,
        then: Callable[[EngineResult], Any],
        ahead: AheadCall | None = None,
    ) -> None:
        """Serve an engine call in virtual time."""
        began, half = self.clock.now, self._pair.processor / 2
        answer, steps, slope = self._answer(call, text)

        def arrived() -> None:
            if ahead is not None and ahead.stopped:
                served(0.0)
            else:
                stop = self._engines[call.engine].serve(steps, slope, served)
                if ahead is not None:
                    ahead.stop = stop

        def served(seconds: float) -> None:
            stopped = ahead is not None and ahead.stopped
            came = answer._replace(branches=()) if stopped else answer

            def back() -> None:
                then(came._replace(seconds=self.clock.now - began, engine_seconds=seconds))

            self.clock.after(self._pair.hop / 2, lambda: self._processor.work(half, back))

        self._processor.work(half, lambda: self.clock.after(self._pair.hop / 2, arrived))

    def _answer(self, call: EngineCall, text: SimulatedText) -> tuple[EngineResult, int, float]:
        """Return an engine's answer without times, its steps, and how much longer it makes them."""
        at = len(call.context) - len(text.prompt)
        drafted = len(call.draft)
        wrong = call.draft.tokens != text.answer[at : at + drafted]
        accepted = int(wrong.argmax()) if wrong.any() else drafted
        if call.branching is not None:
            branches = _branches(call.branching, text, at, accepted)
            slope = self._pair.branch_slope * max(drafted, len(branches) - 1)
            result = EngineResult(np.empty(0, np.int32), branches=branches)
            return result, 1 + max(call.branching.lengths), slope
        if call.engine == "draft":
            log_probs = text.log_probs[at : at + call.max_new_tokens]
            unsure = np.exp(np.cumsum(log_probs)) < call.stop_probability
            count = int(unsure.argmax()) + 1 if unsure.any() else len(log_probs)
            returned = log_probs[:count] if call.wants_log_probs else None
            return EngineResult(text.guesses[at : at + count], log_probs=returned), count, 0.0
        if not drafted:
            answer = EngineResult(text.answer[at : at + call.max_new_tokens])
            return answer, call.max_new_tokens, 0.0
        result = EngineResult(text.answer[at : at + accepted + 1])
        return result, 1, self._pair.verify_slope * drafted


def _branches(
    branching: Branching, text: SimulatedText, at: int, accepted: int
) -> tuple[BranchDraft, ...]:
    """Return the branches of a call. At most one branch matches the text.

    at: position of the first draft token in the answer. accepted: number of correct draft tokens.
    """
    truth = at + accepted
    rank = int(text.ranks[truth])
    if accepted < len(branching.counts) - 1:
        rank -= 1  # the rejected token was the draft's first guess
    branches = []
    for num_accepted, (count, length) in enumerate(
        zip(branching.counts, branching.lengths, strict=True)
    ):
        for place in range(count):
            if (num_accepted, place) == (accepted, rank):
                tokens = text.guesses[truth + 1 : truth + 1 + length]
                branches.append(BranchDraft(num_accepted, int(text.answer[truth]), tokens))
            else:
                nothing = np.zeros(length, np.int32)
                branches.append(BranchDraft(num_accepted, -1 - place, nothing))
    return tuple(branches)


def run(
    pair: PairTimes,
    languages: tuple[AcceptanceModel, ...],
    *,
    streams: int,
    draft_len: int,
    seconds: float,
    warm_up: float = 0.0,
    steps_alone: int = STEPS_ALONE,
    **options: Any,
) -> World:
    """Simulate streams from a cold start, measure for ``seconds``, and return the world."""
    world = World(pair, draft_len, **options)
    world.enter(Phase(1, 0, languages))
    if streams > 1:
        everybody = partial(world.enter, Phase(streams, 0, languages))
        world.clock.after(steps_alone * pair.target, everybody)
    world.pass_time(warm_up)
    world.begin_counting()
    world.pass_time(warm_up + seconds - world.clock.now)
    return world


def run_phases(
    pair: PairTimes, phases: Sequence[Phase], *, draft_len: int, **options: Any
) -> list[float]:
    """Simulate the phases in order; return the total tokens per second of each phase."""
    world, rates = World(pair, draft_len, **options), []
    for phase in phases:
        before = world.tokens
        world.enter(phase)
        world.pass_time(phase.seconds)
        rates.append((world.tokens - before) / phase.seconds)
    return rates
