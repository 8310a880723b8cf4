"""Options that several commands share."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import tandem
from tandem.bls.drafters.registry import BASELINE, DRAFTERS
from tandem.bls.settings import AUTO, DRAFT_AHEAD
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.client.client import Inputs
from tandem.tools.errors import TandemError, UsageError, suggestion
from tandem.tools.models.fit import ROLES, Role, check_fit, fitting_kv_caches
from tandem.tools.models.named import FoundModel, find_model
from tandem.tools.profiles.deployment import Deployment, for_checkpoints, load

Options: TypeAlias = "argparse.ArgumentParser | argparse._ArgumentGroup"
PROFILES = Path(tandem.__file__).parent / "profiles"
EMBEDDED = PROFILES / "embedded.yaml"
DEMO = PROFILES.parent / "demo"
PROMPTS = DEMO / "prompts.jsonl"
# Extensions of a profile file. Names can contain dots too, such as llama-3.1-70b.
ENDINGS = (".yaml", ".yml")
MAX_PORT = 65535


def nonempty(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def nonempty_path(text: str) -> Path:
    return Path(nonempty(text))  # an empty path is the current folder


def grpc_url(text: str) -> str:
    scheme, mark, rest = text.rpartition("://")
    host, _, number = rest.rstrip("/").rpartition(":")
    right = f"{host or rest.rstrip('/')}:{number if host else 8001}"
    if mark:
        raise argparse.ArgumentTypeError(
            f"must be HOST:PORT, without {scheme}://; use --url {right}"
        )
    if not (_is_host(host) and _is_port(number)) or "/" in text:
        raise argparse.ArgumentTypeError(f"must be HOST:PORT, such as 127.0.0.1:8001; got {text!r}")
    return text


def output_file(text: str) -> Path:
    """Read the path of a file to write, and check it before a long measurement."""
    path = nonempty_path(text)
    folder = path.absolute().parent
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"can't write {text}: it is a folder")
    if not path.exists() and not folder.is_dir():
        raise argparse.ArgumentTypeError(f"can't write {text}: no folder {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"can't write {text}: Permission denied")
    return path


def write_json(path: Path, content: object) -> None:
    """Write a file. If the disk is full, keep an earlier one and raise TandemError."""
    data = (json.dumps(content, indent=2) + "\n").encode()
    try:
        if not path.is_file():
            path.write_bytes(data)
            return
        with path.open("rb+") as file:
            os.posix_fallocate(file.fileno(), 0, len(data))  # fails before anything is overwritten
            file.write(data)
            file.truncate()
    except OSError as error:
        raise TandemError(f"can't write {path}: {error.strerror}") from error


def drafter_names(*, baseline: bool = False) -> str:
    """List the drafters for a help text. baseline: include the baseline."""
    drafting = [kind.name for kind in DRAFTERS.values() if kind.drafts_in_loop]
    also = [BASELINE.name] if baseline else []
    return ", ".join((*drafting, *also, "or a custom drafter of the deployment"))


def at_least(minimum: int) -> Callable[[str], int]:
    """Return an argparse type that reads whole numbers of at least ``minimum``."""

    def read(text: str) -> int:
        with suppress(ValueError):  # int also rejects very long numbers
            if text.isdecimal() and int(text) >= minimum:
                return int(text)
        raise argparse.ArgumentTypeError(
            f"must be a whole number of at least {minimum}; got {text!r}"
        )

    return read


def finite_number(text: str) -> float:
    """Read a number as an argparse type. NaN and infinity are rejected."""
    with suppress(ValueError):
        if math.isfinite(number := float(text)):
            return number
    raise argparse.ArgumentTypeError(f"must be a finite number; got {text!r}")


def port(text: str) -> int:
    if not _is_port(text):
        raise argparse.ArgumentTypeError(f"must be a port number, or 0 for a free one; got {text}")
    return int(text)


def address(text: str) -> str:
    if not _is_host(text):
        raise argparse.ArgumentTypeError(f"must be an address, such as 127.0.0.1; got {text!r}")
    return text


def _is_port(text: str) -> bool:
    return text.isdecimal() and len(text) <= len(str(MAX_PORT)) and int(text) <= MAX_PORT


def _is_host(text: str) -> bool:
    """Return whether Python's sockets accept a host name or address.

    They also accept an empty text, but listen on every address.
    """
    try:
        return bool(text.encode("idna"))
    except UnicodeError:
        return False


def draft_length(text: str) -> int:
    return AUTO if text == "auto" else at_least(1)(text)


def add_count(group: Options, name: str, text: str, default: int, *, minimum: int = 1) -> None:
    """Add an option for a whole number. text: the help, to which the default is appended."""
    text = f"{text} (default: %(default)s)."
    group.add_argument(name, type=at_least(minimum), default=default, metavar="N", help=text)


def add_prompts(group: Options, form: str) -> None:
    group.add_argument(
        "--prompts",
        type=nonempty_path,
        metavar="FILE",
        help=f"Prompts: {form} (default: the demo's).",
    )


def prompts_file(given: Path | None) -> Path:
    if given is None and not PROMPTS.is_file():
        raise TandemError(f"no prompts in {PROMPTS}; set --prompts to a file")
    return given or PROMPTS


def add_profile(group: Options) -> None:
    group.add_argument(
        "--profile",
        type=nonempty,
        metavar="FILE|NAME",
        help="Profile to deploy: a file, or a name in profiles/ (default: embedded).",
    )


def add_url(group: Options, default: str | None = None) -> None:
    """Add an option for a running server. default: None if the command can start a server."""
    group.add_argument(
        "--url",
        type=grpc_url,
        metavar="HOST:PORT",
        default=default,
        help="HOST:PORT of Triton's gRPC endpoint (default: %(default)s)."
        if default
        else "HOST:PORT of a running server's gRPC endpoint, instead of starting a server.",
    )


def chosen_profile(options: argparse.Namespace) -> Path:
    if options.profile is None and not EMBEDDED.is_file():
        raise TandemError(f"no {EMBEDDED} here; set --profile to a file")
    return EMBEDDED if options.profile is None else named_profile(options.profile)


def named_profile(given: str) -> Path:
    """Return the path of a profile. given: a file, or a name in `profiles/`."""
    path = Path(given)
    if "/" in given or path.suffix in ENDINGS or path.is_file():
        return path
    shipped = sorted(file.stem for file in PROFILES.glob("*.yaml"))
    if given in shipped:
        return PROFILES / f"{given}.yaml"
    if path.is_dir():
        return path
    raise TandemError(f"profile '{given}' isn't known; {suggestion(given, shipped)}")


SEED = "Seed for sampling; the same seed gives the same output."
HELP: Mapping[Tensor, str] = {
    tensors.LORA_NAME: "LoRA adapter of the target.",
    tensors.MIN_TOKENS: "Minimum output tokens.",
    tensors.STOP_WORDS: "End the output before this text; can be repeated.",
    tensors.BAD_WORDS: "Never generate this text; can be repeated.",
    tensors.TEMPERATURE: "Temperature; 0 is greedy.",
    tensors.TOP_K: "Sample from the k most likely tokens.",
    tensors.TOP_P: "Sample from the most likely tokens that together reach this probability.",
    tensors.MIN_P: "Exclude tokens less likely than this fraction of the most likely one.",
    tensors.SEED: SEED,
    tensors.RANDOM_SEED: SEED,
    tensors.REPETITION_PENALTY: "Penalize tokens that already occurred; 1 is no penalty.",
    tensors.PRESENCE_PENALTY: "Subtract this from the logits of tokens that already occurred.",
    tensors.FREQUENCY_PENALTY: "Subtract this from a token's logit for each time it occurred.",
    tensors.DRAFTER: f"Drafter: {drafter_names(baseline=True)}.",
    tensors.NUM_DRAFT_TOKENS: "Maximum draft tokens per round, or auto.",
    tensors.DRAFT_AHEAD: "Draft the next round while the target verifies: "
    f"{', '.join(DRAFT_AHEAD)}.",
    tensors.PROMPT_LOOKUP_NUM_TOKENS: "Maximum draft tokens per round of prompt lookup.",
    tensors.MAX_MATCHING_NGRAM_SIZE: "Longest n-gram for prompt lookup to match.",
    tensors.LOOKUP_POOL: "Lookup pool to copy from and to join.",
    tensors.USE_DRAFT_LOGITS: "Accept draft tokens by probability instead of comparing ids.",
    tensors.DRAFT_ACCEPTANCE_THRESHOLD: "Accept every draft token with at least this target "
    "probability. Lossy.",
}


def add_inputs(group: Options, inputs: Iterable[Tensor]) -> None:
    for tensor in inputs:
        name = option_name(tensor)
        group.add_argument(name, dest=str(tensor), help=HELP[tensor], **_reading(tensor))


def option_name(tensor: Tensor) -> str:
    return f"--{tensor.removesuffix('_words').replace('_', '-')}"


def read_inputs(options: argparse.Namespace, inputs: Iterable[Tensor]) -> Inputs:
    """Return the inputs that the user sets."""
    values = {tensor: getattr(options, tensor) for tensor in inputs}
    return {tensor: value for tensor, value in values.items() if value is not None}


def _reading(tensor: Tensor) -> dict[str, Any]:
    if tensor.dtype == "BOOL":
        return {"action": argparse.BooleanOptionalAction}
    if tensor.dtype == "STRING":
        action = "append" if tensor.dims == (-1,) else "store"
        return {"action": action, "metavar": "TEXT" if action == "append" else "NAME"}
    if tensor.dtype == "FP32":
        return {"type": finite_number, "metavar": "X"}
    return {"type": whole_number(tensor), "metavar": "N"}


def whole_number(tensor: Tensor) -> Callable[[str], int]:
    """Return an argparse type that reads whole numbers within the range of the tensor's type."""
    bounds = np.iinfo(tensor.dtype.lower())

    def read(text: str) -> int:
        if text == "auto" and tensor == tensors.NUM_DRAFT_TOKENS:
            return AUTO
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number; got {text!r}") from None
        if not bounds.min <= number <= bounds.max:
            bound = f"between {bounds.min} and {bounds.max}"
            raise argparse.ArgumentTypeError(f"must be {bound}; got {number}")
        return number

    return read


