"""The base of every engine's section of a profile, and the plan that a section makes."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

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

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

KeyPath = tuple[str | int, ...]
Settings = TypeVar("Settings", bound="DataclassInstance")


class ProfileError(Exception):
    """A well-formed profile that can't be served. Has the key path and how to fix the error."""

    def __init__(self, key_path: KeyPath, text: str) -> None:
        super().__init__(text)
        self.key_path = key_path


@contextmanager
def located(*key_path: str | int) -> Iterator[None]:
    """Convert errors of a checkpoint or an engine's settings to a ProfileError at a key path."""
    try:
        yield
    except (CheckpointError, LoadError) as error:
        raise ProfileError(key_path, str(error)) from error


def resolve(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return value
    return Path(os.path.normpath((info.context or Path()) / Path(value).expanduser()))


def as_tuple(value: Any) -> Any:
    """Convert a YAML list into a tuple, because sections are frozen."""
    return tuple(value) if isinstance(value, list) else value


Folder = Annotated[Path, BeforeValidator(resolve)]


class ConfigSection(BaseModel):
    """A section of a profile. The error for an unknown key suggests the closest known key."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

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

    parameters: parameters of the engine's Triton model. vocab_size: width of the logits, including
    padding. kv_cache_tokens: size of the KV cache. kv_block_tokens: tokens per block of the KV
    cache. max_draft_len: the longest draft in tokens that the engine verifies. end_ids: ids of the
    tokens that end an answer, may be empty; engines get the first one. excludes_input: the engine's
    output omits the input. logits_dtype: Triton's name of the type. decoupled: clients can stream
    from the engine. files: subfolder of the version folder -> the files in it. lora_adapters: the
    names of the LoRA adapters, ordered by their numbers. client_adapters: clients may send their
    own LoRA adapters. loop_files: like `files`, but for the loop's model.
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
    decoupled: bool = False
    backend: str = "python"
    files: Mapping[str, list[Path]] = field(default_factory=dict)
    lora_adapters: tuple[str, ...] = ()
    client_adapters: bool = False
    loop_files: Mapping[str, list[Path]] = field(default_factory=dict)


class EngineSection(ConfigSection):
    """A profile's section for one engine."""

    decoupled: bool = False
    """Let clients stream from the engine directly. Slows down the loop."""

    @property
    @abstractmethod
    def tokenizer_folder(self) -> Path | None:
        """The folder that may contain the engine's tokenizer: its checkpoint."""

    @property
    @abstractmethod
    def devices(self) -> frozenset[str]:
        """Names of the engine's devices. Engines that share a device slow each other down."""

    @abstractmethod
    def plan(self, key_path: KeyPath) -> EnginePlan:
        """Check the section against the files on disk, and return the engine's plan.

        key_path: the section's key path, for errors. Raises ProfileError.
        """

    def check_weights(self, key_path: KeyPath) -> None:
        """Raise ProfileError if weights are missing. By default, an engine has no weights."""


class OwnEngineSection(EngineSection):
    """A profile's section for an engine that Tandem implements."""

    exclude_input_in_output: bool = True
    """Omit the input from the output in direct calls to the engine."""

    def settings_of(self, kind: type[Settings], **decided: Any) -> Settings:
        """Return an engine's settings.

        kind: a dataclass. Its fields are copied from the section's fields of the same names, except
        the fields in ``decided``.
        """
        copied = {field.name for field in fields(kind)} - decided.keys()
        return kind(**self.model_dump(include=copied), **decided)

    def plan_of(self, kind: str, settings: Any, **facts: Any) -> EnginePlan:
        """Return the plan of an engine with these settings.

        kind: the module in `engines`. facts: the fields of the plan that aren't settings.
        """
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
    """Return max_seq_len in tokens.

    wanted: the profile's value, or None for the checkpoint's maximum, up to ``most``. Raises
    ProfileError if the checkpoint has fewer positions than ``wanted``.
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
    """Raise ProfileError if the KV cache can't hold one sequence of max_seq_len tokens."""
    if tokens < max_seq_len:
        raise ProfileError(key_path, f"must be at least max_seq_len ({max_seq_len}); got {tokens}")
