"""The objects of one request: whole answers, and the chunks of streams."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from tandem.gateway.answers import AnswerState
from tandem.gateway.schema import Completion, RequestMetrics, SpeculationSoFar, TokenDetail, Usage
from tandem.gateway.shapes import Shape
from tandem.gateway.speculation import speculative_decoding
from tandem.gateway.triton import ResponseChunk


class Writer:
    """Writes the objects of one request: they share an id, a moment and a model.

    answers: of the request, all choices of the first prompt before those of the next.
    choices_per_prompt: OpenAI's ``n``; a prompt's tokens are counted once.
    """

    def __init__(
        self, shape: Shape, model: str, answers: Sequence[AnswerState], choices_per_prompt: int
    ) -> None:
        self._shape = shape
        self._model = model
        self._answers = answers
        self._choices_per_prompt = choices_per_prompt
        self._id = shape.prefix + uuid.uuid4().hex
        self._created = int(time.time())

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        prompts = sum(a.num_prompt_tokens for a in self._answers[:: self._choices_per_prompt])
        new = sum(answer.num_tokens for answer in self._answers)
        return Usage(prompt_tokens=prompts, completion_tokens=new, total_tokens=prompts + new)

    @property
    def metrics(self) -> RequestMetrics:
        """What speculation did."""
        counted = [a.statistics for a in self._answers if a.statistics is not None]
        return RequestMetrics(speculative_decoding=speculative_decoding(counted))

    def whole(self) -> Completion:
        """Return the complete answers."""
        choices = []
        for number, answer in enumerate(self._answers):
            choice = self._shape.choice(number, answer)
            if answer.details:
                choice.token_details = answer.details
            choices.append(choice)
        return self._object(
            self._shape.whole, choices=choices, usage=self.usage, metrics=self.metrics
        )

    def chunk(
        self,
        number: int,
        chunk: ResponseChunk,
        *,
        first: bool,
        details: list[TokenDetail] | None,
        with_usage: bool,
    ) -> Completion:
        """Return what a chunk adds to one answer."""
        choice = self._shape.delta(number, chunk, first=first)
        if details is not None:
            choice.token_details = details
            choice.speculation = SpeculationSoFar(
                num_rounds=chunk.num_rounds,
                num_draft_tokens=chunk.num_draft_tokens,
                num_accepted_draft_tokens=chunk.num_accepted_tokens,
            )
        made = self._object(self._shape.chunk, choices=[choice])
        if with_usage:
            made.usage = self.usage
        return made

    def end(self) -> Completion:
        """Return the last chunk of a stream: no choices, but the statistics of all of them."""
        return self._object(self._shape.chunk, choices=[], usage=self.usage, metrics=self.metrics)

    def _object(self, name: str, **fields: Any) -> Completion:
        return Completion(
            id=self._id, object=name, created=self._created, model=self._model, **fields
        )
