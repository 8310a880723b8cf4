"""Objects of responses: OpenAI's, with the fields that Tandem adds."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from tandem.contract.entry import Kind

FinishReason = Literal["stop", "length", "tool_calls"]


class ResponseObject(BaseModel):
    """An object of a response. Fields that weren't set are omitted."""

    model_config = ConfigDict(extra="forbid")

    def json_bytes(self) -> bytes:
        return self.model_dump_json(exclude_unset=True).encode()


class PromptTokensDetails(ResponseObject):
    """Number of prompt tokens found in the target's KV cache, in whole blocks."""

    cached_tokens: int


class CompletionTokensDetails(ResponseObject):
    """Draft tokens from the request's prediction. A token that is proposed again counts again."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(ResponseObject):
    """Token counts of a request. `completion_tokens` doesn't include the end-of-sequence token."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class SpeculativeDecoding(ResponseObject):
    """A request's statistics of speculation, with vLLM's names."""

    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    draft_acceptance_rate: float
    mean_acceptance_length: float
    acceptance_histogram: list[int]


class RequestMetrics(ResponseObject):
    """Statistics of a request."""

    speculative_decoding: SpeculativeDecoding


class TokenDetail(ResponseObject):
    """The origin of a token of an answer.

    text: the text that the token adds; empty if a later token completes the character. round:
    starts at 1; 0 for tokens that a guide forced before the first round. kind: `unknown` if the
    engine drafts by itself.
    """

    id: int
    text: str
    round: int
    kind: Kind


class SpeculationSoFar(ResponseObject):
    """Statistics of speculation for one answer so far."""

    num_rounds: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int


class FunctionCall(ResponseObject):
    """A function's name and arguments (JSON text as the model wrote it), or a chunk of them."""

    name: str | None = None
    arguments: str


class ToolCall(ResponseObject):
    """A tool call, or a chunk of the call with this index."""

    index: int | None = None
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCall


class ChatMessage(ResponseObject):
    """The message of a choice, or a chunk of it.

    reasoning, reasoning_content: the same text. vLLM's clients read the first. Clients of DeepSeek,
    SGLang, LiteLLM and older versions of vLLM read the second.
    """

    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Alternative(ResponseObject):
    """A token and its log-probability. bytes: its UTF-8, possibly only part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogProb(Alternative):
    """A token of a chat's answer, and the most likely tokens at its position."""

    top_logprobs: list[Alternative]


class ChatLogProbs(ResponseObject):
    """Log-probabilities of a chat's answer."""

    content: list[ChatLogProb]
    refusal: None = None


class CompletionLogProbs(ResponseObject):
    """Log-probabilities of a completion; None for the first token of an echoed prompt.

    text_offset: start of each token in the text, in characters.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogProb(ResponseObject):
    """A token of a prompt. rank: 1 for the most likely token; None if the rank is unknown."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogProbs: TypeAlias = list[dict[int, PromptLogProb] | None]


class Choice(ResponseObject):
    """One answer or a chunk of it: a message in a chat, a text in a completion.

    prompt_token_ids, prompt_logprobs: only for completions; chats have them in `Completion`.
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


class Completion(ResponseObject):
    """A complete response, or a chunk of a stream. warnings: unenforced parts of the guide."""

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
