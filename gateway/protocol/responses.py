"""What clients are sent: OpenAI's objects, and the fields that Tandem adds."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from tandem.contract.entry import Kind

FinishReason = Literal["stop", "length", "tool_calls"]


class Answered(BaseModel):
    """Something that clients are sent; fields that were not set stay out of it."""

    model_config = ConfigDict(extra="forbid")

    def json_bytes(self) -> bytes:
        return self.model_dump_json(exclude_unset=True).encode()


class PromptTokensDetails(Answered):
    """Of the tokens of all prompts: how many were in the target's KV cache, in whole blocks."""

    cached_tokens: int


class Usage(Answered):
    """Tokens of a request. ``completion_tokens`` leaves out the token that ends an answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None


class SpeculativeDecoding(Answered):
    """What speculation did for a request, in vLLM's words."""

    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    draft_acceptance_rate: float
    mean_acceptance_length: float
    acceptance_histogram: list[int]


class RequestMetrics(Answered):
    """Statistics of a request."""

    speculative_decoding: SpeculativeDecoding


class TokenDetail(Answered):
    """Where a token of the answer came from.

    text: what it adds to the text; empty where later tokens complete a character. round: counted
    from 1. kind: an accepted draft token, the target's correction, its bonus token, or a plain one;
    unknown where the engine drafts by itself.
    """

    id: int
    text: str
    round: int
    kind: Kind


class SpeculationSoFar(Answered):
    """What speculation did for one answer until now."""

    num_rounds: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int


class FunctionCall(Answered):
    """A function and its arguments, JSON as the model wrote it; or what a chunk adds to them."""

    name: str | None = None
    arguments: str


class ToolCall(Answered):
    """A call of a tool, or what a chunk adds to the one with this index."""

    index: int | None = None
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCall


class ChatMessage(Answered):
    """The message of a choice, or what a chunk adds to it.

    reasoning, reasoning_content: the same text. Clients of vLLM read the first; those of DeepSeek,
    SGLang, litellm and older versions of vLLM read the second.
    """

    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Alternative(Answered):
    """A token and how likely it was. bytes: UTF-8, perhaps of a part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogProb(Alternative):
    """A token of a chat's answer, and the likeliest at its place."""

    top_logprobs: list[Alternative]


class ChatLogProbs(Answered):
    """Log-probabilities of a chat's answer."""

    content: list[ChatLogProb]
    refusal: None = None


class CompletionLogProbs(Answered):
    """Log-probabilities of a completion, a list an aspect; nothing precedes a prompt's first token.

    text_offset: where a token begins in the text, in characters.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogProb(Answered):
    """How likely a token of a prompt was. rank: 1 is the likeliest; None if it isn't known."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogProbs: TypeAlias = list[dict[int, PromptLogProb] | None]


class Choice(Answered):
    """One answer, or what a chunk adds to it: a message in a chat, a text in a completion.

    prompt_token_ids, prompt_logprobs: of a completion; those of a chat are in its ``Completion``.
    """

    index: int
    message: ChatMessage | None = None
    delta: ChatMessage | None = None
    text: str | None = None
    logprobs: ChatLogProbs | CompletionLogProbs | None = None
    finish_reason: FinishReason | None = None
    token_details: list[TokenDetail] | None = None
    speculation: SpeculationSoFar | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogProbs | None = None


class Completion(Answered):
    """A whole answer, or a chunk of a stream. warnings: what of the guide isn't enforced."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogProbs | None = None
    usage: Usage | None = None
    metrics: RequestMetrics | None = None
    warnings: list[str] | None = None
