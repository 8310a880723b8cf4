"""Simulates one stream in virtual time, for tests of the draft-length controller.

Some tokens of the text are easy to draft and others are hard. `closed_loop` simulates many streams.
"""

from dataclasses import dataclass, field

import numpy as np
from scripted import SETTINGS, Health, ids, play, with_engines

from tandem.bls.draft_length.planner import DraftPlanner
from tandem.bls.drafters.drafter import DrafterContext
from tandem.bls.drafters.factory import drafter_of
from tandem.bls.effects import EngineAnswer
from tandem.bls.loop import Decoding
from tandem.bls.request import Request
from tandem.bls.settings import AUTO

ORCHESTRATION = 0.5e-3  # seconds per call
LENGTH = 4_000


@dataclass(frozen=True)
class Times:
    """The timing of a pair of engines.

    target, draft: seconds per step. verify_slope: increase of a target step per draft token.
    """

    target: float
    verify_slope: float
    draft: float


@dataclass
class Text:
    """A text. agrees: whether the draft's guess is right. sure: the draft's confidence."""

    agrees: np.ndarray  # [length] bool
    sure: np.ndarray  # [length]

    @classmethod
    def of(cls, alphas, stay, seed=0, length=LENGTH + 64):
        """Generate a text with a Markov chain over states.

        alphas, stay: for each state, the probability that the draft agrees, and the probability of
        staying in the state.
        """
        random = np.random.default_rng(seed)
        states, state = np.empty(length, int), 0
        for at in range(length):
            if random.random() > stay[state]:
                state = (state + 1) % len(alphas)
            states[at] = state
        sure = np.array(alphas)[states]
        return cls(random.random(length) < sure, sure)


@dataclass
class World:
    """Both engines and the clock. seconds: virtual time. drafted: length of each draft."""

    text: Text
    times: Times
    seconds: float = 0.0
    drafted: list[int] = field(default_factory=list)

    def draft(self, call):
        new, rated, chance = [], [], 1.0
        for at in range(len(call.context), len(call.context) + call.max_new_tokens):
            new.append(1 if self.text.agrees[at] else 0)
            rated.append(self.text.sure[at])
            chance *= self.text.sure[at]
            if chance < call.stop_probability:
                break
        self.drafted.append(len(new))
        log_probs = (
            np.log(np.maximum(rated, 1e-9), dtype=np.float32) if call.wants_log_probs else None
        )
        return self._answer(new, len(new) * self.times.draft, log_probs)

    def target(self, call):
        if not len(call.draft):
            seconds = call.max_new_tokens * self.times.target
            return self._answer([1] * call.max_new_tokens, seconds)
        accepted = next((n for n, t in enumerate(call.draft.tokens) if t != 1), len(call.draft))
        verify = self.times.target * (1 + self.times.verify_slope * len(call.draft))
        return self._answer([1] * (accepted + 1), verify)

    def answers(self, call):
        yield self.draft(call) if call.engine == "draft" else self.target(call)

    def _answer(self, tokens, seconds, log_probs=None):
        seconds += ORCHESTRATION
        self.seconds += seconds
        return EngineAnswer(ids(*tokens), seconds, seconds, log_probs=log_probs)


def tokens_per_second(world, draft_len, *, rated=True, max_draft_len=16):
    """Decode one long answer in virtual time, and return tokens per second.

    draft_len: draft tokens per round; 0 for the target alone.
    """
    settings = with_engines(SETTINGS, target={"max_seq_len": 10**6}, draft={"max_seq_len": 10**6})
    request = Request(
        prompt_ids=ids(1),
        max_tokens=LENGTH,
        drafter="draft_model" if draft_len else "none",
        draft_len=draft_len,
        max_draft_len=max_draft_len,
    )
    draft_planner = DraftPlanner(max_draft_len, clock=lambda: world.seconds, rated=rated)
    drafter = drafter_of(request, DrafterContext(settings, Health(), draft_planner))
    decoding = Decoding(request, settings, drafter, clock=lambda: world.seconds)
    play(decoding, world, world)
    assert decoding.sequence.output.tolist() == [1] * LENGTH
    return LENGTH / world.seconds


def auto(text, times, **options):
    return tokens_per_second(World(text, times), AUTO, **options)


def best_fixed(text, times, lengths=range(1, 17)):
    return max(tokens_per_second(World(text, times), n) for n in lengths)
