"""Streams of requests over one engine pair, in virtual time, by the real decoding loop.

Every stream asks again as soon as it is answered. The loop, the drafter and the controller of draft
lengths are the product's own; engines, hops and the clock are modelled:

- A call takes a step for each token that it decodes, and a verification one step that grows with
  the draft. Every other call under way in the same engine makes it longer by ``batch_slope``.
- A call waits for the loop's processor on its way in and out: one for all streams, first come,
  first served. It is what many streams wait for on a small machine.

The texts are drawn once for each stream, so every setting meets the same ones. `benchmarks.auto`
judges the controller by it. `loop_simulation` has the emulated engines themselves, and drafting
ahead, which this one has not.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandem.bls.draft_length.planner import DraftPlanner
from tandem.bls.drafters.factory import drafter_of
from tandem.bls.effects import Chunk, DecodedText, EngineAnswer, EngineCall, TextCall
from tandem.bls.errors import EngineCallError
from tandem.bls.loop import Decoding
from tandem.bls.request import Request
from tandem.bls.settings import AUTO, DrafterName, EngineSettings, LoopSettings
from tandem.engines.capabilities import EMULATED

MAX_DRAFT_LEN = 32
ANSWER_LEN = 300
MAX_COPY_LEN = 10
PROMPT_LEN = 200
WORDS = 10**6  # so many that nothing comes again by chance
COPY_LEN, NEW_LEN = 20, 10  # mean lengths of stretches that are copied from the prompt, and new
STEPS_ALONE = 20
FLOOR = 1e-9  # of a probability, before its logarithm is taken

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
    """What calls of two engines take, in seconds.

    target, draft: a step. hop: on the way of a call, in and out. processor: of the loop's, a call.
    verify_slope: part of a step that each draft token of a verification takes; token_slope: of each
    other verification under way.
    """

    target: float
    draft: float
    verify_slope: float = 0.005
    batch_slope: float = 0.0
    token_slope: float = 0.0
    hop: float = 0.6e-3
    processor: float = 0.2e-3


class AcceptanceModel(NamedTuple):
    """How often the draft is right: alphas[s] in state s, in which a text remains by stay[s].

    edits: an answer repeats stretches of its prompt.
    """

    alphas: tuple[float, ...]
    stay: tuple[float, ...] = (1.0,)
    edits: bool = False

    def text(self, seed: int) -> SimulatedText:
        """Return a text, the same for a seed."""
        return _text(self, seed)


class SimulatedText(NamedTuple):
    """A prompt, what the target says to it, what the draft guesses there and how sure it is."""

    prompt: NDArray[np.int32]  # [PROMPT_LEN]
    answer: NDArray[np.int32]  # [n]
    guesses: NDArray[np.int32]  # [n]
    log_probs: NDArray[np.float32]  # [n]


@lru_cache(maxsize=4096)
def _text(language: AcceptanceModel, seed: int) -> SimulatedText:
    random, length = np.random.default_rng(seed), ANSWER_LEN + MAX_DRAFT_LEN + 1
    prompt = random.integers(2, WORDS, PROMPT_LEN, np.int32)
    answer = random.integers(2, WORDS, length, np.int32)
    if language.edits:
        _copy(prompt, answer, random)
    states, state = [], 0
    for move in random.random(length).tolist():
        state = (state + (move > language.stay[state])) % len(language.alphas)
        states.append(state)
    sure = np.array(language.alphas)[states]
    guesses = np.where(random.random(length) < sure, answer, 0).astype(np.int32)
    return SimulatedText(
        prompt, answer, guesses, np.log(np.maximum(sure, FLOOR)).astype(np.float32)
    )


def _copy(
    prompt: NDArray[np.int32], answer: NDArray[np.int32], random: np.random.Generator
) -> None:
    """Let stretches of an answer be those of the prompt."""
    at = 0
    while at < len(answer):
        at += int(random.geometric(1 / NEW_LEN))
        length = min(int(random.geometric(1 / COPY_LEN)), max(0, len(answer) - at), PROMPT_LEN)
        start = int(random.integers(0, PROMPT_LEN - length + 1))
        answer[at : at + length] = prompt[start : start + length]
        at += length


class Phase(NamedTuple):
    """What streams decode during a period: a text per stream, in turn.

    draft: the draft engine's seconds per token from now on; None: as before.
    """

    streams: int
    seconds: float
    languages: tuple[AcceptanceModel, ...]
    draft: float | None = None


class ClosedLoopResult(NamedTuple):
    """What the streams did."""

    tokens_per_second: float
    mean_draft_len: float  # of rounds with drafts
    tokens_alone: float  # share of those that no draft was asked for


@dataclass
class Fare:
    """What one stream has by now: tokens, and when the first and the last of them came."""

    tokens: int = 0
    num_first: int = 0  # came at once, in calls that began while other streams did
    first: float = 0.0
    last: float = 0.0

    def take(self, tokens: int, now: float) -> None:
        """Note that tokens came."""
        if not self.tokens:
            self.num_first, self.first = tokens, now
        self.tokens += tokens
        self.last = now

    def begin_again(self) -> None:
        """Forget what came; the next tokens are the first."""
        self.tokens = 0

    @property
    def rate(self) -> float:
        """Tokens a second, up to its last ones: what is under way is not counted."""
        return (self.tokens - self.num_first) / max(FLOOR, self.last - self.first)


class Clock:
    """Virtual time: it stands still until the next event."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Have something done when so much time has passed."""
        heapq.heappush(self._events, (self.now + seconds, next(self._order), action))

    def advance(self) -> None:
        """Pass on to the next event."""
        self.now, _, action = heapq.heappop(self._events)
        action()


