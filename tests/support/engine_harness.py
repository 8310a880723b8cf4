"""Blocking calls to an engine, and the sizes of the test checkpoints."""

from __future__ import annotations

import queue
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tandem.engines.engine import Engine, EngineRequest, EngineResponse, SamplingParams
from tandem.engines.stepping.sampling import CallSampler

VOCAB = 131
END = 1
GREEDY = SamplingParams(top_k=1)
TIE = 1e-4


@dataclass
class Outcome:
    """The responses of a call, and its tokens."""

    answers: list[EngineResponse] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [token for answer in self.answers for token in answer.tokens]

    @property
    def last(self) -> EngineResponse:
        return self.answers[-1]

    @property
    def error(self) -> str | None:
        return self.last.error


class Pending:
    """A running call, whose responses can be awaited."""

    def __init__(self) -> None:
        self._answers: queue.Queue[EngineResponse] = queue.Queue()
        self.respond = self._answers.put

    @property
    def empty(self) -> bool:
        return self._answers.empty()

    def next(self) -> EngineResponse:
        return self._answers.get(timeout=60)

    def wait(self) -> Outcome:
        outcome = Outcome()
        while not outcome.answers or not outcome.last.final:
            outcome.answers.append(self.next())
        return outcome


class Harness:
    """An engine, with methods to call it and wait for the responses."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def start(self, ids, new=1, *, drafts=(), request_id="r", sampling=GREEDY, **rest) -> Pending:
        pending = Pending()
        request = EngineRequest(
            request_id=request_id,
            input_ids=np.array(ids, np.int32),
            max_new_tokens=new,
            draft_ids=np.array(drafts, np.int32),
            sampling=sampling,
            **rest,
        )
        self.engine.submit(request, pending.respond)
        return pending

    def call(self, ids, new=1, **rest) -> Outcome:
        outcome = self.start(ids, new, **rest).wait()
        assert outcome.error is None, outcome.error
        return outcome

    def tokens(self, ids, new=1, **rest) -> list[int]:
        return self.call(ids, new, **rest).tokens

    def computed(self, ids, new=1, **rest) -> int:
        """Return the number of tokens that the model computes for a call."""
        return self.call(ids, new, **rest).last.usage.computed_tokens


class Conducted(Pending):
    """A streaming call that runs actions in the engine's thread. actions: by number of tokens.

    results: what the actions have returned.
    """

    def __init__(self, harness: Harness, ids, new, actions) -> None:
        super().__init__()
        self.results: list[Any] = []
        self._actions = actions
        self._said = 0
        request = EngineRequest("s", np.array(ids, np.int32), new, sampling=GREEDY, streaming=True)
        harness.engine.submit(request, self._respond)

    def _respond(self, answer: EngineResponse) -> None:
        self._said += 1
        if action := self._actions.get(self._said):
            self.results.append(action())
        self.respond(answer)


def prompt(seed: int, length: int) -> list[int]:
    """Return ``length`` random token ids."""
    return np.random.default_rng(seed).integers(2, VOCAB, length).tolist()


def wrong(tokens: list[int]) -> list[int]:
    """Return tokens that differ from the given tokens at every position."""
    return [2 + (token + 1) % 100 for token in tokens]


def branch_call(drafts: list[int], counts, output_len) -> dict[str, Any]:
    """Return the options of a call for branches.

    counts, output_len: one value, or one per accepted length.
    """
    wanted = len(drafts) + 1
    return {
        "drafts": drafts,
        "branch_counts": np.full(wanted, counts, np.int32),
        "branch_output_len": np.full(wanted, output_len, np.int32),
    }


def emitted(sampler: CallSampler, logits, text: list[int], drafts: list[int]) -> list[int]:
    """Return the tokens that a call emits. logits: [len(drafts) + 1, vocab_size].

    text: the context and the drafts.
    """
    return list(sampler.sample(logits, np.array(text), drafts).tokens)


def assert_same(model, ids: list[int], got: list[int], want: list[int]) -> None:
    """Assert that two outputs are equal, or that the first difference is almost a tie in logits."""
    assert len(got) == len(want)
    for i, (ours, theirs) in enumerate(zip(got, want, strict=True)):
        if ours != theirs:
            with torch.inference_mode():
                logits = model(torch.tensor([ids + want[:i]])).logits[0, -1]
            best, second = logits.topk(2).values.tolist()
            assert best - second < TIE, f"token {i}: {ours} for {theirs}, gap {best - second:.2g}"
            return
