"""The base of every engine's section of a profile, and the plan that a section makes."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tandem.bls.settings import EngineSettings, LoopSettings
from tandem.contract import model_parameters
from tandem.contract.engine import EXCLUDE_INPUT_IN_OUTPUT, Capabilities
from tandem.engines.checkpoint_files import CONFIG_FILE, WEIGHTS_FILE, read_adapter_config
from tandem.engines.errors import LoadError
from tandem.engines.kinds import KIND
from tandem.tools.errors import TandemError, suggestion
from tandem.tools.profiles.checkpoint import Checkpoint, read_checkpoint

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
def locate_errors(*key_path: str | int) -> Iterator[None]:
    """Convert errors of a checkpoint or an engine's settings to a ProfileError at a key path.

    If the error is a ProfileError, prepend the key path to its own.
    """
    try:
        yield
    except ProfileError as error:
        raise ProfileError((*key_path, *error.key_path), str(error)) from error
    except (TandemError, LoadError) as error:
        raise ProfileError(key_path, str(error)) from error


def resolve(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return value
    try:
        path = Path(value).expanduser()
    except RuntimeError as error:
        raise PydanticCustomError("path", "must be in a known home folder") from error
    return Path(os.path.normpath((info.context or Path()) / path))


def as_tuple(value: Any) -> Any:
    """Convert a YAML list into a tuple, because sections are frozen."""
    return tuple(value) if isinstance(value, list) else value


Folder = Annotated[Path, BeforeValidator(resolve)]
LoraAdapters = Mapping[Annotated[str, Field(min_length=1)], Folder]


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


class LookupSection(ConfigSection):
    """Prompt lookup: copy the tokens that followed the same n-gram earlier.

    The names are TensorRT-LLM's.
    """

    prompt_lookup_num_tokens: PositiveInt = LoopSettings.prompt_lookup_num_tokens
    """Maximum draft tokens per round; no effect with `draft_len: auto`."""
    max_matching_ngram_size: PositiveInt = LoopSettings.max_matching_ngram_size
    """Longest n-gram to search for; shorter n-grams are tried next, down to 1 token."""


@dataclass(frozen=True, kw_only=True)
class EngineFacts(EngineSettings):
    """What the loop of another deployment must know about an engine, to call it there.

    model, timeout: set only for the loop. end_ids: ids of the tokens that end an answer, may be
    empty; engines get the first one. vocabulary: fingerprint of the tokens and their ids; empty if
    it isn't known yet.
    """

    model: str = ""
    timeout: float = 0.0
    end_ids: tuple[int, ...] = ()
    pad_id: int | None = None
    vocabulary: str = ""


@dataclass(frozen=True, kw_only=True)
class EnginePlan(EngineFacts):
    """The facts about an engine that the rest of a deployment needs.

    parameters: parameters of the engine's Triton model. files: subfolder of the version folder ->
    the files in it. loop_files: like `files`, but for the loop's model.
    """

    parameters: Mapping[str, str]
    backend: str = "python"
    files: Mapping[str, list[Path]] = field(default_factory=dict)
    loop_files: Mapping[str, list[Path]] = field(default_factory=dict)


class EngineSection(ConfigSection):
    """A profile's section for one engine."""

    decoupled: bool = False
    """Let clients stream from the engine directly. Slows down the loop."""

    @property
    @abstractmethod
    def tokenizer_folder(self) -> Path:
        """The folder that may contain the engine's tokenizer: its checkpoint."""

    @property
    @abstractmethod
    def devices(self) -> frozenset[str]:
        """Names of the engine's devices. Engines that share a device slow each other down."""

    @abstractmethod
    def plan(self) -> EnginePlan:
        """Check the section against the files on disk, and return the engine's plan.

        Raises ProfileError, with a key path that is relative to the section.
        """

    def check_weights(self) -> None:
        """Raise ProfileError if weights are missing. By default, an engine has no weights."""

    def check_target(self, target: EngineSection, *, use_draft_logits: bool) -> None:
        """Raise ProfileError if this draft engine is incompatible with a target.

        The key path is relative to the section `engines`.
        """


def copied_settings(section: EngineSection, kind: type[Settings], **decided: Any) -> Settings:
    """Return an engine's settings.

    kind: a dataclass. Its fields are copied from the section's fields of the same names, except
    the fields in ``decided``.
    """
    copied = {field.name for field in fields(kind)} - decided.keys()
    return kind(**section.model_dump(include=copied), **decided)


