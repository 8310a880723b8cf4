"""The profile: a typed YAML file with all settings of a deployment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from tandem.bls.drafters.registry import BASELINE, DrafterName
from tandem.bls.settings import AUTO, LoopSettings, RequestLimits
from tandem.lookup.pools import MAX_TOKENS
from tandem.tools.errors import TandemError
from tandem.tools.profiles.engines.base import (
    ConfigSection,
    Folder,
    KeyPath,
    LookupSection,
    ProfileError,
    as_tuple,
)
from tandem.tools.profiles.engines.emulated import EmulatedDraft, EmulatedTarget
from tandem.tools.profiles.engines.llamacpp import LlamaCppDraft, LlamaCppTarget
from tandem.tools.profiles.engines.llmapi import LlmApiTarget
from tandem.tools.profiles.engines.remote import RemoteDraft, RemoteTarget
from tandem.tools.profiles.engines.tensorrtllm import TensorRTLLMDraft, TensorRTLLMTarget
from tandem.tools.profiles.engines.torch import TorchDraft, TorchTarget
from tandem.tools.profiles.engines.vllm import VllmDraft, VllmTarget

TARGET: KeyPath = ("engines", "target")
DRAFT: KeyPath = ("engines", "draft")
# For each sequence that runs or waits, Triton starts a thread per model. Linux limits a process to
# about 32,000 threads.
MAX_SEQUENCES = 2048
ModelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


def _torch_by_default(value: Any) -> Any:
    return {"kind": "torch", **value} if isinstance(value, dict) else value


Target = Annotated[
    TorchTarget
    | LlamaCppTarget
    | EmulatedTarget
    | TensorRTLLMTarget
    | LlmApiTarget
    | VllmTarget
    | RemoteTarget,
    Field(discriminator="kind"),
    BeforeValidator(_torch_by_default),
]
Draft = Annotated[
    TorchDraft | LlamaCppDraft | EmulatedDraft | TensorRTLLMDraft | VllmDraft | RemoteDraft,
    Field(discriminator="kind"),
    BeforeValidator(_torch_by_default),
]


class EnginesSection(ConfigSection):
    """The engines. Without a draft engine, no drafter can use a draft model."""

    target: Target
    draft: Draft | None = None


class TokenizerSection(ConfigSection):
    """The target's tokenizer. A draft without a tokenizer uses it too."""

    folder: Folder | None = None
    """Folder of the target's tokenizer (default: the target's checkpoint)."""
    add_special_tokens: bool = True
    """Add the tokenizer's special tokens to prompts."""
    skip_special_tokens: bool = True
    """Omit special tokens from the output."""
    detokenize_in_loop: bool = LoopSettings.detokenize_in_loop
    """Detokenize in the loop's process; false: in `postprocessing`, if you have replaced it"""


class PromptLookupSection(LookupSection):
    """Prompt lookup in the loop, and its lookup pools."""

    hybrid_min_ngram_size: PositiveInt = LoopSettings.hybrid_min_ngram_size
    """If the matching n-gram is shorter, `hybrid` uses the draft model."""
    max_pool_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = LoopSettings.max_pool_tokens
    """Tokens in all lookup pools together, up to 16777216; 0: no pools."""
    pools: Folder | None = None
    """Folder of documents that fill pools when the server starts (default: none)."""


def _draft_len(value: Any) -> Any:
    if value == "auto":
        return AUTO
    if isinstance(value, str) or (isinstance(value, int) and value < 1):
        raise PydanticCustomError("draft_len", "must be an integer of at least 1, or auto")
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
    """Defaults for requests."""

    drafter: DrafterName | None = None
    """Default drafter (default: `hybrid` with a draft, else `prompt_lookup`; `engine` if the
    target drafts itself)."""
    draft_len: DraftLen = AUTO
    """Draft tokens per round (default: `auto`)."""
    draft_ahead: DraftAhead = None
    """Draft the next round during verification: `true` or `false` (default: `auto`)."""
    use_draft_logits: bool = LoopSettings.use_draft_logits
    """Default for the input with this name."""
    draft_acceptance_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """Default for the input with this name."""
    exclude_input_in_output: bool = LoopSettings.exclude_input_in_output
    """Default for the input with this name."""
    prompt_lookup: PromptLookupSection = PromptLookupSection()


class DrafterSection(ConfigSection):
    """One custom drafter."""

    module: Folder
    """Python file of the drafter."""
    settings: Mapping[str, JsonValue] = {}
    """Settings that differ from the drafter's defaults."""