def add_deployment(group: Options) -> None:
    add_profile(group)
    group.add_argument(
        "--target",
        type=nonempty,
        metavar="MODEL",
        help="Target, instead of a profile: a folder, OWNER/NAME[@REVISION] on the Hugging "
        "Face Hub, or a GGUF file.",
    )
    group.add_argument(
        "--draft",
        type=nonempty,
        metavar="MODEL",
        help="Draft model (default: none; prompt lookup is used).",
    )


def chosen_deployment(options: argparse.Namespace, *, here: bool = True) -> Deployment:
    """Fetch the models that the options name, and return their deployment.

    here: the deployment will run on this machine, so it must fit into memory. Raises TandemError.
    """
    if options.target is None:
        if options.draft is not None:
            raise UsageError("--draft needs --target; set both")
        deployment = load(chosen_profile(options))
        if here:
            check_fit(deployment)
        return deployment
    if options.profile is not None:
        raise UsageError("set --profile or --target, not both")
    models: dict[Role, FoundModel] = {}
    for role in ROLES:
        if (name := getattr(options, role)) is not None:
            with name_option_in_errors(role):
                models[role] = find_model(name)
    # Check the small files before fetching the weights.
    folders = {role: model.folder for role, model in models.items()}
    name = models["target"].name
    deployment = for_checkpoints(
        folders["target"], folders.get("draft"), name=name, with_weights=False
    )
    kv_cache_tokens: dict[str, int] = {}
    if here:
        counts = {role: model.num_parameters for role, model in models.items()}
        kv_cache_tokens = fitting_kv_caches(deployment, counts)
    for role, model in models.items():
        with name_option_in_errors(role):
            folders[role] = model.checkpoint()
    return for_checkpoints(
        folders["target"], folders.get("draft"), name=name, kv_cache_tokens=kv_cache_tokens
    )


@contextmanager
def name_option_in_errors(role: Role) -> Iterator[None]:
    """Prefix errors with the option that names the model."""
    try:
        yield
    except TandemError as error:
        raise TandemError(f"--{role}: {error}") from error


def deployment_to_serve(options: argparse.Namespace) -> Deployment | None:
    """Return the deployment to serve, or None if --url names a running server."""
    for name in ("profile", "target"):
        if options.url and getattr(options, name):
            raise UsageError(f"set --url or --{name}, not both")
    return None if options.url else chosen_deployment(options)