def parameters_of(settings: Any, kind: str, *, excludes_input: bool) -> dict[str, str]:
    """Return the parameters of an engine that Tandem implements. kind: the module in `engines`."""
    return {
        KIND: kind,
        EXCLUDE_INPUT_IN_OUTPUT: json.dumps(excludes_input),
        **model_parameters.encode(settings),
    }


def check_kv_cache(tokens: int, max_seq_len: int, *key_path: str | int) -> None:
    """Raise ProfileError if the KV cache can't hold one sequence of max_seq_len tokens."""
    if tokens < max_seq_len:
        raise ProfileError(key_path, f"must be at least max_seq_len ({max_seq_len}); got {tokens}")


SEQUENCES_CACHED = 16  # whole sequences in the KV cache by default


class CheckpointSection(EngineSection):
    """A profile's section for an engine that runs a Hugging Face checkpoint.

    default_max_seq_len: default of max_seq_len, unless the checkpoint has fewer positions.
    """

    default_max_seq_len: ClassVar[int] = 8192

    kind: str
    checkpoint: Folder
    max_seq_len: PositiveInt | None = None
    kv_cache_tokens: PositiveInt | None = None
    kv_block_tokens: int = 32
    lora_adapters: LoraAdapters | None = None
    """LoRA adapters: the name and PEFT folder of each. The draft's names must be among the target's
    (default: none)."""
    exclude_input_in_output: bool = True
    """Omit the input from the output in direct calls to the engine."""

    @abstractmethod
    def settings(self, checkpoint: Checkpoint, /, **decided: Any) -> Any:
        """Return the engine's settings.

        decided: max_seq_len, kv_cache_tokens and lora_adapters. Raises ProfileError or LoadError.
        """

    @abstractmethod
    def capabilities_of(self, settings: Any) -> Capabilities:
        """Return the capabilities of the engine with these settings."""

    def default_kv_cache(self, max_seq_len: int) -> int:
        """Return the default size of the KV cache in tokens."""
        return SEQUENCES_CACHED * max_seq_len

    def check_adapter(self, folder: Path) -> None:
        """Raise LoadError if the engine can't apply a LoRA adapter."""
        read_adapter_config(folder)

    @property
    def tokenizer_folder(self) -> Path:
        return self.checkpoint

    def plan(self) -> EnginePlan:
        with locate_errors("checkpoint"):
            checkpoint = read_checkpoint(self.checkpoint)
        reach = checkpoint.max_positions
        default = self.default_max_seq_len
        length = self.max_seq_len or min(reach or default, default)
        if reach is not None and length > reach:
            raise ProfileError(
                ("max_seq_len",),
                f"must be at most {reach}, the positions of {checkpoint.folder}; got {length}",
            )
        longest_draft = getattr(self, "max_draft_len", 0)  # only a target has it
        if longest_draft >= length - 1:
            raise ProfileError(
                ("max_draft_len",), f"must be less than max_seq_len {length}; got {longest_draft}"
            )
        cache = self.kv_cache_tokens or self.default_kv_cache(length)
        check_kv_cache(cache, length, "kv_cache_tokens")
        adapters = self.lora_adapters or {}
        subfolders = tuple(f"lora-{number}" for number in range(1, len(adapters) + 1))
        settings = self.settings(
            checkpoint, max_seq_len=length, kv_cache_tokens=cache, lora_adapters=subfolders
        )
        files = {}
        for subfolder, (name, folder) in zip(subfolders, adapters.items(), strict=True):
            with locate_errors("lora_adapters", name):
                self.check_adapter(folder)
            files[subfolder] = [folder / WEIGHTS_FILE, folder / CONFIG_FILE]
        capabilities = self.capabilities_of(settings)
        return EnginePlan(
            capabilities=capabilities,
            parameters=parameters_of(
                settings, self.kind, excludes_input=self.exclude_input_in_output
            ),
            excludes_input=self.exclude_input_in_output,
            vocab_size=checkpoint.vocab_size,
            max_seq_len=settings.max_seq_len,
            kv_cache_tokens=cache,
            kv_block_tokens=self.kv_block_tokens,
            max_draft_len=0 if capabilities.drafts_itself else settings.max_draft_len,
            end_ids=checkpoint.end_ids,
            pad_id=checkpoint.pad_id,
            decoupled=self.decoupled,
            files=files,
            lora_adapters=tuple(adapters),
        )
