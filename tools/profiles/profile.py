"""A profile: all settings of a deployment, in one typed YAML file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from tandem.bls.drafters.registry import CONTROL, DrafterName
from tandem.bls.settings import AUTO, LoopSettings, RequestLimits
from tandem.lookup.pools import MOST_TOKENS
from tandem.tools.errors import TandemError
from tandem.tools.profiles.drafters import DrafterSection
from tandem.tools.profiles.engines.base import (
    ConfigSection,
    EngineSection,
    Folder,
    KeyPath,
    as_tuple,
)
from tandem.tools.profiles.engines.emulated import EmulatedDraft, EmulatedTarget
from tandem.tools.profiles.engines.llmapi import LlmApiTarget
from tandem.tools.profiles.engines.lookup import LookupSection
from tandem.tools.profiles.engines.tensorrtllm import TensorRTLLMDraft, TensorRTLLMTarget
from tandem.tools.profiles.engines.torch import TorchDraft, TorchTarget

TARGET: KeyPath = ("engines", "target")
DRAFT: KeyPath = ("engines", "draft")
MOST_INSTANCES = 32  # twice as many can find each other (`Siblings`)
ModelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


def _torch_by_default(value: Any) -> Any:
    return {"kind": "torch", **value} if isinstance(value, dict) else value


Target = Annotated[
    TorchTarget | EmulatedTarget | TensorRTLLMTarget | LlmApiTarget,
    Field(discriminator="kind"),
    BeforeValidator(_torch_by_default),
]
Draft = Annotated[
    TorchDraft | EmulatedDraft | TensorRTLLMDraft,
    Field(discriminator="kind"),
    BeforeValidator(_torch_by_default),
]


class EnginesSection(ConfigSection):
    """The engines of `target` and `draft`; without a draft no drafter can use a draft model."""

    target: Target
    draft: Draft | None = None


class TokenizerSection(ConfigSection):
    """The tokenizer that both engines share.

    folder: has tokenizer.json (default: the target's checkpoint).
    """

    folder: Folder | None = None
    add_special_tokens: bool = True
    skip_special_tokens: bool = True


class PromptLookupSection(LookupSection):
    """What the loop looks up (see `LookupSection`).

    hybrid_min_ngram_size: drafter `hybrid` asks the draft model if only a shorter one matched.
    max_pool_tokens: of earlier answers in all pools of all loops, for requests that name one; 0:
    none may.
    """

    hybrid_min_ngram_size: PositiveInt = LoopSettings.hybrid_min_ngram_size
    max_pool_tokens: Annotated[int, Field(ge=0, le=MOST_TOKENS)] = LoopSettings.max_pool_tokens


def _draft_len(value: Any) -> Any:
    if value == "auto":
        return AUTO
    if isinstance(value, int) and value < 1:
        raise PydanticCustomError("draft_len", "must be at least 1, or auto")
    return value


def _draft_ahead(value: Any) -> Any:
    if value == "auto":
        return None
    if not isinstance(value, bool):
        raise PydanticCustomError("draft_ahead", "must be auto, true or false")
    return value


DraftLen = Annotated[int, BeforeValidator(_draft_len)]
DraftAhead = Annotated[bool | None, BeforeValidator(_draft_ahead)]


class DecodingSection(ConfigSection):
    """Defaults of a request.

    drafter: by default the draft model, or prompt lookup without one. draft_len: of the draft
    model's drafts; `auto` adapts it to their costs and gains. draft_ahead: the draft model drafts
    for the next round while the target verifies; `auto`: if that pays, and not if both engines
    compute on one device.
    """

    drafter: DrafterName | None = None
    draft_len: DraftLen = AUTO
    draft_ahead: DraftAhead = None
    use_draft_logits: bool = LoopSettings.use_draft_logits
    draft_acceptance_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    exclude_input_in_output: bool = LoopSettings.exclude_input_in_output
    prompt_lookup: PromptLookupSection = PromptLookupSection()


class ModelsSection(ConfigSection):
    """Names of the models that the entries call."""

    preprocessing: ModelName = "preprocessing"
    postprocessing: ModelName = "postprocessing"
    target: ModelName = "target"
    draft: ModelName = "draft"


class EntrySection(ConfigSection):
    """A model that clients call.

    stream: the loop itself, decoupled. forward: answers once, by calling the stream entry.
    drafter: the default of requests to this entry (default: `decoding.drafter`).
    """

    name: ModelName
    kind: Literal["stream", "forward"]
    drafter: DrafterName | None = None


class AdmissionSection(ConfigSection):
    """Maximum numbers of sequences that decode at once, and that wait; others are refused.

    max_queue_bytes: of the texts that wait to be tokenized.
    """

    max_requests: PositiveInt = LoopSettings.max_requests
    max_queue: NonNegativeInt = LoopSettings.max_queue
    max_queue_bytes: PositiveInt = LoopSettings.max_queue_bytes


class LimitsSection(ConfigSection):
    """Limits of a request; the error for a larger one names the input.

    max_text_bytes: of one prompt (default: what fits into max_seq_len tokens).
    max_words: in each list of stop, bad or bias words of a prompt. max_words_bytes: of all words of
    a request. max_ngram_size: the longest n-gram that a request may have looked up.
    max_logits_bytes: of the context and generation logits in an answer, which travel through
    /dev/shm several times. max_guide_bytes: of a prompt's guide; 0 takes none, and spares the loop
    the memory that compiling them takes.
    """

    max_text_bytes: PositiveInt | None = None
    max_words: PositiveInt = RequestLimits.max_words
    max_words_bytes: PositiveInt = RequestLimits.max_words_bytes
    max_ngram_size: PositiveInt = LoopSettings.max_ngram_size
    max_logits_bytes: NonNegativeInt = LoopSettings.max_logits_bytes
    max_guide_bytes: NonNegativeInt = LoopSettings.max_guide_bytes


STARTUP_SECONDS, MOST_STARTUP_SECONDS = 600.0, 86400


class TimeoutsSection(ConfigSection):
    """Seconds: one call of an engine, a whole request, the rest after a drafter failed; a start."""

    target: PositiveFloat = 60.0
    draft: PositiveFloat = 5.0
    request: PositiveFloat = LoopSettings.request_timeout
    drafter_pause: PositiveFloat = LoopSettings.drafter_pause
    startup: Annotated[float, Field(ge=1, le=MOST_STARTUP_SECONDS)] = STARTUP_SECONDS


DEFAULT_ENTRIES = (
    EntrySection(name="bls_stream", kind="stream"),
    EntrySection(name="bls", kind="forward"),
    EntrySection(name="ensemble", kind="forward", drafter=CONTROL.name),
)


class Profile(ConfigSection):
    """One deployment.

    instances: processes of the stream entry, each with a loop; the engines stay one each.
    """

    name: str
    engines: EnginesSection
    tokenizer: TokenizerSection = TokenizerSection()
    decoding: DecodingSection = DecodingSection()
    drafters: Annotated[tuple[DrafterSection, ...], BeforeValidator(as_tuple)] = ()
    models: ModelsSection = ModelsSection()
    entries: Annotated[tuple[EntrySection, ...], BeforeValidator(as_tuple)] = DEFAULT_ENTRIES
    max_batch_size: PositiveInt = 32
    instances: Annotated[int, Field(ge=1, le=MOST_INSTANCES)] = 1
    admission: AdmissionSection = AdmissionSection()
    limits: LimitsSection = LimitsSection()
    timeouts: TimeoutsSection = TimeoutsSection()


def sections_of(profile: Profile) -> Iterator[tuple[KeyPath, EngineSection]]:
    yield TARGET, profile.engines.target
    if profile.engines.draft:
        yield DRAFT, profile.engines.draft


@dataclass(frozen=True)
class ProfileSource:
    """The text of a profile, for the line numbers in errors."""

    path: Path
    root: yaml.Node | None

    def error(self, key_path: KeyPath, text: str) -> TandemError:
        """Return the error: file, line, key path and reason in one line."""
        line, node = self._find(key_path)
        where = f"{self.path}:{line}" if self.root else str(self.path)
        dotted = ".".join(map(str, key_path))
        text += self._base(node, text)
        return TandemError(f"{where}: {dotted}: {text}" if dotted else f"{where}: {text}")

    def _find(self, key_path: KeyPath) -> tuple[int, yaml.Node | None]:
        """Return line and node of the key path, or of the innermost part of it that is there."""
        node, line = self.root, 1
        for key in key_path:
            found = next((n for k, n in _children(node) if k == key), None)
            if found is None:
                break
            node, line = found[1], found[0].start_mark.line + 1
        return line, node

    def _base(self, node: yaml.Node | None, text: str) -> str:
        """Say what a path is relative to, if the text names one that doesn't exist."""
        if not isinstance(node, yaml.ScalarNode) or Path(node.value).is_absolute():
            return ""
        folder = self.path.resolve().parent
        path = os.path.normpath(folder / node.value)
        if path not in text or Path(path).exists():
            return ""
        return f"; '{node.value}' is relative to the profile's folder, {folder}"


def read_profile(path: Path) -> tuple[Profile, ProfileSource]:
    """Read a profile's file; raise TandemError with file, line, key path and how to fix it."""
    try:
        text = path.read_text()
        data, root = yaml.safe_load(text), yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise TandemError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TandemError(f"{path}: not UTF-8 text") from error
    except yaml.YAMLError as error:
        line, said = "", str(error)
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
            line = f":{error.problem_mark.line + 1}"
            said = " ".join(part for part in (error.context, error.problem) if part)
        raise TandemError(f"{path}{line}: is not YAML: {' '.join(said.split())}") from error
    if data is None:
        raise TandemError(f"{path}: is empty; a profile has a name and engines.target at least")
    source = ProfileSource(path, root)
    try:
        return Profile.model_validate(data, context=path.resolve().parent), source
    except ValidationError as error:
        raise source.error(*explain(error)) from error


def explain(error: ValidationError) -> tuple[KeyPath, str]:
    first = error.errors(include_url=False)[0]
    key_path, text = first["loc"], first["msg"]
    if key_path[:1] == ("engines",):  # pydantic adds the kind of an engine after its name
        key_path = key_path[:2] + key_path[3:]
    if first["type"] == "unknown_key":
        return (*key_path, first["ctx"]["key"]), text
    if first["type"] == "missing":
        return key_path, "is missing"
    if first["type"] == "union_tag_invalid":
        known = first["ctx"]["expected_tags"].replace("'", "")
        return (*key_path, "kind"), f"unknown kind '{first['ctx']['tag']}'; known are {known}"
    text = text.replace("Input should be", "must be")
    return key_path, f"{text}, not {first['input']!r}" if "must be" in text else text


def _children(node: yaml.Node | None) -> Iterator[tuple[str | int, tuple[yaml.Node, yaml.Node]]]:
    """Yield key and (node of the key, node of its value) of a YAML mapping or sequence."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key.value, (key, value)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield index, (value, value)
