"""The models that a Triton server offers, read from their configurations."""

from __future__ import annotations

import hashlib
import time
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from importlib import metadata
from typing import Any, Literal

from tandem.contract.model_parameters import decode
from tandem.gateway.errors import ApiError, bad_request
from tandem.gateway.protocol.fields import quote
from tandem.gateway.protocol.requests import GenerationRequest

# OpenAI's errors begin with these words, which clients use to detect that they must shorten a
# prompt.
CONTEXT_LENGTH = "this model's maximum context length is"

MIN_TOKENS = 1  # entries reject 0; the gateway drops the token if the client asked for 0

VERSION = metadata.version("tandem-triton")


@dataclass(frozen=True)
class TargetCapabilities:
    """Capabilities of the target engine that matter to the gateway."""

    cache_salt: bool = False


@dataclass(frozen=True)
class TargetFacts:
    """Settings of the target engine. Lengths are in tokens."""

    vocab_size: int
    max_seq_len: int
    max_draft_len: int
    lora_adapters: tuple[str, ...] = ()
    capabilities: TargetCapabilities = TargetCapabilities()


@dataclass(frozen=True)
class LoopFacts:
    """Settings of the model that runs the loop.

    max_text_bytes: maximum size of one prompt, in bytes of UTF-8; 0: no limit. drafters: the names
    that a request may use.
    """

    target: TargetFacts
    preprocessing_model: str
    postprocessing_model: str
    max_requests: int
    max_text_bytes: int = 0
    drafters: tuple[str, ...] = ()


@dataclass(frozen=True)
class ForwarderFacts:
    """Settings of an entry that forwards requests to the loop."""

    stream_model: str
    drafter: str | None = None


@dataclass(frozen=True)
class TextFacts:
    """Whether the tokenizer adds special tokens to prompts, and whether answers omit them."""

    add_special_tokens: bool = True
    skip_special_tokens: bool = True


@dataclass(frozen=True)
class ServedModel:
    """An entry or a LoRA adapter that clients may name.

    drafter: default drafter for requests; None: the loop's. lora_name: the adapter; None: no
    adapter.
    """

    name: str
    drafter: str | None = None
    lora_name: str | None = None


