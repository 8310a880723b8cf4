"""Makes a deployment from the options of NVIDIA's `run.py`: the engines, and how to draft.

``[4,[0],[1],True]``   draft_len, draft devices, target devices, use_logits
``[10,2,[0]]``         prompt_lookup_num_tokens, max_matching_ngram_size, devices
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import Field, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from tandem.bls.drafters.registry import BASELINE, DRAFT_MODEL, HYBRID, PROMPT_LOOKUP
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.client.client import Inputs, Value
from tandem.tools.errors import TandemError, UsageError
from tandem.tools.models.fit import count_gpus
from tandem.tools.profiles.checkpoint import read_json
from tandem.tools.profiles.deployment import Deployment, check
from tandem.tools.profiles.engines.base import KeyPath, ProfileError
from tandem.tools.profiles.profile import DecodingSection, Profile, explain

DRAFT_TARGET_OPTION = "--draft-target-model-config"
PROMPT_LOOKUP_OPTION = "--prompt-lookup-config"
OPTIONS: dict[KeyPath, str] = {  # part of a profile -> the option that sets it
    ("engines", "target"): "--engine-dir",
    ("engines", "draft"): "--draft-engine-dir",
    ("tokenizer", "folder"): "--tokenizer-dir",
    ("decoding", "draft_len"): DRAFT_TARGET_OPTION,
    ("decoding", "prompt_lookup"): PROMPT_LOOKUP_OPTION,
}
Devices = list[NonNegativeInt]
SomeDevices = Annotated[Devices, Field(min_length=1)]


@dataclass(frozen=True)
class DraftingOptions:
    """NVIDIA's parsed configuration strings, for a draft model and for prompt lookup.

    Each is None if its option isn't set.
    """

    draft_target: DraftTargetConfig | None = None
    prompt_lookup: PromptLookupConfig | None = None

    @property
    def drafter(self) -> str:
        if self.prompt_lookup is None:
            return (DRAFT_MODEL if self.draft_target else BASELINE).name
        return (HYBRID if self.draft_target else PROMPT_LOOKUP).name

    @property
    def inputs(self) -> Inputs:
        inputs: dict[Tensor, Value] = {tensors.DRAFTER: self.drafter}
        if self.draft_target:
            inputs[tensors.NUM_DRAFT_TOKENS] = self.draft_target.draft_len
            inputs[tensors.USE_DRAFT_LOGITS] = self.draft_target.use_logits
        if self.prompt_lookup:
            inputs[tensors.PROMPT_LOOKUP_NUM_TOKENS] = self.prompt_lookup.prompt_lookup_num_tokens
            inputs[tensors.MAX_MATCHING_NGRAM_SIZE] = self.prompt_lookup.max_matching_ngram_size
        return inputs

    @property
    def devices(self) -> dict[str, Devices]:
        """Return the devices in the strings, by engine (`target` or `draft`)."""
        if pair := self.draft_target:
            return {"target": pair.target_devices, "draft": pair.draft_devices}
        return {"target": self.prompt_lookup.devices} if self.prompt_lookup else {}


def read_drafting(options: argparse.Namespace) -> DraftingOptions:
    return DraftingOptions(
        _parse(DraftTargetConfig, options.draft_target_model_config, DRAFT_TARGET_OPTION),
        _parse(PromptLookupConfig, options.prompt_lookup_config, PROMPT_LOOKUP_OPTION),
    )


def make_deployment(options: argparse.Namespace, drafting: DraftingOptions) -> Deployment:
    """Return the deployment; raise TandemError if engines and strings are incompatible.

    Prints a line on standard error for each option that has no effect on this machine.
    """
    pair, lookup, devices = drafting.draft_target, drafting.prompt_lookup, drafting.devices
    if pair and not options.draft_engine_dir:
        raise UsageError(f"{DRAFT_TARGET_OPTION} needs --draft-engine-dir, the draft model")
    if options.draft_engine_dir and not pair:
        raise UsageError(
            f'--draft-engine-dir needs {DRAFT_TARGET_OPTION}, as in "[4,[0],[0],False]"'
        )
    if lookup and lookup.devices != devices["target"]:
        raise UsageError(
            f"{PROMPT_LOOKUP_OPTION} must have the target devices of {DRAFT_TARGET_OPTION}, "
            f"{devices['target']}; got {lookup.devices}"
        )
    target = _engine_section(options.engine_dir, devices.get("target", ()), verifies=True)
    engines = {"target": target}
    if pair:
        engines["draft"] = _engine_section(
            options.draft_engine_dir, devices["draft"], verifies=False
        )
    # None: a checkpoint, which verifies drafts
    max_draft_len = target.get("build", {}).get("max_draft_len")
    if max_draft_len == 0 and drafting.drafter != BASELINE.name:
        raise TandemError(
            f"{options.engine_dir} can't verify drafts; build it with "
            "--speculative_decoding_mode=draft_tokens_external --max_draft_len=10"
        )
    notes = _fit_to_machine(engines, devices, options.kv_cache_free_gpu_memory_fraction)
    usual = DecodingSection().prompt_lookup.prompt_lookup_num_tokens
    longest = lookup.prompt_lookup_num_tokens if lookup else min(usual, max_draft_len or usual)
    folder = options.tokenizer_dir
    deployment = _deployment(
        {
            "name": options.engine_dir.absolute().name,
            "engines": engines,
            "decoding": {
                "draft_len": pair.draft_len if pair else "auto",
                "use_draft_logits": pair is not None and pair.use_logits,
                "prompt_lookup": {"prompt_lookup_num_tokens": longest},
            },
            "tokenizer": {"folder": str(folder.absolute()) if folder else None},
        },
        drafting,
    )
    for note in notes:
        print(f"tandem: {note}", file=sys.stderr)
    return deployment


def _parse(config: type[Config], values: list[str] | None, option: str) -> Config | None:
    if values is None:
        return None
    try:
        return parse(config, " ".join(values).strip().removeprefix("="))
    except TandemError as error:
        raise UsageError(f"{option}: {error}") from error


def _fit_to_machine(
    engines: Mapping[str, dict[str, Any]], devices: Mapping[str, Devices], fraction: float | None
) -> list[str]:
    """Check the devices, and set what this machine decides.

    fraction: share of free GPU memory for each TensorRT engine's KV cache. Returns a note for each
    option that has no effect. Raises TandemError.
    """
    gpus = count_gpus() if devices else 0
    unused = set[int]()
    for role, section in engines.items():
        numbers = devices.get(role, [])
        if missing := [number for number in numbers if gpus and number >= gpus]:
            raise TandemError(
                f"devices must be among {list(range(gpus))}, which PyTorch sees; got {missing[0]}"
            )
        if section["kind"] == "tensorrtllm":
            if fraction is not None:
                section["run"]["kv_cache_free_gpu_mem_fraction"] = fraction
            continue
        if len(numbers) > 1:
            raise TandemError(
                f"{section['checkpoint']} runs on one device, because it isn't a TensorRT engine; "
                f"got {numbers}"
            )
        if not gpus:
            section["device"] = "auto"
            unused |= {*numbers}
    notes = []
    if unused:
        notes.append(f"PyTorch sees no GPU; using the CPU for {sorted(unused)}")
    if fraction is not None and any(section["kind"] == "torch" for section in engines.values()):
        notes.append(
            "--kv-cache-free-gpu-memory-fraction has no effect on PyTorch engines; set "
            "kv_cache_tokens in a profile instead"
        )
    return notes


def _deployment(profile: dict[str, Any], drafting: DraftingOptions) -> Deployment:
    """Check a profile. Errors name the option that sets the invalid value."""
    try:
        return check(Profile.model_validate(profile))
    except ValidationError as error:
        key_path, text = explain(error)
    except ProfileError as error:
        key_path, text = error.key_path, str(error)
    if key_path[2:] == ("device_ids",):
        option = DRAFT_TARGET_OPTION if drafting.draft_target else PROMPT_LOOKUP_OPTION
    else:
        option = OPTIONS.get(key_path[:2], ".".join(map(str, key_path)))
    setting = ".".join(map(str, key_path[2:])) if key_path[2:3] == ("build",) else ""
    raise TandemError(f"{option}: {setting}: {text}" if setting else f"{option}: {text}")


class DraftTargetConfig(NamedTuple):
    """A draft model and a target.

    use_logits: accept draft tokens by the ratio of probabilities instead of comparing token ids.
    """

    draft_len: PositiveInt
    draft_devices: SomeDevices
    target_devices: SomeDevices
    use_logits: bool


class PromptLookupConfig(NamedTuple):
    """Prompt lookup, on the devices of the target."""

    prompt_lookup_num_tokens: PositiveInt
    max_matching_ngram_size: PositiveInt
    devices: SomeDevices


Config = TypeVar("Config", DraftTargetConfig, PromptLookupConfig)
EXAMPLES = {DraftTargetConfig: "[4,[0],[1],True]", PromptLookupConfig: "[10,2,[0]]"}


def parse(kind: type[Config], text: str) -> Config:
    """Parse a string with one item per field of ``kind``. Raises TandemError."""
    names = kind._fields
    try:
        parts = ast.literal_eval(text.strip())
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        parts = None
    if not isinstance(parts, list) or len(parts) != len(names):
        raise TandemError(
            f'must have the form [{", ".join(names)}]; got {text!r}; example: "{EXAMPLES[kind]}"'
        )
    try:
        return TypeAdapter(kind).validate_python(parts, strict=True)
    except ValidationError as error:
        key_path, reason = explain(error)
        name = names[int(key_path[0])]
        raise TandemError(f'{name} {reason}; example: "{EXAMPLES[kind]}"') from error


BUILT = ("pretrained_config", "build_config")  # sections that `trtllm-build` writes
DECISIVE = (
    "max_batch_size",
    "max_seq_len",
    "max_num_tokens",
    "use_paged_context_fmha",
    "tokens_per_block",
    "logits_dtype",
    "gather_generation_logits",
)
EXTERNAL_DRAFTS = (None, 2, "DRAFT_TOKENS_EXTERNAL", "draft_tokens_external")  # spellings of a mode


def _engine_section(folder: Path, devices: Sequence[int], *, verifies: bool) -> dict[str, Any]:
    """Return the section of a profile for the engine in a folder.

    devices: numbers of its GPUs; empty: the first ones. verifies: the engine is the target. Raises
    TandemError.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise TandemError(
            f"{folder} has neither a Hugging Face checkpoint nor a built engine: no config.json"
        )
    config, absolute = read_json(path), str(folder.absolute())
    if not any(section in config for section in BUILT):
        device = f"cuda:{devices[0]}" if devices else "auto"
        return {"kind": "torch", "checkpoint": absolute, "device": device}
    built = {  # each name is in only one of these sections
        **_section(config, "pretrained_config"),
        **_section(config, "pretrained_config", "mapping"),
        **_section(config, "build_config"),
        **_section(config, "build_config", "plugin_config"),
    }
    build = {name: built[name] for name in DECISIVE if built.get(name) is not None}
    if verifies:
        external = built.get("speculative_decoding_mode") in EXTERNAL_DRAFTS
        build["max_draft_len"] = built.get("max_draft_len", 0) if external else 0
        mode = "draft_tokens_external" if build["max_draft_len"] else None
        build["speculative_decoding_mode"] = mode
    tp_size, pp_size = built.get("tp_size", 1), built.get("pp_size", 1)
    if not (isinstance(tp_size, int) and isinstance(pp_size, int)):
        raise TandemError(f"tp_size and pp_size in {path} must be integers")
    return {
        "kind": "tensorrtllm",
        "checkpoint": absolute,
        "engine_dir": absolute,
        "tp_size": tp_size,
        "pp_size": pp_size,
        "device_ids": list(devices or range(tp_size * pp_size)),
        "build": build,
        # Prompts are answered one by one, so the KV cache needs to hold only one whole sequence.
        "run": {"max_tokens_in_paged_kv_cache": build.get("max_seq_len")},
    }


def _section(config: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        config = config.get(key) if isinstance(config, dict) else None
    return config if isinstance(config, dict) else {}
