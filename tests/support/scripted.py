"""Engines that follow a script, and a driver that runs the decoding loop with them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from tandem.bls.ahead import AheadPlanner
from tandem.bls.draft_length import DraftPlanner
from tandem.bls.drafters.drafter import DrafterContext
from tandem.bls.errors import Abandoned, EngineCallError, EngineTimeout, RejectedByEngine
from tandem.bls.loop import Decoding
from tandem.bls.ports import (
    BranchDraft,
    Chunk,
    DecodedText,
    EngineCall,
    EngineResult,
)
from tandem.bls.request import Request
from tandem.bls.settings import EngineSettings, LoopSettings
from tandem.bls.text import Decode
from tandem.contract.engine import Capabilities
from tandem.engines.kinds import TORCH

VOCAB = 8
END = 7  # the other end id is 6
PIECES = ("a", "b", "ab", "ba", " ", "é", "", "")

# The capabilities of a torch engine, without optional capabilities.
CAPABILITIES = replace(TORCH, stops_when_unsure=False, shares_logits=False, branches=False)
TARGET = EngineSettings(
    model="target",
    capabilities=CAPABILITIES,
    vocab_size=VOCAB,
    max_seq_len=4096,
    max_draft_len=16,
    kv_cache_tokens=65536,
    kv_block_tokens=4,
    timeout=60.0,
)
SETTINGS = LoopSettings(
    target=TARGET,
    draft=replace(TARGET, model="draft", max_draft_len=0, timeout=30.0),
    preprocessing_model="preprocessing",
    postprocessing_model="postprocessing",
)


def with_engines(
    settings: LoopSettings,
    *,
    target: Mapping[str, Any] | None = None,
    draft: Mapping[str, Any] | None = None,
) -> LoopSettings:
    """Return changed loop settings. target, draft: changed engine settings and capabilities."""
    return replace(
        settings,
        target=_changed(settings.target, target or {}),
        draft=settings.draft and _changed(settings.draft, draft or {}),
    )


def _changed(engine: EngineSettings, changes: Mapping[str, Any]) -> EngineSettings:
    names = {field.name for field in fields(Capabilities)}
    able = {name: value for name, value in changes.items() if name in names}
    own = {name: value for name, value in changes.items() if name not in names}
    return replace(engine, capabilities=replace(engine.capabilities, **able), **own)


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def text_of(tokens) -> str:
    return "".join(PIECES[token % len(PIECES)] for token in tokens)


def decoded(window, context_length, *, wants_lengths=False) -> DecodedText:
    """Decode ids like `postprocessing`, with the tokenizer PIECES."""
    tokens = window[context_length or 0 :]
    lengths = [len(text_of([token])) for token in tokens]
    return DecodedText(text_of(tokens), np.array(lengths, np.int32) if wants_lengths else None)


@dataclass(frozen=True)
class Language:
    """A language in which the last three tokens and the position determine the next token."""

    salt: int = 0
    end_every: int = 50  # 1 in this number of positions allows an end token

    def next(self, context, banned=()) -> int:
        # Hashes, because creating a random generator per token would dominate the test time.
        place = hash((self.salt, len(context), *map(int, context[-3:])))
        possible = range(VOCAB - 2 if hash((place, -1)) % self.end_every else VOCAB)
        return min((t for t in possible if t not in banned), key=lambda t: hash((place, t)))


ENDLESS = Language(end_every=10**9)


@dataclass
class Target:
    """A target that answers like a TensorRT-LLM engine.

    An end id ends the answer and isn't returned. A stop id ends the answer and is returned.
    verifies: maximum draft length in tokens; later draft tokens are ignored.
    """

    language: Language
    end_ids: tuple[int, ...] = (END, 6)
    verifies: int = 10**9
    calls: list[EngineCall] = field(default_factory=list)

    def answers(self, call: EngineCall) -> Iterator[EngineResult]:
        self.calls.append(call)
        banned = self.end_ids if call.ban_end_ids else ()
        draft = call.draft.tokens[: self.verifies].tolist()
        yield said(call, draft, lambda context, _: self.language.next(context, banned))


def said(
    call: EngineCall, draft: list[int], next_token: Callable[[list[int], int], int]
) -> EngineResult:
    """Return the answer of a target to a call.

    next_token: called with the context and the index in the answer. The answer ends after the
    first rejected draft token or at an end token.
    """
    context, new = list(call.context), []
    for at in range(len(draft) + 1 if draft else call.max_new_tokens):
        token = next_token(context, at)
        if token == call.end_id:
            break
        context.append(token)
        new.append(token)
        if token in call.stop_ids or (at < len(draft) and token != draft[at]):
            break
    return EngineResult(ids(*new))


class Reports:
    """An engine whose results have the given fields, and the other fields of another engine."""

    def __init__(self, engine, **fields: Any) -> None:
        self._engine, self._fields = engine, fields

    def answers(self, call: EngineCall) -> Iterator[EngineResult]:
        for result in self._engine.answers(call):
            yield result._replace(**self._fields)


@dataclass
class Draft:
    """A draft engine that follows a script.

    script: for each token, right (True), wrong (False) or an engine failure (None). rejects: reject
    every call.
    """

    language: Language
    script: tuple[bool | None, ...] = (True,)
    calls: list[EngineCall] = field(default_factory=list)
    drafted: int = 0
    rejects: bool = False

    def answers(self, call: EngineCall) -> Iterator[EngineResult]:
        self.calls.append(call)
        if self.rejects:
            raise RejectedByEngine("draft", "scripted rejection")
        context, new = list(call.context), []
        banned = (END, 6) if call.ban_end_ids else ()
        for _ in range(call.max_new_tokens):
            agrees = self.script[self.drafted % len(self.script)]
            self.drafted += 1
            if agrees is None:
                raise EngineCallError("draft", "scripted failure")
            token = self.language.next(context, banned)
            token = token if agrees else (token + 1) % (VOCAB - 2)
            context.append(token)
            new.append(token)
            if token in call.stop_ids:
                break
        logits = np.zeros((1, len(new), VOCAB), np.float32) if call.wants_logits else None
        yield EngineResult(ids(*new), draft_logits=logits)


@dataclass
class BranchingDraft:
    """A draft engine with branches, whose tokens depend only on the context.

    agrees: average number of tokens out of 8 that equal the target's. unsure_every: at multiples of
    this position, the target's token is the last guess for an outcome; elsewhere it is the first
    guess. keeps_lengths: if False, branches are too long.
    """

    language: Language
    agrees: int = 6
    unsure_every: int = 3
    keeps_lengths: bool = True
    calls: list[EngineCall] = field(default_factory=list)

    def answers(self, call: EngineCall) -> Iterator[EngineResult]:
        self.calls.append(call)
        if call.branching is None:
            drafted = self.drafted(call.context, call.max_new_tokens, call)
            yield EngineResult(ids(*drafted))
        else:
            yield EngineResult(ids(), branches=tuple(self.branches(call)))

    def next(self, context, banned=()) -> int:
        token = self.language.next(context, banned)
        wrong = hash((self.language.salt, *map(int, context))) % 8 >= self.agrees
        return (token + 1) % (VOCAB - 2) if wrong else token

    def drafted(self, context, count: int, call: EngineCall) -> list[int]:
        """Return up to `count` tokens after a context, and apply the call's banned and stop ids."""
        context, new = list(context), []
        for _ in range(count):
            token = self.next(context, (END, 6) if call.ban_end_ids else ())
            context.append(token)
            new.append(token)
            if token in call.stop_ids:
                break
        return new

    def branches(self, call: EngineCall) -> Iterator[BranchDraft]:
        assert call.branching is not None
        draft = call.draft.tokens.tolist()
        counts, lengths = call.branching
        assert len(counts) == len(lengths) == len(draft) + 1
        for accepted, (count, length) in enumerate(zip(counts, lengths, strict=True)):
            assert length > 0 or not count
            context = [*call.context, *draft[:accepted]]
            right = self.language.next(context, (END, 6) if call.ban_end_ids else ())
            others = [(right + offset) % VOCAB for offset in range(VOCAB)]
            if len(context) % self.unsure_every == 0:
                others = others[1:] + others[:1]
            for token in [t for t in others if [t] != draft[accepted : accepted + 1]][:count]:
                longer = 0 if self.keeps_lengths else 9
                drafted = self.drafted([*context, token], length + longer, call)
                yield BranchDraft(accepted, token, ids(*drafted))


