"""What clients send: OpenAI's objects, and the fields that Tandem adds."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import (
    BaseModel,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    Tag,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from tandem.gateway import fields

MOST_CHOICES = 128
MOST_MESSAGES = 10_000
MOST_PARTS = 10_000  # of one message
MOST_TOOLS = 128
INT32 = 2**31 - 1
UNSPOKEN = ("function_call", "audio")  # of a message

Count = Annotated[int, Field(ge=1, le=INT32)]
TokenId = Annotated[int, Field(ge=0, le=INT32)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
Alternatives = Annotated[int, Field(ge=0, le=20)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]


class UpToFirstFault(NamedTuple):
    """Has a list read no further than its first fault, and at most so many items.

    Bodies are read in the event loop, where all streams wait for it, and pydantic would keep a
    complaint about each of millions of items. Its own FailFast has no hash, which a union needs.
    """

    max_length: int | None = None

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the list's schema with what is asked here."""
        schema: dict[str, Any] = {**handler(source), "fail_fast": True}
        assert schema["type"] == "list"
        if self.max_length is not None:
            schema["max_length"] = self.max_length
        return cast(CoreSchema, schema)


def _entry_by_entry(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Have an object read no further than its first fault."""
    if not isinstance(value, dict):
        return check(value)
    entries: dict[Any, Any] = {}
    for name, item in value.items():
        entries |= check({name: item})
    return entries


# Where a field takes several kinds, its first item says which: each kind would be tried on all.
Texts = Annotated[list[str], UpToFirstFault()]
TokenIds = Annotated[list[TokenId], UpToFirstFault()]


def _text_or_list(value: Any) -> str:
    return "list[]" if isinstance(value, list) else "str"


def _kind_of_prompt(value: Any) -> str:
    """Tell by the first item what a prompt is; an error's path leaves such names out."""
    if not isinstance(value, list):
        return "str"
    if not value or isinstance(value[0], str):
        return "list[str]"
    return "list[list[int]]" if isinstance(value[0], list) else "list[int]"


TextOrTexts = Annotated[
    Annotated[str, Tag("str")] | Annotated[Texts, Tag("list[]")], Discriminator(_text_or_list)
]
Prompts = Annotated[
    Annotated[str, Tag("str")]
    | Annotated[list[str], UpToFirstFault(MOST_CHOICES), Tag("list[str]")]
    | Annotated[TokenIds, Tag("list[int]")]
    | Annotated[list[TokenIds], UpToFirstFault(MOST_CHOICES), Tag("list[list[int]]")],
    Discriminator(_kind_of_prompt),
]


class Body(BaseModel):
    """A request's body. Unknown fields are refused by name; some known ones are ignored."""

    @model_validator(mode="before")
    @classmethod
    def _only_known_fields(cls, data: Any) -> Any:
        return fields.accepted(data, cls.model_fields) if isinstance(data, dict) else data


class StreamOptions(BaseModel):
    """What a stream sends in addition to the text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationRequest(Body):
    """What a chat and a completion have in common.

    temperature: 0 is greedy. max_tokens: as many as fit when left out. The fields from ``top_k`` on
    are not OpenAI's. top_k: -1 and 0 leave the distribution whole. num_draft_tokens: 0 turns drafts
    off. return_token_details: send each token's round and kind.
    """

    model: str | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=1000)] = 1.0
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] = 1
    stop: TextOrTexts = []
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[TokenId, Bias], WrapValidator(_entry_by_entry)] = {}
    stream: bool = False
    stream_options: StreamOptions | None = None

    top_k: Annotated[int, Field(ge=-1, le=INT32)] = 0
    min_tokens: Annotated[int, Field(ge=0, le=INT32)] = 0
    repetition_penalty: Annotated[float, Field(gt=0, le=1000)] | None = None
    ignore_eos: bool = False
    bad_words: Texts = []
    drafter: str | None = None
    num_draft_tokens: Annotated[int, Field(ge=0, le=INT32)] | Literal["auto"] | None = None
    draft_ahead: bool | Literal["auto"] | None = None
    prompt_lookup_num_tokens: Count | None = None
    max_matching_ngram_size: Count | None = None
    use_draft_logits: bool | None = None
    draft_acceptance_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    return_token_details: bool = False

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise _wrong("stream_options", "stream_options needs stream to be true")
        return self

    @property
    def stop_strings(self) -> list[str]:
        """What ends an answer when it is said."""
        strings = [self.stop] if isinstance(self.stop, str) else self.stop
        return [string for string in strings if string]

    @property
    def limit(self) -> int | None:
        """The most tokens that an answer may have; None is as many as fit."""
        return self.max_tokens

    @property
    def num_alternatives(self) -> int | None:
        """How many of the likeliest tokens are told beside each; None: no log-probabilities."""
        return None

    @property
    def echoes(self) -> bool:
        """Whether the answer begins with its prompt."""
        return False

    @property
    def streams_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def streams_usage_always(self) -> bool:
        """Whether every chunk of a stream has the usage so far."""
        return self.streams_usage and bool(
            self.stream_options and self.stream_options.continuous_usage_stats
        )


class CompletionRequest(GenerationRequest):
    """A body of /v1/completions.

    logprobs: how many alternatives are told of each token, 0 for its own log-probability alone.
    max_tokens: 0 with echo: the prompt alone.
    """

    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=0, le=INT32)] | None = None
    echo: bool = False
    logprobs: Alternatives | None = None

    @field_validator("logprobs", mode="before")
    @classmethod
    def _false_is_none(cls, value: Any) -> Any:
        return None if value is False else value

    @model_validator(mode="after")
    def _something_is_asked_for(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise _wrong("max_tokens", "max_tokens: 0 needs echo to be true")
        return self

    @model_validator(mode="after")
    def _prompt_is_there(self) -> CompletionRequest:
        if not self.prompt or not all(self.prompts):
            raise _wrong("prompt", "prompt is empty; send at least one character or token")
        return self

    @property
    def num_alternatives(self) -> int | None:
        """How many of the likeliest tokens are told beside each; None: no log-probabilities."""
        return self.logprobs

    @property
    def echoes(self) -> bool:
        """Whether the answer begins with its prompt."""
        return self.echo

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts as a list, each a text or its token ids."""
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return cast("list[str] | list[list[int]]", [self.prompt] if one else self.prompt)


class TextPart(BaseModel):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


Parts = Annotated[list[TextPart], UpToFirstFault(MOST_PARTS)]


class FunctionCalled(BaseModel):
    """A function and its arguments, as JSON."""

    name: str
    arguments: str = "{}"


class ToolCalled(BaseModel):
    """A call that an assistant made."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCalled

    @property
    def plain(self) -> dict[str, Any]:
        """What a template sees of it: templates write arguments themselves, and read no JSON."""
        plain = self.model_dump(exclude_none=True)
        with suppress(ValueError, RecursionError):
            plain["function"]["arguments"] = json.loads(self.function.arguments)
        return plain


ToolsCalled = Annotated[list[ToolCalled], UpToFirstFault(MOST_TOOLS)]


class Message(BaseModel):
    """A message of a chat. Fields that are not named here say nothing to a template."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        Annotated[str, Tag("str")] | Annotated[Parts, Tag("list[]")],
        Discriminator(_text_or_list),
    ]
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: ToolsCalled | None = None
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_text_or_calls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name in UNSPOKEN:
            if data.get(name):
                raise _wrong("messages", f"messages: '{name}' is not supported; send text")
        if data.get("tool_calls") and data.get("content") is None:
            return data | {"content": ""}
        return data

    @property
    def text(self) -> str:
        """The content as one text; parts are joined by line ends, as vLLM joins them."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content)

    @property
    def plain(self) -> dict[str, Any]:
        """What a template sees of it."""
        plain = self.model_dump(exclude={"content", "tool_calls"}, exclude_none=True)
        if self.tool_calls:
            plain["tool_calls"] = [call.plain for call in self.tool_calls]
        return plain | {"content": self.text}


Messages = Annotated[list[Message], UpToFirstFault(MOST_MESSAGES)]


class Function(BaseModel):
    """A function that a model may call. parameters: their JSON schema."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @field_validator("strict")
    @classmethod
    def _not_strict(cls, value: bool | None) -> bool | None:
        if value:
            raise _wrong("tools", "strict needs guided decoding, which is not supported")
        return None