class ModelsSection(ConfigSection):
    """Names of the models that the entries call."""

    preprocessing: ModelName = "preprocessing"
    """Name of the tokenizing model."""
    postprocessing: ModelName = "postprocessing"
    """Name of the detokenizing model."""
    target: ModelName = "target"
    """Name of the target's model."""
    draft: ModelName = "draft"
    """Name of the draft's model."""


class EntrySection(ConfigSection):
    """A model that clients call."""

    name: ModelName
    """Name that clients call."""
    kind: Literal["stream", "forward"]
    """`stream`: runs the loop (exactly one entry). `forward`: calls the stream entry and returns a
    single response."""
    drafter: DrafterName | None = None
    """Default drafter of this entry (default: `decoding.drafter`)."""


class AdmissionSection(ConfigSection):
    """The maximum load. Requests beyond it are rejected as overloaded."""

    max_requests: Annotated[int, Field(ge=1, le=MAX_SEQUENCES)] = LoopSettings.max_requests
    """Sequences that decode concurrently, up to 2048."""
    max_queue: Annotated[int, Field(ge=0, le=MAX_SEQUENCES)] = LoopSettings.max_queue
    """Sequences that wait in the queue, up to 2048."""
    max_queue_bytes: PositiveInt = LoopSettings.max_queue_bytes
    """Bytes of requests that wait for the tokenizer."""


class LimitsSection(ConfigSection):
    """Limits of one request. The error for a larger request names the input."""

    max_text_bytes: PositiveInt | None = None
    """Bytes of one prompt (default: `max_seq_len` x the longest token's bytes)."""
    max_words: PositiveInt = RequestLimits.max_words
    """Words in each list (stop, bad or bias words) of a prompt."""
    max_words_bytes: PositiveInt = RequestLimits.max_words_bytes
    """Total bytes of these words in a request."""
    max_ngram_size: PositiveInt = LoopSettings.max_ngram_size
    """Maximum `max_matching_ngram_size` in requests."""
    max_logits_bytes: NonNegativeInt = LoopSettings.max_logits_bytes
    """Bytes of returned logits (prompts x rows x vocabulary x 4). Make `/dev/shm` several times as
    large."""
    max_guide_bytes: NonNegativeInt = LoopSettings.max_guide_bytes
    """Bytes of one guide; 0 turns guides off and saves the memory they need."""


STARTUP_SECONDS, MAX_STARTUP_SECONDS = 600.0, 86400


class TimeoutsSection(ConfigSection):
    """Timeouts in seconds."""

    target: PositiveFloat = 60.0
    """One call to the target or a tokenizer."""
    draft: PositiveFloat = 5.0
    """One call to the draft with up to 2,048 tokens of context. Longer contexts get proportionally
    more, up to `target`."""
    request: PositiveFloat = LoopSettings.request_timeout
    """One request, including its time in the queue. Triton's `timeout` parameter (microseconds) can
    shorten it."""
    drafter_pause: PositiveFloat = LoopSettings.drafter_pause
    """How long drafting pauses after a failed draft call, before a probe call."""
    startup: Annotated[float, Field(ge=1, le=MAX_STARTUP_SECONDS)] = STARTUP_SECONDS
    """Loading all models."""


DEFAULT_ENTRIES = (
    EntrySection(name="bls_stream", kind="stream"),
    EntrySection(name="bls", kind="forward"),
    EntrySection(name="ensemble", kind="forward", drafter=BASELINE.name),
)


class Profile(ConfigSection):
    """All settings of one deployment."""

    name: str
    """Name of the deployment."""
    engines: EnginesSection
    tokenizer: TokenizerSection = TokenizerSection()
    decoding: DecodingSection = DecodingSection()
    drafters: Annotated[tuple[DrafterSection, ...], BeforeValidator(as_tuple)] = ()
    models: ModelsSection = ModelsSection()
    entries: Annotated[tuple[EntrySection, ...], BeforeValidator(as_tuple)] = DEFAULT_ENTRIES
    max_batch_size: PositiveInt = 32
    """Prompts in one request."""
    admission: AdmissionSection = AdmissionSection()
    limits: LimitsSection = LimitsSection()
    timeouts: TimeoutsSection = TimeoutsSection()