class SimulatedEngine:
    """Serves calls side by side; how long one takes is decided when it begins."""

    def __init__(self, clock: Clock, step: float, pair: PairTimes) -> None:
        self.step = step
        self._clock = clock
        self._pair = pair
        self._under_way = self._verifying = 0  # calls, and draft tokens in them

    def serve(self, steps: float, draft_tokens: int, then: Callable[[float], None]) -> None:
        """Take so many steps; pass the seconds on."""
        steps *= 1 + self._pair.batch_slope * self._under_way
        seconds = self.step * (steps + self._pair.token_slope * self._verifying)
        self._under_way += 1
        self._verifying += draft_tokens

        def ended() -> None:
            self._under_way -= 1
            self._verifying -= draft_tokens
            then(seconds)

        self._clock.after(seconds, ended)


class Processor:
    """The loop's own: one for all streams."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free_at = 0.0

    def work(self, seconds: float, then: Callable[[], None]) -> None:
        """Work so long when it is free."""
        self._free_at = max(self._clock.now, self._free_at) + seconds
        self._clock.after(self._free_at - self._clock.now, then)


class Healthy:
    """The draft model always answers."""

    available = True

    def failed(self, error: EngineCallError) -> None:
        """Never called."""
        raise error

    def refused(self, error: EngineCallError) -> None:
        """Never called."""
        raise error


# A number: this stream pauses.
Calls: TypeAlias = Generator[tuple[EngineCall, SimulatedText] | int, Any, None]


class World:
    """Both engines, the loop's processor and all streams.

    offset: what the machine's clock shows at the beginning, in seconds. loops: processes that serve
    streams in turn, and learn separately.
    """

    def __init__(
        self,
        pair: PairTimes,
        languages: tuple[AcceptanceModel, ...],
        draft_len: int,
        *,
        drafter: DrafterName = "draft_model",
        rated: bool = True,
        streams_text: bool = False,
        offset: float = 0.0,
        loops: int = 1,
    ) -> None:
        self.clock = Clock()
        self.tokens_alone = self.rounds = self.drafted = 0
        self._fares: dict[int, Fare] = {}
        self._pair = pair
        self._languages = languages
        self._wanted = self._running = 0  # streams
        self._paused: dict[int, Calls] = {}
        self._drafter: DrafterName = drafter
        self._draft_len = draft_len
        self._streams_text = streams_text
        self._processor = Processor(self.clock)
        self._engines = {
            "target": SimulatedEngine(self.clock, pair.target, pair),
            "draft": SimulatedEngine(self.clock, pair.draft, pair),
        }
        self._statistics = [
            DraftPlanner(
                MAX_DRAFT_LEN,
                lambda: self._running,
                clock=lambda: offset + self.clock.now,
                rated=rated,
            )
            for _ in range(loops)
        ]

    def enter(self, phase: Phase) -> None:
        """Begin a phase: streams that are missing start now, others pause after their answers."""
        self._languages = phase.languages
        if phase.draft is not None:
            self._engines["draft"].step = phase.draft
        self._wanted = phase.streams
        for number in range(phase.streams):
            if number not in self._fares or number in self._paused:
                self._running += 1
                self._perform(self._paused.pop(number, None) or self._answers(number), None)

    def stream(self, number: int) -> None:
        """Let one more stream begin."""
        self._wanted = max(self._wanted, number + 1)
        self._running += 1
        self._perform(self._answers(number), None)

    def tokens_of(self, number: int) -> int:
        """Return the tokens of one stream."""
        return self._fares[number].tokens

    def pass_time(self, seconds: float) -> None:
        """Let everything go on for so long."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.advance()

    def begin_counting(self) -> None:
        """Forget all figures; streams go on."""
        self.tokens_alone = self.rounds = self.drafted = 0
        for fare in self._fares.values():
            fare.begin_again()

    @property
    def tokens(self) -> int:
        """Tokens of all streams."""
        return sum(fare.tokens for fare in self._fares.values())

    @property
    def tokens_per_second(self) -> float:
        """Of all streams together."""
        return sum(fare.rate for fare in self._fares.values())

    def _answers(self, number: int) -> Calls:
        """Every engine call of a stream; sent its answer."""
        fare = self._fares[number] = Fare()
        for answer in itertools.count():
            if number >= self._wanted:
                yield number
            language = self._languages[number % len(self._languages)]
            text = language.text(number + 1000 * answer)
            steps = self._decoding(number, text).decode()
            effect = next(steps, None)
            while effect is not None:
                sent: Any = None
                if isinstance(effect, TextCall):
                    sent = DecodedText("")
                elif isinstance(effect, EngineCall):
                    sent = yield effect, text
                elif isinstance(effect, Chunk):
                    fare.take(len(effect.tokens), self.clock.now)
                try:
                    effect = steps.send(sent)
                except StopIteration:
                    effect = None

    def _decoding(self, number: int, text: SimulatedText) -> Decoding:
        request = Request(
            prompt_ids=text.prompt,
            max_tokens=ANSWER_LEN,
            drafter=self._drafter if self._draft_len else "none",
            draft_len=self._draft_len,
            max_draft_len=MAX_DRAFT_LEN,
            prompt_lookup_num_tokens=MAX_COPY_LEN,
            max_matching_ngram_size=3,
            streams_text=self._streams_text,
        )
        drafter = drafter_of(
            request, SETTINGS, Healthy(), self._statistics[number % len(self._statistics)]
        )
        return Decoding(request, SETTINGS, drafter, clock=lambda: self.clock.now)

    def _perform(self, effects: Calls, answer: EngineAnswer | None) -> None:
        """Send an answer, make the call that is asked for next."""
        asked = effects.send(answer)
        if isinstance(asked, int):
            self._running -= 1
            self._paused[asked] = effects
            return
        call, text = asked
        began, half = self.clock.now, self._pair.processor / 2
        tokens, log_probs, steps = self._answer(call, text)

        def arrived() -> None:
            self._engines[call.engine].serve(steps, len(call.draft), served)

        def served(seconds: float) -> None:
            def back() -> None:
                waited = self.clock.now - began
                self._perform(effects, EngineAnswer(tokens, waited, seconds, log_probs=log_probs))

            self.clock.after(self._pair.hop / 2, lambda: self._processor.work(half, back))

        self._processor.work(half, lambda: self.clock.after(self._pair.hop / 2, arrived))

    def _answer(
        self, call: EngineCall, text: SimulatedText
    ) -> tuple[NDArray[np.int32], NDArray[np.float32] | None, float]:
        """What an engine answers: tokens, how likely it finds them, in how many steps."""
        at = len(call.context) - len(text.prompt)
        if call.engine == "draft":
            log_probs = text.log_probs[at : at + call.max_new_tokens]
            unsure = np.exp(np.cumsum(log_probs)) < call.stop_probability
            count = int(unsure.argmax()) + 1 if unsure.any() else len(log_probs)
            self.rounds += 1
            self.drafted += count
            return text.guesses[at : at + count], log_probs[:count], count
        drafted = len(call.draft)
        if not drafted:
            self.tokens_alone += call.max_new_tokens
            return text.answer[at : at + call.max_new_tokens], None, call.max_new_tokens
        wrong = call.draft.tokens != text.answer[at : at + drafted]
        accepted = int(wrong.argmax()) if wrong.any() else drafted
        steps = 1 + self._pair.verify_slope * drafted
        return text.answer[at : at + accepted + 1], None, steps


