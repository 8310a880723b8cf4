"""Write answers as OpenAI's objects and stream events."""

from __future__ import annotations

import secrets
import string
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import Any, ClassVar, TypeAlias

from pydantic_core import to_json

from tandem.contract.entry import KINDS
from tandem.gateway.answers.answer import ParsedAnswer
from tandem.gateway.answers.tokens import (
    chat_log_probs,
    completion_log_probs,
    prompt_log_probs,
    tokens_with_log_probs,
)
from tandem.gateway.errors import ApiError
from tandem.gateway.protocol.requests import GenerationRequest, StreamOptions
from tandem.gateway.tokenizer import ChatTokenizer
from tandem.gateway.tool_calls import CallDelta

Object: TypeAlias = dict[str, Any]  # of a response, as in the API's JSON

# Mistral's templates accept only call ids of 9 letters and digits.
ID_LETTERS, ID_LENGTH = string.ascii_letters + string.digits, 9
DONE = b"data: [DONE]\n\n"


class Writer(ABC):
    """Writes the response to one request: one object, or the events of a stream.

    answers: all choices of the first prompt, then all choices of the second, and so on.
    """

    prefix: ClassVar[str]  # prefix of the response's id

    def __init__(
        self,
        body: GenerationRequest,
        answers: Sequence[ParsedAnswer],
        tokenizer: ChatTokenizer,
        *,
        model: str,
        fingerprint: str,
    ) -> None:
        self.body = body
        self.answers = answers
        self.model = model
        self._tokenizer = tokenizer
        self._fields: Object = {
            "id": self.prefix + uuid.uuid4().hex,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }

    @property
    def usage(self) -> Object:
        """OpenAI's token counts so far. A prompt with several choices counts once.

        The end-of-sequence token doesn't count. A draft token from the prediction that is proposed
        again counts again.
        """
        firsts = self.answers[:: self.body.n]
        prompts = sum(len(answer.prompt.ids) for answer in firsts)
        new = sum(len(answer.ids) for answer in self.answers)
        usage: Object = {
            "prompt_tokens": prompts,
            "completion_tokens": new,
            "total_tokens": prompts + new,
        }
        cached = [answer.num_cached_prompt_tokens for answer in firsts]
        known = [count for count in cached if count is not None]
        if len(known) == len(cached):
            usage["prompt_tokens_details"] = {"cached_tokens": sum(known)}
        if self.body.prediction is not None:
            counts = [answer.prediction_tokens for answer in self.answers]
            accepted, rejected = (sum(column) for column in zip(*counts, strict=True))
            usage["completion_tokens_details"] = {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": rejected,
            }
        return usage

    @property
    def speculation(self) -> Object:
        """Statistics of speculation so far, with vLLM's names."""
        statistics = [answer.speculation for answer in self.answers]
        steps, drafted, accepted = (
            sum(one[name] for one in statistics)
            for name in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
        )
        histograms = [one["acceptance_histogram"] for one in statistics]
        return {
            "num_spec_steps": steps,
            "num_draft_tokens": drafted,
            "num_accepted_draft_tokens": accepted,
            "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
            "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
            "acceptance_histogram": [sum(n) for n in zip_longest(*histograms, fillvalue=0)],
        }

    @abstractmethod
    def whole(self) -> bytes:
        """Return the complete response."""

    @abstractmethod
    def chunk(self, number: int) -> bytes:
        """Return the events for the last chunk of answer `number`."""

    @abstractmethod
    def end(self) -> bytes:
        """Return the final events of a stream."""

    @abstractmethod
    def failure(self, error: ApiError) -> bytes:
        """Return the final events of a stream that ends with an error."""