class Tool(BaseModel):
    """A tool that a model may call."""

    type: Literal["function"]
    function: Function

    @property
    def plain(self) -> dict[str, Any]:
        """What a template sees of it."""
        return self.model_dump(exclude_none=True)


Tools = Annotated[list[Tool], UpToFirstFault(MOST_TOOLS)]


class ChatRequest(GenerationRequest):
    """A body of /v1/chat/completions.

    tool_choice: ``auto`` leaves it to the model whether it calls tools; ``none`` hides them.
    """

    messages: Annotated[Messages, Field(min_length=1)]
    tools: Tools = []
    tool_choice: Literal["auto", "none"] = "auto"
    parallel_tool_calls: bool = True
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Alternatives = 0
    chat_template_kwargs: dict[str, Any] = {}

    @field_validator("tool_choice", mode="before")
    @classmethod
    def _nothing_is_forced(cls, value: Any) -> Any:
        if value == "required" or isinstance(value, dict):
            message = "tool_choice: to force a call needs guided decoding, which is not supported"
            raise _wrong("tool_choice", f"{message}; send auto or none")
        return value

    @property
    def offered(self) -> list[Tool]:
        """The tools that the model may call."""
        return [] if self.tool_choice == "none" else self.tools

    @model_validator(mode="after")
    def _one_limit(self) -> ChatRequest:
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise _wrong("max_tokens", "max_tokens and max_completion_tokens differ; send one")
        return self

    @model_validator(mode="after")
    def _alternatives_need_log_probs(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise _wrong("top_logprobs", "top_logprobs needs logprobs to be true")
        return self

    @property
    def num_alternatives(self) -> int | None:
        """How many of the likeliest tokens are told beside each; None: no log-probabilities."""
        return self.top_logprobs if self.logprobs else None

    @property
    def limit(self) -> int | None:
        """The most tokens that an answer may have; None is as many as fit."""
        return self.max_completion_tokens or self.max_tokens


class TokenizeRequest(Body):
    """A body of /tokenize: a text, or the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    tools: Tools = []
    chat_template_kwargs: dict[str, Any] = {}
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_text(self) -> TokenizeRequest:
        if (self.prompt is None) == (not self.messages):
            raise _wrong("prompt", "send either prompt or messages")
        return self

    @property
    def offered(self) -> list[Tool]:
        """The tools that the model may call."""
        return self.tools


class DetokenizeRequest(Body):
    """A body of /detokenize."""

    model: str | None = None
    tokens: TokenIds


def _wrong(field: str, message: str) -> PydanticCustomError:
    return PydanticCustomError("field", "{message}", {"message": message, "field": field})
