"""The options of NVIDIA's `run.py` and `summarize.py`: what to deploy, and what to ask for."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from tandem.bls.drafters import registry as drafter_registry
from tandem.bls.drafters.registry import CONTROL, DRAFT_MODEL, HYBRID
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.client.client import Inputs, Value
from tandem.tools.commands.options import Options
from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment
from tandem.tools.profiles.config_strings import (
    ConfigStringError,
    Devices,
    DraftTargetConfig,
    PromptLookupConfig,
    fitted,
    spell_devices,
)
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.profiles.engine_dir import EngineDir, read_engine_dir
from tandem.tools.profiles.engines.base import KeyPath, ProfileError
from tandem.tools.profiles.machine import count_gpus
from tandem.tools.profiles.profile import DecodingSection, Profile, explain

DRAFT_TARGET = "--draft-target-model-config"
PROMPT_LOOKUP = "--prompt-lookup-config"
OPTIONS: dict[KeyPath, str] = {  # part of a profile -> the option that it was made of
    ("engines", "target"): "--engine-dir",
    ("engines", "draft"): "--draft-engine-dir",
    ("tokenizer", "folder"): "--tokenizer-dir",
}
Config = TypeVar("Config", DraftTargetConfig, PromptLookupConfig)


@dataclass(frozen=True)
class DraftingOptions:
    """What the two strings say; None for one that is not given."""

    draft_target: DraftTargetConfig | None = None
    prompt_lookup: PromptLookupConfig | None = None

    @property
    def given(self) -> bool:
        return bool(self.draft_target or self.prompt_lookup)

    @property
    def drafter(self) -> str:
        if self.prompt_lookup is None:
            return (DRAFT_MODEL if self.draft_target else CONTROL).name
        return (HYBRID if self.draft_target else drafter_registry.PROMPT_LOOKUP).name

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
        """Return the devices of `target` and `draft`, as far as the strings name them."""
        if self.draft_target:
            given = self.draft_target
            return {"target": given.target_devices, "draft": given.draft_devices}
        return {"target": self.prompt_lookup.devices} if self.prompt_lookup else {}


def add_drafting(parser: argparse.ArgumentParser) -> Options:
    """Add the options that take the strings, in a group that is returned.

    Several values make one string: the documents have commands with a lone ``=`` before it.
    """
    group = parser.add_argument_group("drafts")
    group.add_argument(
        DRAFT_TARGET,
        nargs="+",
        metavar="LIST",
        help='The draft model\'s "[draft_len,[draft devices],[target devices],use_logits]", such '
        'as "[4,[0],[1],True]".',
    )
    group.add_argument(
        PROMPT_LOOKUP,
        nargs="+",
        metavar="LIST",
        help='Prompt lookup\'s "[prompt_lookup_num_tokens,max_matching_ngram_size,[devices]]", '
        'such as "[10,2,[0]]". With both lists, the draft model is asked if lookup finds nothing.',
    )
    return group


def add_engines(parser: argparse.ArgumentParser, *, required: bool) -> None:
    engines = parser.add_argument_group("engines")
    engines.add_argument(
        "--engine-dir",
        type=Path,
        metavar="DIR",
        required=required,
        help="The target: a Hugging Face checkpoint, or an engine that trtllm-build made.",
    )
    engines.add_argument(
        "--draft-engine-dir", type=Path, metavar="DIR", help="The draft, of the same two kinds."
    )
    engines.add_argument(
        "--tokenizer-dir",
        type=Path,
        metavar="DIR",
        help="The tokenizer of both (default: the target's; TensorRT engines have none).",
    )
    engines.add_argument(
        "--kv-cache-free-gpu-memory-fraction",
        type=_fraction,
        metavar="X",
        help="The share of free GPU memory for a TensorRT engine's KV cache.",
    )
    fixed = parser.add_argument_group("options of NVIDIA's scripts with one valid value")
    fixed.add_argument(
        "--kv-cache-enable-block-reuse",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="Must be on: without it each round would compute the whole context again.",
    )
    fixed.add_argument("--num-beams", type=int, default=1, metavar="N", help="Must be 1.")
    fixed.add_argument(
        "--output-generation-logits",
        action="store_true",
        help="Accepted without effect: logits are sent if use_logits asks for them.",
    )


def read_drafting(options: argparse.Namespace) -> DraftingOptions:
    return DraftingOptions(
        _parse(DraftTargetConfig, options.draft_target_model_config, DRAFT_TARGET),
        _parse(PromptLookupConfig, options.prompt_lookup_config, PROMPT_LOOKUP),
    )


def refuse_unsupported(options: argparse.Namespace) -> None:
    if options.num_beams != 1:
        raise TandemError(
            f"--num-beams {options.num_beams}: beam search cannot verify drafts; say --num-beams 1"
        )
    if not options.kv_cache_enable_block_reuse:
        raise TandemError(
            "--no-kv-cache-enable-block-reuse: without block reuse each round would compute the "
            "whole context again; say --kv-cache-enable-block-reuse"
        )


def plan(options: argparse.Namespace, drafting: DraftingOptions) -> Deployment:
    """Check engines and strings against each other; raise TandemError with the corrected line.

    Prints a line on standard error for what this machine ignores of the options.
    """
    refuse_unsupported(options)
    _check_partners(options, drafting)
    target = read_engine_dir(options.engine_dir)
    draft = read_engine_dir(options.draft_engine_dir) if options.draft_engine_dir else None
    _check_lists(drafting, target, draft)
    devices = drafting.devices
    gpus = count_gpus() if devices else 0
    fraction = options.kv_cache_free_gpu_memory_fraction
    engines = {"target": _section(target, devices.get("target"), gpus, fraction)}
    if target.kind == "tensorrtllm":
        most = target.max_draft_len
        engines["target"]["build"] |= {
            "max_draft_len": most,
            "speculative_decoding_mode": "draft_tokens_external" if most else None,
        }
    if draft:
        engines["draft"] = _section(draft, devices.get("draft"), gpus, fraction)
    folder = options.tokenizer_dir
    planned = _deployment(
        {
            "name": target.folder.absolute().name,
            "engines": engines,
            "decoding": _decoding(drafting, target.max_draft_len),
            "tokenizer": {"folder": str(folder.absolute()) if folder else None},
        }
    )
    on_torch = [name for name, section in engines.items() if section["kind"] == "torch"]
    named = sorted({number for name in on_torch for number in devices.get(name, ())})
    if named and not gpus:
        note = f"PyTorch sees no GPU: the CPU stands for {spell_devices(tuple(named))}"
        print(f"tandem: {note}", file=sys.stderr)
    if on_torch and fraction is not None:
        print(
            "tandem: --kv-cache-free-gpu-memory-fraction has no effect: PyTorch engines count "
            "their KV cache in tokens (kv_cache_tokens in a profile)",
            file=sys.stderr,
        )
    return planned


def _parse(config: type[Config], values: list[str] | None, option: str) -> Config | None:
    if values is None:
        return None
    try:
        return config.parse(" ".join(values).strip().removeprefix("="))
    except ConfigStringError as error:
        raise TandemError(f"{option}: {error}") from error


def _fraction(text: str) -> float:
    try:
        fraction = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 < fraction < 1:
        raise argparse.ArgumentTypeError(f"{text} does not lie between 0 and 1")
    return fraction


def _check_partners(options: argparse.Namespace, drafting: DraftingOptions) -> None:
    """A draft model and its string come together; both strings agree about the target."""
    if drafting.draft_target and not options.draft_engine_dir:
        raise TandemError(f"{DRAFT_TARGET} needs --draft-engine-dir, the model that drafts")
    if options.draft_engine_dir and not drafting.draft_target:
        raise TandemError(f'--draft-engine-dir needs {DRAFT_TARGET}, as in "[4,[0],[0],False]"')
    lookup = drafting.prompt_lookup
    if lookup and lookup.devices != drafting.devices["target"]:
        right = replace(lookup, devices=drafting.devices["target"])
        raise TandemError(
            f"{PROMPT_LOOKUP}: devices {spell_devices(lookup.devices)} are not the target devices "
            f'of {DRAFT_TARGET}; say {PROMPT_LOOKUP} "{right}"'
        )


def _check_lists(drafting: DraftingOptions, target: EngineDir, draft: EngineDir | None) -> None:
    """Device lists are as long as the engines' TP sizes, and drafts as long as the target takes."""
    if target.max_draft_len == 0 and drafting.drafter != CONTROL.name:
        raise TandemError(
            f"{target.folder} verifies no drafts; build it with "
            "--speculative_decoding_mode=draft_tokens_external --max_draft_len=10"
        )
    given = drafting.draft_target
    if given and draft:
        _refuse_unless_right(
            DRAFT_TARGET,
            given,
            replace(
                given,
                draft_len=min(given.draft_len, target.max_draft_len),
                draft_devices=fitted(given.draft_devices, draft.tp_size),
                target_devices=fitted(given.target_devices, target.tp_size),
            ),
            target.folder,
        )
        if given.use_logits and not draft.gathers_logits:
            right = replace(given, use_logits=False)
            raise TandemError(
                f"{DRAFT_TARGET}: {draft.folder} keeps its logits to itself, which use_logits asks "
                f'for; build it with --gather_generation_logits, or say {DRAFT_TARGET} "{right}"'
            )
    lookup = drafting.prompt_lookup
    if lookup:
        _refuse_unless_right(
            PROMPT_LOOKUP,
            lookup,
            replace(
                lookup,
                prompt_lookup_num_tokens=min(lookup.prompt_lookup_num_tokens, target.max_draft_len),
                devices=fitted(lookup.devices, target.tp_size),
            ),
            target.folder,
        )