class ChoicesWriter(Writer):
    """Writes answers as the choices of a completion.

    prompt_in_choice: whether choices contain prompt details. log_probs: returns the API's object
    for tokens.
    """

    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]
    prompt_in_choice: ClassVar[bool]
    log_probs: ClassVar[Callable[..., Object]]

    def whole(self) -> bytes:
        made = self._with_statistics(self.whole_object)
        for number in range(len(self.answers)):
            self._add(made, number)
        return json_bytes(made)

    def chunk(self, number: int) -> bytes:
        made: Object = {**self._fields, "object": self.chunk_object, "choices": []}
        self._add(made, number)
        options = self._stream_options
        if options.include_usage:
            made["usage"] = self.usage if options.continuous_usage_stats else None
        return sse(made)

    def end(self) -> bytes:
        if not self._stream_options.include_usage:
            return DONE
        return sse(self._with_statistics(self.chunk_object)) + DONE

    def failure(self, error: ApiError) -> bytes:
        return sse(error.body) + DONE

    @abstractmethod
    def choice(self, answer: ParsedAnswer) -> Object:
        """Return the API's own fields of a choice: what the answer's last chunk adds."""

    @cached_property
    def _stream_options(self) -> StreamOptions:
        return self.body.stream_options or StreamOptions()

    def _with_statistics(self, name: str) -> Object:
        return {
            **self._fields,
            "object": name,
            "choices": [],
            "usage": self.usage,
            "metrics": {"speculative_decoding": self.speculation},
        }

    def _add(self, made: Object, number: int) -> None:
        """Add a choice, with the token and prompt details that the request asks for."""
        body, answer, tokenizer = self.body, self.answers[number], self._tokenizer
        choice = {
            "index": number,
            **self.choice(answer),
            "logprobs": None,
            "finish_reason": answer.finish_reason,
        }
        made["choices"].append(choice)
        if body.return_token_details:
            choice["token_details"] = _token_details(answer, tokenizer)
            if body.stream:
                choice["speculation"] = {
                    "num_rounds": answer.chunk.num_rounds,
                    "num_draft_tokens": answer.chunk.num_draft_tokens,
                    "num_accepted_draft_tokens": answer.chunk.num_accepted_tokens,
                }
        if body.num_alternatives is not None:
            tokens = tokens_with_log_probs(tokenizer, body, answer)
            as_ids = body.return_tokens_as_token_ids
            choice["logprobs"] = self.log_probs(tokenizer, tokens, as_ids=as_ids)
        if body.return_token_ids:
            choice["token_ids"] = answer.chunk.tokens
        if warnings := answer.warnings:
            made["warnings"] = warnings
        if not answer.first:
            return
        place = choice if self.prompt_in_choice else made
        if body.return_token_ids:
            place["prompt_token_ids"] = answer.prompt.ids
        if body.prompt_logprobs is not None:
            place["prompt_logprobs"] = prompt_log_probs(tokenizer, answer, body.prompt_logprobs)


class ChatWriter(ChoicesWriter):
    """Writes the answers of /v1/chat/completions."""

    prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    prompt_in_choice = False
    log_probs = staticmethod(chat_log_probs)

    def choice(self, answer: ParsedAnswer) -> Object:
        whole = not self.body.stream
        message: Object = {"content": answer.text}
        if answer.first:
            message["role"] = "assistant"
        if whole:
            message["refusal"] = None
        if answer.reasoning or (whole and answer.calls):
            message["content"] = answer.text or None
        if answer.reasoning:
            # vLLM's clients read the first; clients of DeepSeek, SGLang, LiteLLM and older versions
            # of vLLM read the second.
            message["reasoning"] = message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [_tool_call(call, whole=whole) for call in answer.calls]
        return {"message" if whole else "delta": message}


class CompletionWriter(ChoicesWriter):
    """Writes the answers of /v1/completions."""

    prefix = "cmpl-"
    whole_object = chunk_object = "text_completion"
    prompt_in_choice = True
    log_probs = staticmethod(completion_log_probs)

    def choice(self, answer: ParsedAnswer) -> Object:
        return {"text": answer.text}


def json_bytes(data: Mapping[str, Any]) -> bytes:
    # A client's schema or a model's arguments may have 1e999 or NaN, which JSON can't represent.
    return to_json(data, inf_nan_mode="null")


def sse(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json_bytes(data) + b"\n\n"


def _token_details(answer: ParsedAnswer, tokenizer: ChatTokenizer) -> list[Object]:
    """Return the origins of the tokens that the last chunk completes.

    text: empty if a later token completes the character. round: starts at 1; 0 for tokens that a
    guide forced before the first round. rejected: text of the draft token that the token replaces.
    """
    details: list[Object] = []
    for token in answer.tokens:
        if token.kind is None:
            continue
        own = {"id": token.id, "text": token.text, "round": token.round, "kind": KINDS[token.kind]}
        if token.rejected is not None and token.rejected >= 0:
            own["rejected"] = tokenizer.token_text(token.rejected)
        details.append(own)
    if details and answer.texts and answer.finish_reason:
        details[-1]["text"] += answer.texts.rest  # an incomplete character at the end
    return details


def _tool_call(call: CallDelta, *, whole: bool) -> Object:
    """Return a call or a chunk of one. Only the first chunk has the call's id and name."""
    function: Object = {"arguments": call.arguments}
    made: Object = {"function": function} if whole else {"index": call.index, "function": function}
    if call.name is not None:
        function["name"] = call.name
        made |= {"id": new_call_id(), "type": "function"}
    return made


def new_call_id() -> str:
    return "".join(secrets.choice(ID_LETTERS) for _ in range(ID_LENGTH))
