"""Bodies of requests: OpenAI's objects, with the fields of vLLM, llama.cpp and Tandem."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field, field_validator, model_validator

from tandem.gateway.protocol.body import Body, BodyObject
from tandem.gateway.protocol.fields import (
    INT32,
    MAX_CHOICES,
    Alternatives,
    Count,
    LogitBias,
    Penalty,
    Prompts,
    TokenIds,
    WordOrWords,
    Words,
    field_error,
    quote,
)
from tandem.gateway.protocol.messages import (
    AllowedToolChoice,
    Messages,
    NamedToolChoice,
    Parts,
    Tool,
    ToolChoice,
    Tools,
)
from tandem.gateway.protocol.structured_outputs import GuidedRequest


class StreamOptions(BodyObject):
    """Options of a stream."""

    include_usage: bool = False
    """Send the `usage` in a last chunk; it is null in all others."""
    continuous_usage_stats: bool = False
    """Send the `usage` in every chunk."""
    include_obfuscation: bool = False
    """Accepted without effect."""


class PredictedOutput(BodyObject):
    """The output that a client expects."""

    type: Literal["content"]
    """Must be `content`."""
    content: Parts
    """The text, as a string or as a list of `text` parts."""


class GenerationRequest(GuidedRequest):
    """The fields that chats and completions share.

    Fields from `top_k` on aren't OpenAI's. `prompt_logprobs` and the fields after it are vLLM's.
    Fields without a description mean the same as the entries' inputs of the same name.
    """

    prompt_field: ClassVar = "prompt"
    default_max_tokens: ClassVar[int | None] = None

    model: str | None = None
    """An entry of `/v1/models` (default: the stream entry)."""
    max_tokens: Count | None = None
    """Maximum length of the output (default: chats: as many as fit; completions: 16)."""
    temperature: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """0 to 1000; 0 is greedy."""
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    """0 to 1; 0 is greedy."""
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    """Outputs per prompt; prompts x `n` is at most 128."""
    stop: WordOrWords = []
    """A string or a list; the output ends before it."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    """A 64-bit integer (default: drawn per choice)."""
    presence_penalty: Penalty | None = None
    """-2 to 2 (default: 0)."""
    frequency_penalty: Penalty | None = None
    """-2 to 2 (default: 0)."""
    logit_bias: LogitBias = {}
    """Bias by token id, -100 to 100."""
    stream: bool = False
    """Send server-sent events."""
    stream_options: StreamOptions | None = None
    """See below."""

    top_k: Annotated[int, Field(ge=-1, le=INT32)] = 0
    """Sample from this many most likely tokens; -1 and 0: all."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    min_tokens: Annotated[int, Field(ge=0, le=INT32)] = 0
    repetition_penalty: Annotated[float, Field(gt=0, le=1000)] | None = None
    ignore_eos: bool = False
    """Keep generating past end-of-sequence tokens."""
    bad_words: Words = []
    drafter: str | None = None
    num_draft_tokens: Annotated[int, Field(ge=0, le=INT32)] | Literal["auto"] | None = None
    """Maximum draft tokens per round, or `auto`; 0: none (default: the profile's)."""
    draft_ahead: bool | Literal["auto"] | None = None
    """Draft during verification: `auto`, true or false (default: the profile's)."""
    prompt_lookup_num_tokens: Count | None = None
    max_matching_ngram_size: Count | None = None
    lookup_pool: str | None = None
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    prediction: PredictedOutput | None = None
    """The expected output; see below (default: none)."""
    use_draft_logits: bool | None = None
    draft_acceptance_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    return_token_details: bool = False
    """Return the origin of each token."""
    prompt_logprobs: Alternatives | None = None
    """Log-probabilities of the prompt with 0 to 20 alternatives; not in streams (default: none)."""
    cache_salt: Annotated[str, Field(min_length=1)] | None = None
    return_token_ids: bool = False
    """Return token ids."""
    return_tokens_as_token_ids: bool = False
    """Name tokens `token_id:N` in log-probabilities."""

    @field_validator("response_format", mode="before")
    @classmethod
    def _schema_without_a_name(cls, value: Any) -> Any:
        """Accept llama.cpp's form, with the schema directly in `response_format`."""
        if not isinstance(value, dict) or value.get("type") not in ("json_object", "json_schema"):
            return value
        rest = {name: item for name, item in value.items() if name != "schema"}
        if value.get("schema") is None or rest.get("json_schema") is not None:
            return value
        return rest | {"type": "json_schema", "json_schema": {"schema": value["schema"]}}

    @model_validator(mode="after")
    def _stream_fields_agree(self) -> GenerationRequest:
        if self.prompt_logprobs is not None and self.stream:
            raise field_error("prompt_logprobs", "prompt_logprobs needs stream to be false")
        if self.stream_options is not None and not self.stream:
            raise field_error("stream_options", "stream_options needs stream to be true")
        return self

    @property
    def limit(self) -> int | None:
        return self.max_tokens

    @property
    def limit_field(self) -> str:
        return "max_tokens"

    @property
    def num_alternatives(self) -> int | None:
        """The number of most likely tokens to report per token; None: no log-probabilities."""
        return None

    @property
    def echoes(self) -> bool:
        return False


