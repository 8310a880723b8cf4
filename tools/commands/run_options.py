"""Options of NVIDIA's `run.py` and `summarize.py`: the engines, and how to draft."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from tandem.bls.drafters.registry import BASELINE, DRAFT_MODEL, HYBRID, PROMPT_LOOKUP
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.client.client import Inputs, Value
from tandem.tools.commands.options import Options
from tandem.tools.errors import TandemError
from tandem.tools.profiles.config_strings import Devices, DraftTargetConfig, PromptLookupConfig
from tandem.tools.profiles.deployment import Deployment, check
from tandem.tools.profiles.engine_dir import EngineDir, read_engine_dir
from tandem.tools.profiles.engines.base import KeyPath, ProfileError
from tandem.tools.profiles.machine import count_gpus
from tandem.tools.profiles.profile import DecodingSection, Profile, explain

DRAFT_TARGET_OPTION = "--draft-target-model-config"
PROMPT_LOOKUP_OPTION = "--prompt-lookup-config"
OPTIONS: dict[KeyPath, str] = {  # part of a profile -> the option that sets it
    ("engines", "target"): "--engine-dir",
    ("engines", "draft"): "--draft-engine-dir",
    ("tokenizer", "folder"): "--tokenizer-dir",
}
Config = TypeVar("Config", DraftTargetConfig, PromptLookupConfig)


@dataclass(frozen=True)
class DraftingOptions:
    """NVIDIA's parsed configuration strings, for a draft model and for prompt lookup.

    Each is None if its option isn't set.
    """

    draft_target: DraftTargetConfig | None = None
    prompt_lookup: PromptLookupConfig | None = None

    @property
    def is_set(self) -> bool:
        return bool(self.draft_target or self.prompt_lookup)

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


def add_drafting(parser: argparse.ArgumentParser) -> Options:
    """Add the options that take the configuration strings, and return their group.

    Each option accepts several arguments and joins them into one string, because some commands in
    NVIDIA's documents put a standalone ``=`` before the string.
    """
    group = parser.add_argument_group("drafts")
    group.add_argument(
        DRAFT_TARGET_OPTION,
        nargs="+",
        metavar="LIST",
        help='Draft model\'s "[draft_len,[draft devices],[target devices],use_logits]", such '
        'as "[4,[0],[1],True]".',
    )
    group.add_argument(
        PROMPT_LOOKUP_OPTION,
        nargs="+",
        metavar="LIST",
        help='Prompt lookup\'s "[prompt_lookup_num_tokens,max_matching_ngram_size,[devices]]", '
        'such as "[10,2,[0]]".',
    )
    return group


def add_engines(parser: argparse.ArgumentParser, *, required: bool) -> None:
    engines = parser.add_argument_group("engines")
    engines.add_argument(
        "--engine-dir",
        type=Path,
        metavar="DIR",
        required=required,
        help="Target: a Hugging Face checkpoint, or a TensorRT engine from trtllm-build.",
    )
    engines.add_argument(
        "--draft-engine-dir",
        type=Path,
        metavar="DIR",
        help="Draft model: a checkpoint or an engine.",
    )
    engines.add_argument(
        "--tokenizer-dir",
        type=Path,
        metavar="DIR",
        help="Tokenizer of target and draft (default: the target's; required for TensorRT "
        "engines).",
    )
    engines.add_argument(
        "--kv-cache-free-gpu-memory-fraction",
        type=_fraction,
        metavar="X",
        help="Fraction of free GPU memory for a TensorRT engine's KV cache.",
    )
    fixed = parser.add_argument_group("options of NVIDIA's scripts that have only one valid value")
    fixed.add_argument(
        "--kv-cache-enable-block-reuse",
        action="store_true",
        help="No effect: block reuse is always on.",
    )
    fixed.add_argument(
        "--num-beams", type=int, default=1, choices=[1], metavar="N", help="Must be 1."
    )
    fixed.add_argument(
        "--output-generation-logits",
        action="store_true",
        help="No effect: logits are sent if use_logits is true.",
    )


def read_drafting(options: argparse.Namespace) -> DraftingOptions:
    return DraftingOptions(
        _parse(DraftTargetConfig, options.draft_target_model_config, DRAFT_TARGET_OPTION),
        _parse(PromptLookupConfig, options.prompt_lookup_config, PROMPT_LOOKUP_OPTION),
    )


def deployment_of(options: argparse.Namespace, drafting: DraftingOptions) -> Deployment:
    """Return the deployment; raise TandemError if engines and strings are incompatible.

    Prints a line on standard error for each option that has no effect on this machine.
    """
    target = read_engine_dir(options.engine_dir)
    draft = read_engine_dir(options.draft_engine_dir) if options.draft_engine_dir else None
    _check(drafting, target, draft)
    devices = drafting.devices
    gpus = count_gpus() if devices else 0
    fraction = options.kv_cache_free_gpu_memory_fraction
    engines = {"target": _section(target, devices.get("target"), gpus, fraction)}
    most = target.max_draft_len
    if target.kind == "tensorrtllm":
        engines["target"]["build"] |= {
            "max_draft_len": most,
            "speculative_decoding_mode": "draft_tokens_external" if most else None,
        }
    if draft:
        engines["draft"] = _section(draft, devices.get("draft"), gpus, fraction)
    pair, lookup, folder = drafting.draft_target, drafting.prompt_lookup, options.tokenizer_dir
    usual = DecodingSection().prompt_lookup.prompt_lookup_num_tokens
    longest = lookup.prompt_lookup_num_tokens if lookup else min(usual, most or usual)
    deployment = _deployment(
        {
            "name": target.folder.absolute().name,
            "engines": engines,
            "decoding": {
                "draft_len": pair.draft_len if pair else "auto",
                "use_draft_logits": pair is not None and pair.use_logits,
                "prompt_lookup": {"prompt_lookup_num_tokens": longest},
            },
            "tokenizer": {"folder": str(folder.absolute()) if folder else None},
        }
    )
    on_torch = [name for name, section in engines.items() if section["kind"] == "torch"]
    named = sorted({number for name in on_torch for number in devices.get(name, ())})
    if named and not gpus:
        print(f"tandem: PyTorch sees no GPU; using the CPU for {named}", file=sys.stderr)
    if on_torch and fraction is not None:
        print(
            "tandem: --kv-cache-free-gpu-memory-fraction has no effect on PyTorch engines; set "
            "kv_cache_tokens in a profile instead",
            file=sys.stderr,
        )
    return deployment


def _parse(config: type[Config], values: list[str] | None, option: str) -> Config | None:
    if values is None:
        return None
    try:
        return config.parse(" ".join(values).strip().removeprefix("="))
    except TandemError as error:
        raise TandemError(f"{option}: {error}") from error


def _fraction(text: str) -> float:
    try:
        fraction = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number; got {text!r}") from None
    if not 0 < fraction < 1:
        raise argparse.ArgumentTypeError(f"must be between 0 and 1; got {text}")
    return fraction


def _check(drafting: DraftingOptions, target: EngineDir, draft: EngineDir | None) -> None:
    """Raise TandemError if the strings contradict the engines or each other."""
    pair, lookup = drafting.draft_target, drafting.prompt_lookup
    if pair and not draft:
        raise TandemError(f"{DRAFT_TARGET_OPTION} needs --draft-engine-dir, the draft model")
    if draft and not pair:
        raise TandemError(
            f'--draft-engine-dir needs {DRAFT_TARGET_OPTION}, as in "[4,[0],[0],False]"'
        )
    if target.max_draft_len == 0 and drafting.drafter != BASELINE.name:
        raise TandemError(
            f"{target.folder} can't verify drafts; build it with "
            "--speculative_decoding_mode=draft_tokens_external --max_draft_len=10"
        )
    if pair and draft:
        _check_list(DRAFT_TARGET_OPTION, pair.draft_len, pair.target_devices, target)
        _check_list(DRAFT_TARGET_OPTION, 0, pair.draft_devices, draft)
        if pair.use_logits and not draft.gathers_logits:
            raise TandemError(
                f"{DRAFT_TARGET_OPTION}: {draft.folder} doesn't return logits, which use_logits "
                "needs; build it with --gather_generation_logits, or set use_logits to False"
            )
    if lookup:
        _check_list(PROMPT_LOOKUP_OPTION, lookup.prompt_lookup_num_tokens, lookup.devices, target)
        if lookup.devices != drafting.devices["target"]:
            raise TandemError(
                f"{PROMPT_LOOKUP_OPTION} must have the target devices of {DRAFT_TARGET_OPTION}, "
                f"{drafting.devices['target']}; got {lookup.devices}"
            )


def _check_list(option: str, draft_len: int, devices: Devices, engine: EngineDir) -> None:
    if len(devices) != engine.tp_size:
        raise TandemError(
            f"{option} must list {engine.tp_size} devices, the TP size of {engine.folder}; "
            f"got {devices}"
        )
    if draft_len > engine.max_draft_len:
        raise TandemError(
            f"{option} must have at most {engine.max_draft_len} draft tokens, the maximum of "
            f"{engine.folder}; got {draft_len}"
        )


def _section(
    engine: EngineDir, devices: Devices | None, gpus: int, fraction: float | None
) -> dict[str, Any]:
    """Return an engine's section of the profile; raise TandemError if a GPU doesn't exist."""
    missing = [number for number in devices or () if gpus and number >= gpus]
    if missing:
        raise TandemError(
            f"devices must be among {list(range(gpus))}, which PyTorch sees; got {missing[0]}"
        )
    folder = str(engine.folder.absolute())
    if engine.kind == "torch":
        device = f"cuda:{devices[0]}" if devices and gpus else "auto"
        return {"kind": "torch", "checkpoint": folder, "device": device}
    # Prompts are answered one by one, so the KV cache needs to hold only one whole sequence.
    run = {"max_tokens_in_paged_kv_cache": engine.build.get("max_seq_len")}
    if fraction is not None:
        run["kv_cache_free_gpu_mem_fraction"] = fraction
    return {
        "kind": engine.kind,
        "checkpoint": folder,
        "engine_dir": folder,
        "tp_size": engine.tp_size,
        "pp_size": engine.pp_size,
        "device_ids": list(devices or range(engine.tp_size * engine.pp_size)),
        "build": dict(engine.build),
        "run": run,
    }


def _deployment(profile: dict[str, Any]) -> Deployment:
    try:
        return check(Profile.model_validate(profile))
    except ValidationError as error:
        key_path, text = explain(error)
    except ProfileError as error:
        key_path, text = error.key_path, str(error)
    option = OPTIONS.get(key_path[:2], ".".join(map(str, key_path)))
    setting = ".".join(map(str, key_path[2:])) if key_path[2:3] == ("build",) else ""
    raise TandemError(f"{option}: {setting}: {text}" if setting else f"{option}: {text}")