@dataclass
class Health:
    """The health of a draft engine, which is paused forever after `patience` failures."""

    patience: int = 10**9
    failures: int = 0
    rejections: int = 0
    errors: list[str] = field(default_factory=list)
    without: list[str] = field(default_factory=list)  # what rejections took from a request

    @property
    def available(self) -> bool:
        return self.failures < self.patience

    def failed(self, error: EngineCallError) -> None:
        self.failures += 1
        self.errors.append(str(error))

    def rejected(self, error: Exception, without: str = "drafts") -> None:
        self.rejections += 1
        self.without.append(without)
        self.errors.append(str(error))


def decoding_of(
    request: Request,
    settings: LoopSettings = SETTINGS,
    health=None,
    pools=None,
    ahead_planner=None,
    *,
    translator=None,
    load=1,
    clock=lambda: 0.0,
) -> Decoding:
    draft_planner = DraftPlanner(
        settings.target.max_draft_len,
        lambda: load,
        clock=clock,
        stops_when_unsure=settings.draft_stops_when_unsure,
    )
    ahead_planner = ahead_planner or AheadPlanner(settings)
    context = DrafterContext(
        settings, health or Health(), draft_planner, ahead_planner, pools, translator, lambda: load
    )
    return Decoding(request, context, clock=clock)