class CompletionRequest(GenerationRequest):
    """A body of /v1/completions."""

    default_max_tokens: ClassVar[int | None] = 16  # OpenAI's and vLLM's

    prompt: Prompts
    """A string, token ids, or a list of either."""
    max_tokens: Annotated[int, Field(ge=0, le=INT32)] | None = None
    """Maximum length of the output; 0 with `echo`: the prompt alone (default: 16)."""
    echo: bool = False
    """Start the output with the prompt, log-probabilities included."""
    logprobs: Alternatives | None = None
    """Log-probabilities with 0 to 20 alternatives (default: none)."""

    @field_validator("logprobs", mode="before")
    @classmethod
    def _false_is_none(cls, value: Any) -> Any:
        return None if value is False else value

    @model_validator(mode="after")
    def _prompt_and_length_are_set(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise field_error(
                "max_tokens", "max_tokens must be at least 1 unless echo is true; got 0"
            )
        if not self.prompt or not all(self.prompts):
            raise field_error("prompt", "prompt is empty; send at least one character or token")
        return self

    @property
    def num_alternatives(self) -> int | None:
        return self.logprobs

    @property
    def echoes(self) -> bool:
        return self.echo

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        one = isinstance(self.prompt[0], int)
        return cast("list[str] | list[list[int]]", [self.prompt] if one else self.prompt)


class TemplateRequest(Body):
    """Fields that affect the chat template."""

    tools: Tools = []
    """Functions that the model may call."""
    add_generation_prompt: bool | None = None
    """Whether the prompt ends with the start of a reply (default: true, unless
    `continue_final_message`)."""
    continue_final_message: bool = False
    """Continue the last message."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    """`none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max` (default: the template's)."""
    verbosity: Literal["low", "medium", "high"] | None = None
    """`low`, `medium` or `high` (default: the template's)."""
    chat_template_kwargs: dict[str, Any] = {}
    """More variables of the chat template."""

    @model_validator(mode="after")
    def _prompt_ends_in_one_way(self) -> TemplateRequest:
        if self.continue_final_message and self.add_generation_prompt:
            message = "set add_generation_prompt or continue_final_message, not both"
            raise field_error("add_generation_prompt", message)
        if self.continue_final_message:
            self.add_generation_prompt = False
        return self

    @property
    def template_variables(self) -> dict[str, Any]:
        """Variables for the chat template.

        As in vLLM, reasoning_effort sets `enable_thinking`, for models that have only this switch.
        """
        effort = self.reasoning_effort
        fields = {
            "add_generation_prompt": self.add_generation_prompt,
            "reasoning_effort": effort,
            "verbosity": self.verbosity,
            "tools": [tool.for_template for tool in self.tools] or None,
        }
        return {
            **({} if effort is None else {"enable_thinking": effort != "none"}),
            **self.chat_template_kwargs,
            **{name: value for name, value in fields.items() if value is not None},
        }


class ChatRequest(GenerationRequest, TemplateRequest):
    """A body of /v1/chat/completions."""

    prompt_field = "messages"

    messages: Annotated[Messages, Field(min_length=1)]
    """The conversation."""
    tool_choice: ToolChoice = "auto"
    """Whether and which tools are called."""
    parallel_tool_calls: bool = True
    """Allow more than one call."""
    max_completion_tokens: Count | None = None
    """Like `max_tokens`, and takes precedence (default: as many as fit)."""
    logprobs: bool = False
    """Return log-probabilities."""
    top_logprobs: Alternatives = 0
    """Alternatives per token, 0 to 20."""
    echo: bool = False
    """Start the output with the last message if that is the assistant's or is continued."""

    @property
    def echoed(self) -> str:
        last = self.messages[-1]
        continued = self.add_generation_prompt is False or last.role == "assistant"
        return last.text if self.echo and continued else ""

    @property
    def callable_tools(self) -> list[Tool]:
        """The tools that the model may call: all tools, or the one that is named."""
        if not isinstance(self.tool_choice, NamedToolChoice):
            return self.tools
        name = self.tool_choice.function.name
        return [tool for tool in self.tools if tool.function.name == name]

    @property
    def must_call(self) -> bool:
        return self.tool_choice not in ("auto", "none")

    @property
    def one_call(self) -> bool:
        return not self.parallel_tool_calls or isinstance(self.tool_choice, NamedToolChoice)

    @model_validator(mode="after")
    def _fields_agree(self) -> ChatRequest:
        if self.tool_choice == "none":
            self.tools = []
        elif isinstance(self.tool_choice, AllowedToolChoice):
            allowed = self.tool_choice.allowed_tools
            names = {tool.function.name for tool in allowed.tools}
            if absent := names - {tool.function.name for tool in self.tools}:
                name = quote(min(absent))
                raise field_error(
                    "tool_choice", f"tool_choice names '{name}', which isn't in tools"
                )
            self.tools = [tool for tool in self.tools if tool.function.name in names]
            self.tool_choice = allowed.mode
        if self.must_call and not self.callable_tools:
            missing = "tool_choice needs tools"
            if isinstance(self.tool_choice, NamedToolChoice):
                name = quote(self.tool_choice.function.name)
                missing = f"tool_choice names '{name}', which isn't in tools"
            raise field_error("tool_choice", missing)
        if self.top_logprobs and not self.logprobs:
            raise field_error("top_logprobs", "top_logprobs needs logprobs to be true")
        return self

    @property
    def num_alternatives(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def limit_field(self) -> str:
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"


class TokenizeRequest(TemplateRequest):
    """A body of /tokenize, with a text or the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_text(self) -> TokenizeRequest:
        if (self.prompt is None) == (not self.messages):
            raise field_error("prompt", "set either prompt or messages")
        return self


class DetokenizeRequest(Body):
    """A body of /detokenize."""

    model: str | None = None
    tokens: TokenIds
