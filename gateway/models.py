"""What a Triton serves, read from the configurations of its models."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from importlib import metadata
from typing import Any, Literal, TypeVar

from tandem.contract.model_parameters import decode
from tandem.gateway.errors import ApiError, bad_request
from tandem.gateway.protocol.fields import quoted

# How OpenAI's begin: clients tell by these words what they can shorten.
CONTEXT_LENGTH = "this model's maximum context length is"

VERSION = metadata.version("tandem-triton")

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class TargetFacts:
    """What the gateway wants to know of the target engine; lengths are tokens."""

    vocab_size: int
    max_seq_len: int
    max_draft_len: int


@dataclass(frozen=True)
class LoopFacts:
    """What the gateway wants to know of the model that holds the loop.

    max_text_bytes: of one prompt, in UTF-8; 0 leaves it open. drafters: those that a request may
    name.
    """

    target: TargetFacts
    preprocessing_model: str
    postprocessing_model: str
    max_requests: int = 64
    max_text_bytes: int = 0
    drafters: tuple[str, ...] = ()


@dataclass(frozen=True)
class ForwarderFacts:
    """What the gateway wants to know of an entry that forwards."""

    stream_model: str
    drafter: str | None = None


@dataclass(frozen=True)
class PreprocessingFacts:
    """Whether prompts get what the tokenizer adds by itself."""

    add_special_tokens: bool = True


@dataclass(frozen=True)
class PostprocessingFacts:
    """Whether special tokens leave no text in answers."""

    skip_special_tokens: bool = True


@dataclass(frozen=True)
class ServedModel:
    """An entry that clients may name. drafter: of requests that name none; None leaves it open."""

    name: str
    stream_model: str
    drafter: str | None


@dataclass(frozen=True)
class ServedModels:
    """The entries of one Triton, the one that holds the loop first, and what they share."""

    models: tuple[ServedModel, ...]
    loop: LoopFacts
    add_special_tokens: bool
    skip_special_tokens: bool
    created: int = field(default_factory=lambda: int(time.time()))  # when the server was asked

    @cached_property
    def fingerprint(self) -> str:
        """Name this version and deployment: it changes if answers may."""
        facts = (self.models, self.loop, self.add_special_tokens, self.skip_special_tokens)
        return (
            f"tandem-{VERSION}-{hashlib.blake2b(repr(facts).encode(), digest_size=4).hexdigest()}"
        )

    @property
    def room(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self.loop.target.max_seq_len - self.loop.target.max_draft_len

    def check_text(self, text: str, field: str) -> None:
        """Refuse a prompt, sent in a field, that entries would not take, before it is tokenized."""
        size, most = len(text.encode()), self.loop.max_text_bytes
        if 0 < most < size:
            raise ApiError(
                HTTPStatus.BAD_REQUEST,
                f"{CONTEXT_LENGTH} {self.room} tokens; the prompt has {size} bytes, "
                f"at most {most} are taken",
                param=field,
                code="context_length_exceeded",
            )

    def check_draft_length(self, length: int | Literal["auto"] | None) -> None:
        """Reject a draft length that entries would reject: to them "auto" is -1."""
        most = self.loop.target.max_draft_len
        if isinstance(length, int) and 0 < most < length:
            raise bad_request(
                f"num_draft_tokens: must be 0..{most} or 'auto'", param="num_draft_tokens"
            )

    def described(self, model: ServedModel) -> dict[str, Any]:
        return {
            "id": model.name,
            "object": "model",
            "created": self.created,
            "owned_by": "tandem",
            "max_model_len": self.room,
            "drafters": list(self.loop.drafters),
        }

    def named(self, name: str | None) -> ServedModel:
        """Return the entry of a name, the first one for None; raise ApiError for another name."""
        if name is None:
            return self.models[0]
        for model in self.models:
            if model.name == name:
                return model
        known = ", ".join(model.name for model in self.models)
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            f"model '{quoted(name)}' is not served; these are: {known}",
            param="model",
            code="model_not_found",
        )


def served_models(configs: Iterable[Mapping[str, Any]]) -> ServedModels:
    """Read the configurations of all models of a server; raise ApiError where there is no entry."""
    by_name = {config["name"]: config for config in configs}
    loops = [name for name, config in by_name.items() if _has(config, "preprocessing_model")]
    if len(loops) != 1:
        raise ApiError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"{len(loops)} models of this Triton hold Tandem's loop; one must",
            code="not_configured",
        )
    stream = loops[0]
    loop = _read(LoopFacts, by_name[stream])
    forwarders = {
        name: _read(ForwarderFacts, config)
        for name, config in sorted(by_name.items())
        if _has(config, "stream_model")
    }
    before = _read(PreprocessingFacts, by_name.get(loop.preprocessing_model, {}))
    behind = _read(PostprocessingFacts, by_name.get(loop.postprocessing_model, {}))
    return ServedModels(
        models=(
            ServedModel(stream, stream, None),
            *(
                ServedModel(name, stream, facts.drafter)
                for name, facts in forwarders.items()
                if facts.stream_model == stream
            ),
        ),
        loop=loop,
        add_special_tokens=before.add_special_tokens,
        skip_special_tokens=behind.skip_special_tokens,
    )


def _has(config: Mapping[str, Any], parameter: str) -> bool:
    return parameter in config.get("parameters", {})


def _read(kind: type[Kind], config: Mapping[str, Any]) -> Kind:
    return decode(kind, config, ignore_unknown=True)
