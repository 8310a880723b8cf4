"""The objects of one request: whole answers, and the chunks of streams."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from tandem.gateway.answers import Addition, AnswerState
from tandem.gateway.log_probs import LogProbRow, prompt_log_probs
from tandem.gateway.objects import (
    Choice,
    Completion,
    PromptTokensDetails,
    RequestMetrics,
    SpeculationSoFar,
    Usage,
)
from tandem.gateway.schema import GenerationRequest
from tandem.gateway.shapes import Shape
from tandem.gateway.speculation import speculative_decoding
from tandem.gateway.tokenizer import ChatTokenizer
from tandem.gateway.triton.backend import ResponseChunk


class Writer:
    """Writes the objects of one request: they share an id, a moment and a model.

    answers: of the request, all choices of the first prompt before those of the next.
    """

    def __init__(
        self,
        shape: Shape,
        body: GenerationRequest,
        answers: Sequence[AnswerState],
        tokenizer: ChatTokenizer,
        *,
        model: str,
        fingerprint: str,
    ) -> None:
        self._shape = shape
        self._body = body
        self._answers = answers
        self._tokenizer = tokenizer
        self._model = model
        self._fingerprint = fingerprint
        self._id = shape.prefix + uuid.uuid4().hex
        self._created = int(time.time())

    @property
    def usage(self) -> Usage:
        """Tokens so far; those of a prompt are counted once, however many choices it has."""
        firsts = self._answers[:: self._body.n]
        prompts = sum(len(answer.prompt) for answer in firsts)
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
        made = self._object(self._shape.whole, choices=[], usage=self.usage, metrics=self.metrics)
        for number, answer in enumerate(self._answers):
            choice = self._shape.choice(number, answer)
            if answer.origins is not None:
                choice.token_details = answer.details
            self._tell(choice, answer.rows, answer.tokens)
            made.choices.append(choice)
            self._tell_of_prompt(made, number, answer.additions[0].chunk)
        return made

    def chunk(self, number: int, addition: Addition) -> Completion:
        """Return what a chunk adds to one answer."""
        choice, chunk = self._shape.delta(number, addition), addition.chunk
        self._tell(choice, addition.rows, chunk.tokens)
        if addition.details is not None:
            choice.token_details = addition.details
            choice.speculation = SpeculationSoFar(
                num_rounds=chunk.num_rounds,
                num_draft_tokens=chunk.num_draft_tokens,
                num_accepted_draft_tokens=chunk.num_accepted_tokens,
            )
        made = self._object(self._shape.chunk, choices=[choice])
        if addition.first:
            self._tell_of_prompt(made, number, chunk)
        if self._body.streams_usage:
            made.usage = self.usage if self._body.streams_usage_always else None
        return made

    def end(self) -> Completion:
        """Return the last chunk of a stream: no choices, but the statistics of all of them."""
        return self._object(self._shape.chunk, choices=[], usage=self.usage, metrics=self.metrics)

    def _tell(self, choice: Choice, rows: list[LogProbRow] | None, tokens: Sequence[int]) -> None:
        """Add log-probabilities and token ids to a choice, if they are wanted."""
        if rows is not None:
            as_ids = self._body.return_tokens_as_token_ids
            choice.logprobs = self._shape.log_probs(self._tokenizer, rows, as_ids=as_ids)
        if self._body.return_token_ids:
            choice.token_ids = list(tokens)

    def _tell_of_prompt(self, made: Completion, number: int, chunk: ResponseChunk) -> None:
        """Add the ids and log-probabilities of a prompt, if they are wanted.

        made: its last choice is that of the answer with this number. chunk: the answer's first.
        """
        told = made.choices[-1] if self._shape.prompt_in_choice else made
        prompt = self._answers[number].prompt
        if self._body.return_token_ids:
            told.prompt_token_ids = list(prompt)
        if (wanted := self._body.prompt_logprobs) is not None:
            told.prompt_logprobs = prompt_log_probs(self._tokenizer, prompt, chunk, wanted)

    def _object(self, name: str, **fields: Any) -> Completion:
        return Completion(
            id=self._id,
            object=name,
            created=self._created,
            model=self._model,
            system_fingerprint=self._fingerprint,
            **fields,
        )
