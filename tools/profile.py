"""A profile: everything that a deployment decides, in one typed YAML file."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from bls.settings import DrafterName

from .errors import TandemError

Place = tuple[str | int, ...]


def _resolve(value: Any, info: ValidationInfo) -> Any:
    """Read a path relative to the profile's folder."""
    if not isinstance(value, str):
        return value
    return Path(os.path.normpath((info.context or Path()) / Path(value).expanduser()))


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Folder = Annotated[Path, BeforeValidator(_resolve)]
ModelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


class Section(BaseModel):
    """A part of a profile; a key that it does not know is an error that names the nearest."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _know_every_key(cls, given: Any) -> Any:
        for key in given if isinstance(given, dict) else ():
            if key not in cls.model_fields:
                raise PydanticCustomError(
                    "unknown_key", "unknown key; {hint}", {"key": key, "hint": _hint(key, cls)}
                )
        return given


class TorchEngine(Section):
    """A Hugging Face checkpoint on PyTorch.

    checkpoint: its folder. max_seq_len: tokens of context, answer and draft together; what the
    checkpoint allows, at most 4096, when left out. kv_cache_tokens: cap of the KV cache; when left
    out, 16 whole sequences or what a gigabyte holds. max_batch_tokens: tokens in one forward pass.
    threads: of PyTorch; 0 is its own choice.
    """

    kind: Literal["torch"] = "torch"
    checkpoint: Folder
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    threads: NonNegativeInt = 0
    max_seq_len: PositiveInt | None = None
    kv_cache_tokens: PositiveInt | None = None
    kv_block_tokens: PositiveInt = 32
    max_batch_tokens: PositiveInt = 512


class TorchTarget(TorchEngine):
    """One that verifies drafts, of up to max_draft_len tokens."""

    max_draft_len: NonNegativeInt = 16


# Each becomes a union discriminated by `kind` as soon as there is a second kind.
Draft = TorchEngine
Target = TorchTarget


class Engines(Section):
    """What stands behind `target` and `draft`; without a draft only `none` can be the drafter."""

    target: Target
    draft: Draft | None = None


class Tokenizer(Section):
    """The tokenizer that both engines share.

    folder: holds tokenizer.json; the target's checkpoint when left out.
    """

    folder: Folder | None = None
    add_special_tokens: bool = True
    skip_special_tokens: bool = True


class Decoding(Section):
    """What a request gets that does not say otherwise.

    drafter: the draft model where there is one, when left out.
    """

    drafter: DrafterName | None = None
    draft_len: PositiveInt = 4
    use_draft_logits: bool = False
    exclude_input_in_output: bool = True


class Models(Section):
    """Names of the models that the entries call."""

    preprocessing: ModelName = "preprocessing"
    postprocessing: ModelName = "postprocessing"
    target: ModelName = "target"
    draft: ModelName = "draft"


class Entry(Section):
    """A model that clients call.

    stream: the loop itself, decoupled. forward: answers once, by calling the stream entry.
    drafter: what a request gets here that names none; `decoding.drafter` when left out.
    """

    name: ModelName
    kind: Literal["stream", "forward"]
    drafter: DrafterName | None = None


class Admission(Section):
    """Sequences that decode at once, and that wait for room before the next one is refused."""

    max_requests: PositiveInt = 64
    max_queue: NonNegativeInt = 256


class Timeouts(Section):
    """Seconds: one call of an engine, a whole request, the rest after a drafter failed."""

    target: PositiveFloat = 60.0
    draft: PositiveFloat = 5.0
    request: PositiveFloat = 600.0
    drafter_pause: PositiveFloat = 5.0


DEFAULT_ENTRIES = (
    Entry(name="bls_stream", kind="stream"),
    Entry(name="bls", kind="forward"),
    Entry(name="ensemble", kind="forward", drafter="none"),
)


class Profile(Section):
    """One deployment."""

    name: str
    engines: Engines
    tokenizer: Tokenizer = Tokenizer()
    decoding: Decoding = Decoding()
    models: Models = Models()
    entries: Annotated[tuple[Entry, ...], BeforeValidator(_tuple)] = DEFAULT_ENTRIES
    max_batch_size: PositiveInt = 32
    admission: Admission = Admission()
    timeouts: Timeouts = Timeouts()


class ProfileError(Exception):
    """A profile is well formed but cannot be served: the place in it, and what would be right."""

    def __init__(self, place: Place, text: str) -> None:
        super().__init__(text)
        self.place = place


@dataclass(frozen=True)
class ProfileSource:
    """The text that a profile was read from, to say where it is wrong."""

    path: Path
    root: yaml.Node | None

    def error(self, place: Place, text: str) -> TandemError:
        """Return the one line: file, line, place, what is wrong."""
        where = f"{self.path}:{self._line(place)}" if self.root else str(self.path)
        dotted = ".".join(map(str, place))
        return TandemError(f"{where}: {dotted}: {text}" if dotted else f"{where}: {text}")

    def _line(self, place: Place) -> int:
        """Return the line of the place, or of the innermost part of it that is there."""
        node, line = self.root, 1
        for key in place:
            found = next((n for k, n in _children(node) if k == key), None)
            if found is None:
                break
            node, line = found[1], found[0].start_mark.line + 1
        return line


def read_profile(path: Path) -> tuple[Profile, ProfileSource]:
    """Read a profile's file; raise TandemError with file, line, place and what would be right."""
    try:
        text = path.read_text()
        data, root = yaml.safe_load(text), yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise TandemError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TandemError(f"{path}: not UTF-8 text") from error
    except yaml.YAMLError as error:
        raise TandemError(f"{path}: no YAML: {' '.join(str(error).split())}") from error
    source = ProfileSource(path, root)
    try:
        return Profile.model_validate(data, context=path.resolve().parent), source
    except ValidationError as error:
        raise source.error(*_explain(error)) from error


def _explain(error: ValidationError) -> tuple[Place, str]:
    """Return the place and the text of the first error."""
    first = error.errors(include_url=False)[0]
    place, text = first["loc"], first["msg"]
    if first["type"] == "unknown_key":
        return (*place, first["ctx"]["key"]), text
    if first["type"] == "missing":
        return place, "is missing"
    text = text.replace("Input should be", "must be")
    return place, f"{text}, not {first['input']!r}" if "must be" in text else text


def _hint(key: object, section: type[BaseModel]) -> str:
    known = list(section.model_fields)
    near = difflib.get_close_matches(str(key), known, n=1)
    return f"did you mean '{near[0]}'?" if near else f"known are {', '.join(known)}"


def _children(node: yaml.Node | None) -> Iterator[tuple[str | int, tuple[yaml.Node, yaml.Node]]]:
    """Yield key and (where the key stands, its value) of a YAML mapping or sequence."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key.value, (key, value)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield index, (value, value)
