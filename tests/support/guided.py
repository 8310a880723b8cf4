"""Engines for tests of guided decoding, which sample from rows of probabilities with masks."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scripted import SETTINGS, Health, ids, said, with_engines
from small_guides import END, OTHER_END, matcher, vocab_size

from tandem.bls.draft_length import DraftPlanner
from tandem.bls.drafters.drafter import DrafterContext
from tandem.bls.errors import EngineCallError
from tandem.bls.guidance import guide_method
from tandem.bls.loop import Decoding
from tandem.bls.ports import EngineCall, EngineResult
from tandem.bls.request import Request

ENDS = (END, OTHER_END)
WIDTH = vocab_size()
WIDE = with_engines(SETTINGS, target={"vocab_size": WIDTH}, draft={"vocab_size": WIDTH})
# Settings for the two ways to enforce a guide: by masks, and by repair.
MASKS = WIDE
REPAIR = with_engines(WIDE, target={"masks_tokens": False})
UNKEYED = with_engines(REPAIR, target={"keyed_randomness": False})


def bits(mask) -> np.ndarray:
    """Return a boolean array [WIDTH] with the ids that a mask allows."""
    unpacked = np.unpackbits(mask.view(np.uint8), bitorder="little", count=WIDTH)
    return unpacked.astype(bool)


def masked(row, mask):
    """Return the renormalized probabilities of the tokens that a mask allows."""
    kept = np.where(bits(mask), row, 0.0) if mask is not None else row
    return kept / kept.sum()


@dataclass(frozen=True)
class Rows:
    """Next-token probabilities that depend only on the last three tokens and the length.

    favours: tokens that are more likely than others, so that answers end. by: value that is added
    to the logits of these tokens.
    """

    salt: int = 0
    favours: tuple[int, ...] = ()
    by: float = 4.0

    def row(self, context, sampling, banned=()) -> np.ndarray:
        seed = hash((self.salt, len(context), tuple(int(t) for t in context[-3:]))) & 0xFFFFFFFF
        logits = np.random.default_rng(seed).normal(0, 2, WIDTH)
        logits[list(self.favours)] += self.by
        logits[list(banned)] = -np.inf
        return np.exp(logits / sampling.temperature)


@dataclass
class KeyedEngine:
    """An engine that samples with noise from seed and position, and applies the masks of a call."""

    rows: Rows
    request: Request
    calls: list[EngineCall] = field(default_factory=list)

    def token(self, call, context, mask) -> int:
        banned = ENDS if call.ban_end_ids else ()
        row = self.rows.row(context, self.request.sampling, banned)
        row = np.where(bits(mask), row, 0.0) if mask is not None else row
        assert row.any(), "everything is forbidden"
        if self.request.sampling.greedy:
            return int(row.argmax())
        if self.request.sampling.top_k:
            row = np.where(row >= np.sort(row)[-self.request.sampling.top_k], row, 0.0)
        noise = np.random.default_rng([call.seed, len(context)]).exponential(size=WIDTH)
        return int((row / noise).argmax())

    def answers(self, call: EngineCall):
        self.calls.append(call)
        draft, masks = call.draft.tokens.tolist(), call.token_masks
        count = len(draft) + 1 if draft else call.max_new_tokens
        assert masks is None or len(masks) >= count

        def token(context, at):
            return self.token(call, context, None if masks is None else masks[at])

        yield said(call, draft, token)


@dataclass
class Guesser:
    """A draft engine that knows the answer. A script makes it right, wrong, or fail (None)."""

    answer: list[int]
    prompt_length: int
    script: tuple[bool | None, ...] = (True,)
    drafted: int = 0

    def answers(self, call: EngineCall):
        at, new = len(call.context) - self.prompt_length, []
        for token in (*self.answer[at:], *[5] * call.max_new_tokens)[: call.max_new_tokens]:
            right = self.script[self.drafted % len(self.script)]
            self.drafted += 1
            if right is None:
                raise EngineCallError("draft", "scripted failure")
            new.append(token if right else (token + 7) % WIDTH)
        yield EngineResult(ids(*new))


def decoding_of(request, settings):
    statistics = DraftPlanner(
        settings.target.max_draft_len, clock=lambda: 0.0, stops_when_unsure=False
    )
    guide = matcher(request.guide.kind, request.guide.text, request.end_ids)
    return Decoding(request, DrafterContext(settings, Health(), statistics), guide)


def expected(request, settings, rows: Rows) -> tuple[list[int], str]:
    """Return the tokens and finish reason of an answer decoded with one masked call per token."""
    engine, guide = (
        KeyedEngine(rows, request),
        matcher(request.guide.kind, request.guide.text, request.end_ids),
    )
    new: list[int] = []
    assert guide_method(request, settings)
    while len(new) < request.max_tokens and not guide.complete:
        context = [*request.prompt_ids.tolist(), *new]
        below_min = len(new) < request.min_tokens
        mask = guide.walk([], may_end=not below_min).masks[0]
        call = EngineCall("target", ids(*context), 1, request.sampling.seed, ban_end_ids=below_min)
        token = engine.token(call, context, mask)
        if token in request.end_ids:
            return new, "stop"
        guide.advance([token])
        new.append(token)
    return new, "stop" if guide.complete else "length"


@dataclass
class Chooser:
    """Replaces random choices with scripted choices, and records their probabilities."""

    script: tuple[int, ...]
    trace: list[np.ndarray] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    probability: float = 1.0

    def choose(self, probabilities) -> int:
        at = len(self.made)
        possible = np.flatnonzero(probabilities > 0)
        chosen = self.script[at] if at < len(self.script) else int(possible[0])
        self.trace.append(possible)
        self.made.append(chosen)
        self.probability *= float(probabilities[chosen])
        return chosen


def distribution(run: Callable[[Chooser], tuple]) -> dict[Any, float]:
    """Try all sequences of choices, and return the exact probability of each outcome of ``run``."""
    found: defaultdict[Any, float] = defaultdict(float)
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        chooser = Chooser(scripts.pop())
        outcome = run(chooser)
        found[outcome] += chooser.probability
        for at in range(len(chooser.script), len(chooser.made)):
            prefix = tuple(chooser.made[:at])
            scripts += [(*prefix, int(other)) for other in chooser.trace[at][1:]]
    return found


@dataclass
class RandomEngine:
    """An engine that samples with fresh noise, and verifies drafts by ids or by probabilities."""

    probabilities: Callable
    chooser: Chooser

    def answers(self, call: EngineCall):
        draft, masks = call.draft.tokens.tolist(), call.token_masks
        q = call.draft.logits
        count = len(draft) + 1 if draft else call.max_new_tokens
        context, new = list(call.context), []
        for at in range(count):
            mask = None if masks is None else masks[at]
            p = masked(self.probabilities(context), mask)
            if at < len(draft) and q is not None:
                token, accepted = self.accepted(p, q[at], draft[at])
            else:
                token = self.chooser.choose(p)
                accepted = at >= len(draft) or token == draft[at]
            context.append(token)
            new.append(token)
            if not accepted or token in call.stop_ids:
                break
        yield EngineResult(ids(*new))

    def accepted(self, p, q, token):
        passes = min(1.0, p[token] / q[token])
        if self.chooser.choose(np.array([passes, 1 - passes])) == 0:
            return token, True
        residual = np.maximum(p - q, 0)
        return self.chooser.choose(residual / residual.sum()), False


@dataclass
class RandomDraft:
    """A draft engine that samples from its own probabilities, and returns them on request."""

    probabilities: Callable
    chooser: Chooser

    def answers(self, call: EngineCall):
        context, new, rows = list(call.context), [], []
        for _ in range(call.max_new_tokens):
            q = self.probabilities(context)
            rows.append(q)
            new.append(self.chooser.choose(q))
            context.append(new[-1])
        logits = np.array(rows) if call.wants_logits else None
        yield EngineResult(ids(*new), draft_logits=logits)


def sampled(request, **changes):
    return replace(request, sampling=replace(request.sampling, **changes))
