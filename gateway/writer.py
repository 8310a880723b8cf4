"""The objects of one request: whole answers, and the chunks of streams."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from tandem.gateway.answers import Addition, AnswerState
from tandem.gateway.log_probs import LogProbRow
from tandem.gateway.objects import (
    Choice,
    Completion,
    PromptTokensDetails,
    RequestMetrics,
    SpeculationSoFar,
    Usage,
)
from tandem.gateway.shapes import Shape
from tandem.gateway.speculation import speculative_decoding
from tandem.gateway.tokenizer import ChatTokenizer


class Writer:
    """Writes the objects of one request: they share an id, a moment and a model.

    answers: of the request, all choices of the first prompt before those of the next.
    choices_per_prompt: OpenAI's ``n``; a prompt's tokens are counted once.
    """

    def __init__(
        self,
        shape: Shape,
        model: str,
        answers: Sequence[AnswerState],
        choices_per_prompt: int,
        tokenizer: ChatTokenizer,
    ) -> None:
        self._shape = shape
        self._model = model
        self._answers = answers
        self._tokenizer = tokenizer
        self._choices_per_prompt = choices_per_prompt
        self._id = shape.prefix + uuid.uuid4().hex
        self._created = int(time.time())

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        firsts = self._answers[:: self._choices_per_prompt]
        prompts = sum(answer.num_prompt_tokens for answer in firsts)
        new = sum(answer.num_tokens for answer in self._answers)
        usage = Usage(prompt_tokens=prompts, completion_tokens=new, total_tokens=prompts + new)
        cached = [answer.num_cached_prompt_tokens for answer in firsts]
        known = [count for count in cached if count is not None]
        if len(known) == len(cached):
            usage.prompt_tokens_details = PromptTokensDetails(cached_tokens=sum(known))
        return usage

    @property
    def metrics(self) -> RequestMetrics:
        """What speculation did."""
        counted = [answer.speculation for answer in self._answers]
        return RequestMetrics(speculative_decoding=speculative_decoding(counted))

    def whole(self) -> Completion:
        """Return the complete answers."""
        choices = []
        for number, answer in enumerate(self._answers):
            choice = self._shape.choice(number, answer)
            if answer.origins is not None:
                choice.token_details = answer.details
            self._tell(choice, answer.rows)
            choices.append(choice)
        return self._object(
            self._shape.whole, choices=choices, usage=self.usage, metrics=self.metrics
        )

    def chunk(self, number: int, addition: Addition, *, with_usage: bool) -> Completion:
        """Return what a chunk adds to one answer."""
        choice, chunk = self._shape.delta(number, addition), addition.chunk
        self._tell(choice, addition.rows)
        if addition.details is not None:
            choice.token_details = addition.details
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

    def _tell(self, choice: Choice, rows: list[LogProbRow] | None) -> None:
        """Add log-probabilities, where they are wanted."""
        if rows is not None:
            choice.logprobs = self._shape.log_probs(self._tokenizer, rows)

    def _object(self, name: str, **fields: Any) -> Completion:
        return Completion(
            id=self._id, object=name, created=self._created, model=self._model, **fields
        )