def run(
    pair: PairTimes,
    languages: AcceptanceModel | tuple[AcceptanceModel, ...],
    *,
    streams: int,
    draft_len: int,
    seconds: float,
    warm_up: float = 0.0,
    steps_alone: int = STEPS_ALONE,
    **options: Any,
) -> ClosedLoopResult:
    """Let streams decode for so long, from a cold start and ``warm_up`` seconds before it counts.

    draft_len: 0 is the target alone. steps_alone: of the target, before all other streams begin:
    a server's first request often is alone. options: see `World`.
    """
    if isinstance(languages, AcceptanceModel):
        languages = (languages,)
    world = World(pair, languages, draft_len, **options)
    world.stream(0)
    for number in range(1, streams):
        world.clock.after(steps_alone * pair.target, partial(world.stream, number))
    while world.clock.now < warm_up:
        world.clock.advance()
    world.begin_counting()
    while world.clock.now < warm_up + seconds:
        world.clock.advance()
    return ClosedLoopResult(
        world.tokens_per_second,
        world.drafted / max(1, world.rounds),
        world.tokens_alone / world.tokens,
    )


def run_phases(
    pair: PairTimes, phases: Sequence[Phase], *, draft_len: int, **options: Any
) -> list[float]:
    """Return tokens per second of all streams in each phase, one after the other."""
    world, rates = World(pair, phases[0].languages, draft_len, **options), []
    for phase in phases:
        before = world.tokens
        world.enter(phase)
        world.pass_time(phase.seconds)
        rates.append((world.tokens - before) / phase.seconds)
    return rates


__all__ = ["AUTO", "AcceptanceModel", "ClosedLoopResult", "PairTimes", "Phase", "run", "run_phases"]