def _refuse_unless_right(option: str, given: Config, right: Config, target: Path) -> None:
    wrong = []
    for name, value in vars(given).items():
        wanted = vars(right)[name]
        if value == wanted:
            continue
        if isinstance(value, tuple):
            wrong.append(f"{len(value)} {name.replace('_', ' ')} for TP size {len(wanted)}")
        else:
            wrong.append(f"{name} {value} is over max_draft_len {wanted} of {target}")
    if wrong:
        raise TandemError(f'{option}: {", ".join(wrong)}; say {option} "{right}"')


def _section(
    engine: EngineDir, devices: Devices | None, gpus: int, fraction: float | None
) -> dict[str, Any]:
    """Return an engine's part of the profile; raise TandemError for a GPU that isn't there."""
    missing = [number for number in devices or () if gpus and number >= gpus]
    if missing:
        raise TandemError(
            f"no GPU {missing[0]}: PyTorch sees {gpus} here, {spell_devices(tuple(range(gpus)))}"
        )
    folder = str(engine.folder.absolute())
    if engine.kind == "torch":
        device = f"cuda:{devices[0]}" if devices and gpus else "auto"
        return {"kind": "torch", "checkpoint": folder, "device": device}
    # Prompts are answered one by one, so the KV cache holds one whole sequence.
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


def _decoding(drafting: DraftingOptions, max_draft_len: int) -> dict[str, Any]:
    """Return what the strings say, and lengths that the target takes where they say nothing."""
    usual = DecodingSection().prompt_lookup.prompt_lookup_num_tokens
    usual = min(usual, max_draft_len or usual)
    given, lookup = drafting.draft_target, drafting.prompt_lookup
    return {
        "draft_len": given.draft_len if given else "auto",
        "use_draft_logits": given is not None and given.use_logits,
        "prompt_lookup": {
            "prompt_lookup_num_tokens": lookup.prompt_lookup_num_tokens if lookup else usual
        },
    }


def _deployment(profile: dict[str, Any]) -> Deployment:
    try:
        return deployment.check(Profile.model_validate(profile))
    except ValidationError as error:
        key_path, text = explain(error)
    except ProfileError as error:
        key_path, text = error.key_path, str(error)
    option = OPTIONS.get(key_path[:2], ".".join(map(str, key_path)))
    setting = ".".join(map(str, key_path[2:])) if key_path[2:3] == ("build",) else ""
    raise TandemError(f"{option}: {setting}: {text}" if setting else f"{option}: {text}")
