"""The base of a profile's part for an engine, and the plan that it makes."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from tandem.bls.settings import LogitsType
from tandem.contract import model_parameters
from tandem.contract.capabilities import Capabilities
from tandem.contract.engine import EXCLUDE_INPUT_IN_OUTPUT
from tandem.engines.errors import LoadError
from tandem.engines.load import KIND
from tandem.tools.errors import suggestion
from tandem.tools.profiles.checkpoint import Checkpoint, CheckpointError

KeyPath = tuple[str | int, ...]


class ProfileError(Exception):
    """A well-formed profile that cannot be served: the key path, and how to fix it."""

    def __init__(self, key_path: KeyPath, text: str) -> None:
        super().__init__(text)
        self.key_path = key_path


@contextmanager
def located(*key_path: str | int) -> Iterator[None]:
    """Raise errors of a checkpoint or of an engine's settings as a ProfileError."""
    try:
        yield
    except (CheckpointError, LoadError) as error:
        raise ProfileError(key_path, str(error)) from error


def resolve(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return value
    return Path(os.path.normpath((info.context or Path()) / Path(value).expanduser()))


def as_tuple(value: Any) -> Any:
    """Read a YAML list as a tuple, because sections are frozen."""
    return tuple(value) if isinstance(value, list) else value


Folder = Annotated[Path, BeforeValidator(resolve)]


class ConfigSection(BaseModel):
    """A part of a profile; an unknown key is an error that names the nearest one."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _know_every_key(cls, given: Any) -> Any:
        for key in given if isinstance(given, dict) else ():
            if key not in cls.model_fields:
                hint = suggestion(str(key), cls.model_fields)
                raise PydanticCustomError(
                    "unknown_key", "unknown key; {hint}", {"key": key, "hint": hint}
                )
        return given


@dataclass(frozen=True)
class EnginePlan:
    """The facts about an engine that the rest of a deployment needs.

    parameters: of its model. files: subfolder of its version folder -> the files in it.
    vocab_size: width of its logits, padding included. kv_cache_tokens: what its KV cache holds.
    end_ids: every token that ends an answer, the one that engines get first; may be empty.
    excludes_input: its answers hold new tokens only. logits_dtype: Triton's name of it.
    fast_logits: it takes a handle to the draft's logits instead of these. decoupled: it may stream.
    lora_adapters: the names of its adapters, in the order of their numbers.
    """

    capabilities: Capabilities
    parameters: Mapping[str, str]
    vocab_size: int
    max_seq_len: int
    kv_cache_tokens: int
    kv_block_tokens: int
    max_draft_len: int = 0
    end_ids: tuple[int, ...] = ()
    pad_id: int | None = None
    excludes_input: bool = True
    logits_dtype: LogitsType = "FP32"
    fast_logits: bool = False
    decoupled: bool = False
    backend: str = "python"
    files: Mapping[str, list[Path]] = field(default_factory=dict)
    lora_adapters: tuple[str, ...] = ()


class EngineSection(ConfigSection):
    """A profile's part for one engine."""

    decoupled: bool = False
    """Let clients stream from the engine directly; the loop never does, and is faster without."""

    @property
    @abstractmethod
    def tokenizer_folder(self) -> Path | None:
        """The checkpoint folder that may hold the engine's own tokenizer."""

    @property
    @abstractmethod
    def devices(self) -> frozenset[str]:
        """Names of its devices: engines with one in common slow each other down."""

    @abstractmethod
    def plan(self, key_path: KeyPath) -> EnginePlan:
        """Check the part against the files on disk; raise ProfileError with its key path."""

    def check_weights(self, key_path: KeyPath) -> None:
        """Raise ProfileError if the weights to serve are missing; not every engine has any."""

    def adjusted_to_draft(self, draft: EnginePlan, planned: EnginePlan) -> EnginePlan:  # noqa: ARG002
        return planned


class OwnEngineSection(EngineSection):
    """A profile's part for an engine of ours."""

    exclude_input_in_output: bool = True
    """Omit the input from the output, for clients that call the engine directly."""

    def plan_of(self, kind: str, settings: Any, **facts: Any) -> EnginePlan:
        """Return the plan of an engine with these settings; facts: what they don't say."""
        return EnginePlan(
            parameters={
                KIND: kind,
                EXCLUDE_INPUT_IN_OUTPUT: json.dumps(self.exclude_input_in_output),
                **model_parameters.encode(settings),
            },
            excludes_input=self.exclude_input_in_output,
            max_seq_len=settings.max_seq_len,
            kv_cache_tokens=settings.kv_cache_tokens,
            kv_block_tokens=settings.kv_block_tokens,
            decoupled=self.decoupled,
            **facts,
        )


def sequence_length(
    wanted: int | None, checkpoint: Checkpoint, key_path: KeyPath, *, most: int
) -> int:
    """Return max_seq_len: the wanted one, or what the checkpoint allows, up to ``most``.

    Raises ProfileError if the checkpoint has fewer positions.
    """
    reach = checkpoint.max_positions
    length = wanted or min(reach or most, most)
    if reach is not None and length > reach:
        raise ProfileError(
            (*key_path, "max_seq_len"),
            f"must be at most {reach}, the positions of {checkpoint.folder}; got {length}",
        )
    return length


def check_kv_cache(tokens: int, max_seq_len: int, *key_path: str | int) -> None:
    """Reject a KV cache that is smaller than one sequence."""
    if tokens < max_seq_len:
        raise ProfileError(
            key_path, f"must be at least {max_seq_len}, one sequence of max_seq_len; got {tokens}"
        )