class _Loader(yaml.SafeLoader):
    """Reports repeated keys and values that can't be converted, with their line.

    PyYAML would use the last of several equal keys without an error. It would also keep surrogate
    pairs, which JSON has for some characters.
    """

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        text = super().construct_scalar(node)
        return text.encode("utf-16", "surrogatepass").decode("utf-16")

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:  # such as 2024-99-99, !!int ''
            reason = f"'{node.value}' isn't of type {node.tag.rpartition(':')[2]}"
            mark = node.start_mark
            raise yaml.constructor.ConstructorError(problem=reason, problem_mark=mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        keys: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in keys:
                reason = f"key '{key.value}' is repeated"
                raise yaml.constructor.ConstructorError(problem=reason, problem_mark=key.start_mark)
            keys.add(str(key.value))
        return super().construct_mapping(node, deep)


def read_profile(path: Path) -> Profile:
    """Read a profile; raise TandemError with the file, line, key path and fix if it is invalid."""
    try:
        data = yaml.load(path.read_text(), _Loader)
    except OSError as error:
        raise TandemError(f"can't read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TandemError(f"can't read {path}: it isn't UTF-8") from error
    except (yaml.YAMLError, RecursionError) as error:
        line, said = "", str(error)
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
            line = f":{error.problem_mark.line + 1}"
            said = " ".join(part for part in (error.context, error.problem) if part)
        raise TandemError(f"{path}{line} isn't YAML: {' '.join(said.split())}") from error
    if data is None:
        raise TandemError(f"{path} is empty; a profile needs name and engines.target")
    with convert_errors(path):
        try:
            return Profile.model_validate(data, context=path.resolve().parent)
        except ValidationError as error:
            raise ProfileError(*explain(error)) from error


@contextmanager
def convert_errors(path: Path) -> Iterator[None]:
    """Convert a ProfileError to a TandemError, one line with file, line, key path and reason."""
    try:
        yield
    except ProfileError as error:
        line, node = _find(yaml.compose(path.read_text(), _Loader), error.key_path)
        text = str(error) + _base(path, node, str(error))
        dotted = ".".join(map(str, error.key_path))
        raise TandemError(
            f"{path}:{line}: {dotted}: {text}" if dotted else f"{path}:{line}: {text}"
        ) from error


def explain(error: ValidationError) -> tuple[KeyPath, str]:
    first = error.errors(include_url=False)[0]
    key_path, text = first["loc"], first["msg"]
    if key_path[:1] == ("engines",):  # pydantic inserts the engine's kind after its name
        key_path = key_path[:2] + key_path[3:]
    if key_path[-1:] == ("[key]",):  # after a mapping's key that is wrong itself
        key_path = key_path[:-1]
    if first["type"] == "unknown_key":
        return (*key_path, first["ctx"]["key"]), text
    if first["type"] == "missing":
        return key_path, "is missing"
    if first["type"] == "union_tag_invalid":
        known = first["ctx"]["expected_tags"].replace("'", "")
        return (*key_path, "kind"), f"must be one of {known}; got '{first['ctx']['tag']}'"
    text = re.sub(r"^\w+ should (be|have|match)", r"must \1", text)
    text = text.replace("greater than or equal to", "at least")
    text = text.replace("less than or equal to", "at most")
    text = re.sub("a valid dictionary( or .*)?", "a mapping", text).replace("valid tuple", "list")
    text = text.replace("an instance of Path", "a path")
    return key_path, f"{text}; got {first['input']!r}" if text.startswith("must") else text


def _find(root: yaml.Node | None, key_path: KeyPath) -> tuple[int, yaml.Node | None]:
    """Return the line and node of the longest prefix of the key path that the file has."""
    node, line = root, 1
    for key in key_path:
        found = next((n for k, n in _children(node) if k == key), None)
        if found is None:
            break
        node, line = found[1], found[0].start_mark.line + 1
    return line, node


def _base(path: Path, node: yaml.Node | None, text: str) -> str:
    """Return a note on the folder that a path is relative to, if the error names the path."""
    if not isinstance(node, yaml.ScalarNode) or Path(node.value).is_absolute():
        return ""
    folder = path.resolve().parent
    whole = os.path.normpath(folder / node.value)
    if whole not in text or Path(whole).exists():
        return ""
    return f"; '{node.value}' is relative to the profile's folder, {folder}"


def _children(node: yaml.Node | None) -> Iterator[tuple[str | int, tuple[yaml.Node, yaml.Node]]]:
    """Yield (key, (key node, value node)) for each item of a YAML mapping or sequence."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key.value, (key, value)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield index, (value, value)