def play(
    decoding: Decoding,
    target,
    draft=None,
    ahead_fates: Sequence[str] = ("in time",),
    decode: Decode = decoded,
) -> list[Chunk]:
    """Run a decoding, and return its chunks with their text.

    ahead_fates: the results of drafting ahead, repeated in order: "in time", "late", "rejected",
    "failed", or "no thread" if no thread is free to run it.
    """
    ports = Ports(target, draft, ahead_fates, decode)
    decoding.run(ports)
    return ports.chunks


class Ports:
    """The outside world of a loop: scripted engines, and a list of the chunks."""

    def __init__(self, target, draft=None, ahead_fates=("in time",), decode: Decode = decoded):
        self.chunks: list[Chunk] = []
        self.decode = decode
        self.send = self.chunks.append
        self._engines = {"target": target, "draft": draft}
        self._fates = cycle(ahead_fates)
        self.ahead: AheadCall | None = None  # the last call that drafts ahead

    def reserve(self, num_output_tokens: int) -> bool:
        return num_output_tokens >= 0  # blocks are always free

    def call(self, call: EngineCall) -> EngineResult:
        return next(self._engines[call.engine].answers(call))

    def call_ahead(self, call: EngineCall) -> Future[EngineResult] | None:
        fate = next(self._fates)
        self.ahead = None if fate == "no thread" else AheadCall(self, call, fate)
        return self.ahead

    def stop_ahead(self) -> None:
        """Do nothing: a late call stays late."""


class OverduePorts(Ports):
    """Ports whose draft call number ``overdue`` never returns."""

    def __init__(self, target, draft, overdue: int) -> None:
        super().__init__(target, draft)
        self.num_drafts = 0
        self._overdue = overdue

    def call(self, call: EngineCall) -> EngineResult:
        if call.engine == "draft" and call.branching is None:
            self.num_drafts += 1
            if self.num_drafts == self._overdue:
                raise Abandoned
        return super().call(call)

    def run(self, decoding: Decoding) -> None:
        """Run a decoding, and continue it after the overdue call as `SequenceThread` does."""
        try:
            decoding.run(self)
        except Abandoned:
            decoding.draft_failed(EngineTimeout("draft", 1.0))
            decoding.run(self)


class AheadCall(Future):
    """A call that drafts ahead. It is made when its result is needed."""

    def __init__(self, ports: Ports, call: EngineCall, fate: str) -> None:
        super().__init__()
        self._ports, self._call, self._fate = ports, call, fate

    def result(self, timeout=None) -> EngineResult:
        if not self.done() and self._fate == "late":
            raise TimeoutError
        if not self.done():
            if self._fate == "rejected":
                self.set_exception(RejectedByEngine("draft", "scripted rejection"))
            elif self._fate == "failed":
                self.set_exception(EngineCallError("draft", "scripted failure"))
            else:
                self.set_result(self._ports.call(self._call))
        return super().result()


def expected(request: Request, language: Language) -> tuple[list[int], str, str]:
    """Return the tokens, text and finish reason of the baseline (the target alone)."""
    context = list(request.prompt_ids)
    new: list[int] = []
    while len(new) < request.max_tokens:
        below_min = len(new) < request.min_tokens
        token = language.next(context, request.end_ids if below_min else ())
        if token in request.end_ids:
            return new, text_of(new), "stop"
        context.append(token)
        new.append(token)
        text = text_of(new)
        starts = [at for at in (text.find(stop) for stop in request.stop_strings) if at >= 0]
        if starts:
            return new, text[: min(starts)], "stop"
    return new, text_of(new), "length"


class Writes(NamedTuple):
    """A language that repeats the given tokens after a prompt of the given length."""

    prompt_length: int
    tokens: Sequence[int]

    def next(self, context, banned=()):
        return self.tokens[(len(context) - self.prompt_length) % len(self.tokens)]


class Says(NamedTuple):
    """A language that repeats the tokens 1 to 5, with an end token at one position."""

    end: int = END
    at: int = 10

    def next(self, context, banned=()):
        return self.end if len(context) == self.at else len(context) % 5 + 1


def request_of(**changes) -> Request:
    plain = Request(
        prompt_ids=ids(1, 2, 3),
        max_tokens=20,
        end_ids=(END, 6),
        drafter="draft_model",
        draft_len=4,
    )
    return replace(plain, **changes)