@dataclass(frozen=True)
class ServedModels:
    """The entries of one Triton server, the one with the loop first, and their shared settings."""

    models: tuple[ServedModel, ...]
    loop: LoopFacts
    add_special_tokens: bool
    skip_special_tokens: bool
    created: int = field(default_factory=lambda: int(time.time()))  # when the server was queried

    @cached_property
    def fingerprint(self) -> str:
        """A name for this version and deployment. It changes whenever answers may change."""
        facts = (self.models, self.loop, self.add_special_tokens, self.skip_special_tokens)
        return (
            f"tandem-{VERSION}-{hashlib.blake2b(repr(facts).encode(), digest_size=4).hexdigest()}"
        )

    @property
    def stream_model(self) -> str:
        """The name of the entry with the loop."""
        return self.models[0].name

    @property
    def max_model_len(self) -> int:
        """The maximum number of tokens in a prompt and its answer together."""
        return self.loop.target.max_seq_len - self.loop.target.max_draft_len

    def check_text(self, text: str, field: str) -> None:
        """Reject a prompt that is too long for the entries before it is tokenized."""
        size, limit = len(text.encode()), self.loop.max_text_bytes
        if 0 < limit < size:
            raise ApiError(
                HTTPStatus.BAD_REQUEST,
                f"{CONTEXT_LENGTH} {self.max_model_len} tokens; the prompt has {size} bytes, "
                f"and the limit is {limit}",
                param=field,
                code="context_length_exceeded",
                anthropic=f"prompt is too long: {size} bytes > {limit} maximum",
            )

    def max_tokens(self, request: GenerationRequest, length: int) -> int:
        """Return the maximum number of tokens in an answer. Raises ApiError if no answer fits.

        length: number of tokens in the prompt.
        """
        limit, left = request.limit, self.max_model_len - length
        if left < 1 or (limit or 0) > left:
            needed = f"the prompt has {length}, which leaves no room for an answer"
            if limit == 0:
                needed = f"the prompt has {length}, and max_tokens 0 needs room for one token"
            if limit:
                total = length + limit
                needed = f"the request needs {total}: {length} for the prompt, {limit} new"
            # Claude Code looks for these words, and then retries with fewer tokens or compacts.
            words = f"prompt is too long: {length} tokens > {self.max_model_len} maximum"
            if left > 0:
                sizes = f"{length} + {limit} > {self.max_model_len}"
                words = f"input length and `max_tokens` exceed context limit: {sizes}"
            raise ApiError(
                HTTPStatus.BAD_REQUEST,
                f"{CONTEXT_LENGTH} {self.max_model_len} tokens; {needed}",
                param=request.limit_field if left > 0 else request.prompt_field,
                code="context_length_exceeded",
                anthropic=words,
            )
        if limit is None:
            return min(left, request.default_max_tokens or left)
        return max(limit, MIN_TOKENS)

    def check_draft_length(self, length: int | Literal["auto"] | None) -> None:
        """Reject a draft length that the entries would reject. "auto" is sent to them as -1."""
        limit = self.loop.target.max_draft_len
        if isinstance(length, int) and 0 < limit < length:
            raise bad_request(
                f"num_draft_tokens must be between 0 and {limit}, or 'auto'; got {length}",
                param="num_draft_tokens",
            )

    def describe(self, model: ServedModel, target: str) -> dict[str, Any]:
        """Return an item of /v1/models. target: name of the target."""
        described = {
            "id": model.name,
            "object": "model",
            "created": self.created,
            "owned_by": "tandem",
            "root": target,
            "max_model_len": self.max_model_len,
            "drafters": list(self.loop.drafters),
        }
        if model.lora_name:
            described["parent"] = self.stream_model
        return described

    def find(self, name: str | None) -> ServedModel:
        """Return the entry with this name (None: the first). Raises ApiError if there is none."""
        if name is None:
            return self.models[0]
        for model in self.models:
            if model.name == name:
                return model
        known = ", ".join(model.name for model in self.models)
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            f"model '{quote(name)}' isn't served; choose one of: {known}",
            param="model",
            code="model_not_found",
        )


def served_models(configs: Iterable[Mapping[str, Any]]) -> ServedModels:
    """Read the configurations of all models of a server. Raises ApiError if none has a loop."""
    by_name = {config["name"]: config for config in configs}
    loops = [
        name
        for name, config in by_name.items()
        if "preprocessing_model" in config.get("parameters", {})
    ]
    if len(loops) != 1:
        raise ApiError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"Triton must serve one model with Tandem's loop; it serves {len(loops)}",
            code="not_configured",
        )
    stream = loops[0]
    loop = decode(LoopFacts, by_name[stream], ignore_unknown=True)
    forwarders = {
        name: decode(ForwarderFacts, config, ignore_unknown=True)
        for name, config in sorted(by_name.items())
        if "stream_model" in config.get("parameters", {})
    }
    text_models = [loop.preprocessing_model, loop.postprocessing_model]
    parameters = ChainMap(*(by_name.get(name, {}).get("parameters", {}) for name in text_models))
    text = decode(TextFacts, {"parameters": parameters}, ignore_unknown=True)
    return ServedModels(
        models=(
            ServedModel(stream),
            *(
                ServedModel(name, facts.drafter)
                for name, facts in forwarders.items()
                if facts.stream_model == stream
            ),
            *(ServedModel(name, lora_name=name) for name in loop.target.lora_adapters),
        ),
        loop=loop,
        add_special_tokens=text.add_special_tokens,
        skip_special_tokens=text.skip_special_tokens,
    )
