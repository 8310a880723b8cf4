"""Clients that send requests one after the other, and counts of the outcomes."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.soak.asking import BASELINE, NO_ANSWER, STREAM, SoakOutcome, SoakRequest, ask
from benchmarks.soak.questions import Question
from tandem.bls.drafters import registry as drafter_registry
from tandem.contract import entry as tensors

ENTRIES = (STREAM, STREAM, "bls", BASELINE)
IN_LOOP = [row.name for row in drafter_registry.DRAFTERS.values() if not row.in_engine]
DRAFTERS = (None, None, *IN_LOOP)
DRAFT_LENGTHS = (None, 1, 4, 8, 16, -1)
SHARE_LEAVING = 1 / 3
SHARE_INVALID, SHARE_HURRIED = 0.05, 0.05
LONGEST_STAY = 0.6  # maximum seconds after which a client disconnects early

# Invalid requests, and the start of each one's error line.
INVALID: tuple[tuple[dict[str, Any], str], ...] = (
    ({tensors.MAX_TOKENS: 0}, "input 'max_tokens'"),
    ({tensors.TOP_P: 7.0}, "input 'top_p'"),
    ({tensors.TEMPERATURE: float("nan")}, "input 'temperature'"),
    ({tensors.DRAFTER: "oracle"}, "input 'drafter'"),
    ({tensors.MAX_TOKENS: 500}, "input 'max_tokens'"),
    ({tensors.BEAM_WIDTH: 4}, "input 'beam_width'"),
    ({tensors.LORA_TASK_ID: 3}, "input 'lora_task_id'"),
)
MAX_EXAMPLES = 10

Explains = Callable[[str, float, float], bool]


class SoakOutcomes:
    """Counts of outcomes, with the first few bad outcomes as examples. Thread-safe."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: list[str] = []
        self._lock = threading.Lock()

    def add(self, kind: str, example: str = "") -> None:
        with self._lock:
            self.counts[kind] += 1
            if example and len(self.examples) < MAX_EXAMPLES:
                self.examples.append(f"{kind}: {example}")


class Clients:
    """Many clients of one server.

    explains: returns whether an injected fault explains an error; gets the error line and the
    monotonic times at which its request began and ended.
    """

    def __init__(
        self, url: str, questions: Sequence[Question], outcomes: SoakOutcomes, explains: Explains
    ) -> None:
        self._url = url
        self._questions = questions
        self._outcomes = outcomes
        self._explains = explains

    def run(self, clients: int, seconds: float) -> None:
        end = time.monotonic() + seconds
        with ThreadPoolExecutor(clients) as threads:
            for done in [threads.submit(self._client, seed, end) for seed in range(clients)]:
                done.result()

    def _client(self, seed: int, end: float) -> None:
        rng = random.Random(seed)
        while time.monotonic() < end:
            question = rng.choice(self._questions)
            chance = rng.random()
            if chance < SHARE_INVALID:
                self._ask_invalid(question, *rng.choice(INVALID))
            else:
                hurried = chance < SHARE_INVALID + SHARE_HURRIED
                self._ask(question, _request(rng, question, hurried=hurried))

    def _ask_invalid(self, question: Question, wrong: dict[str, Any], line: str) -> None:
        values = {**question.values, **wrong}
        outcome = ask(self._url, SoakRequest(STREAM, question.prompts, values))
        if outcome.error.startswith(line):
            self._outcomes.add("rejected")
        else:
            self._judge_error(question, outcome)

    def _ask(self, question: Question, request: SoakRequest) -> None:
        outcome = ask(self._url, request)
        if outcome.error:
            if request.timeout and "exceeded its timeout" in outcome.error:
                self._outcomes.add("timed out")
            else:
                self._judge_error(question, outcome)
            return
        kind = "cancelled" if outcome.left else "finished"
        if _right(question, outcome):
            self._outcomes.add(kind)
        else:
            got = f"{request.values} of {question.prompts} -> {outcome.texts}"
            self._outcomes.add("wrong", f"{got}, the baseline has {question.answers}")

    def _judge_error(self, question: Question, outcome: SoakOutcome) -> None:
        if outcome.error == NO_ANSWER:
            self._outcomes.add("unanswered", str(question.inputs))
        elif self._explains(outcome.error, outcome.began, outcome.ended):
            self._outcomes.add("failed by a fault")
        else:
            self._outcomes.add("unexplained", outcome.error or "an answer to a bad request")


def _right(question: Question, outcome: SoakOutcome) -> bool:
    """Return whether an answer equals the baseline's, or is a prefix if the client left early."""
    if not outcome.left:
        return outcome.texts == question.answers
    return all(
        answer.startswith(text)
        for text, answer in zip(outcome.texts, question.answers, strict=False)
    )


def _request(rng: random.Random, question: Question, *, hurried: bool) -> SoakRequest:
    entry = rng.choice(ENTRIES)
    values = dict(question.values)
    if entry != BASELINE:
        values |= _drafting(rng, question)
    stay = rng.random() * LONGEST_STAY if rng.random() < SHARE_LEAVING else None
    timeout = rng.randrange(1, 400_000) if hurried else 0
    return SoakRequest(entry, question.prompts, values, timeout, stay)


def _drafting(rng: random.Random, question: Question) -> dict[str, Any]:
    """Choose a drafter and draft length, which must not change the answers."""
    values: dict[str, Any] = {}
    drafter, length = rng.choice(DRAFTERS), rng.choice(DRAFT_LENGTHS)
    if drafter is not None:
        values[tensors.DRAFTER] = drafter
    if length is not None:
        values[tensors.NUM_DRAFT_TOKENS] = length
    if (
        drafter in (drafter_registry.DRAFT_MODEL.name, drafter_registry.HYBRID.name)
        and rng.random() < 0.5
    ):
        values[tensors.DRAFT_AHEAD] = "true"
    if drafter == drafter_registry.DRAFT_MODEL.name and question.greedy and rng.random() < 0.5:
        values[tensors.USE_DRAFT_LOGITS] = True
    return values
