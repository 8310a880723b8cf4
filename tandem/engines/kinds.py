"""The kinds of engines: their capabilities, and how a model starts the kind that it selects."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from tandem.contract.engine import EXCLUDE_INPUT_IN_OUTPUT, Capabilities
from tandem.contract.model_parameters import FACTS, decode
from tandem.engines.checkpoint_files import require_safetensors
from tandem.engines.emulated.settings import EmulatedSettings
from tandem.engines.engine import Engine, Forwarder
from tandem.engines.errors import LoadError
from tandem.engines.llamacpp.settings import LlamaCppSettings
from tandem.engines.llmapi.settings import LlmApiSettings
from tandem.engines.remote.settings import RemoteSettings
from tandem.engines.torch.settings import TorchSettings
from tandem.engines.vllm.settings import VllmSettings

TORCH = Capabilities(
    verifies_drafts=True,
    drafts_itself=False,
    keyed_randomness=True,
    log_probs_with_drafts=True,
    top_log_probs=True,
    prompt_log_probs=True,
    stops_when_unsure=True,
    samples_exactly=True,
    shares_logits=True,
    min_p=True,
    branches=True,
    masks_tokens=True,
    cache_salt=True,
    returns_logits=True,
    decodes_ahead=False,
)
# It shares all code but the model itself with `torch`.
LLAMACPP = TORCH
_NONE = Capabilities(**{field.name: False for field in fields(Capabilities)})
# NVIDIA's C++ backend creates a new random generator for each call, and computes no
# log-probabilities when it verifies drafts. `bls.lossless` describes the effect on
# sampled drafts. The backend supports no branches: it returns several rows only as several
# responses to one call, which would deadlock, and it reports no alternative tokens.
TENSORRTLLM = replace(_NONE, verifies_drafts=True, returns_logits=True)
# The synthetic language knows only the probabilities of its own tokens.
EMULATED = replace(TORCH, top_log_probs=False, prompt_log_probs=False)
# TensorRT-LLM's Python API draws from one generator for all requests. Version 1.2.1 accepts min_p
# but ignores it (github.com/NVIDIA/TensorRT-LLM pull request 16590).
LLMAPI = replace(
    _NONE,
    log_probs_with_drafts=True,
    stops_when_unsure=True,
    samples_exactly=True,
)
LLMAPI_SPECULATIVE = replace(LLMAPI, drafts_itself=True)
# vLLM has one generator per request. As the draft engine it returns no logits, so its drafts are
# verified by ids.
VLLM = replace(
    _NONE,
    verifies_drafts=True,
    log_probs_with_drafts=True,
    top_log_probs=True,
    stops_when_unsure=True,
    samples_exactly=True,
    shares_logits=True,
    masks_tokens=True,
    cache_salt=True,
    decodes_ahead=True,
)
VLLM_SPECULATIVE = replace(VLLM, verifies_drafts=False, drafts_itself=True, shares_logits=False)
KIND = "engine"
COMMON = {KIND, EXCLUDE_INPUT_IN_OUTPUT, FACTS}
SECONDS_TO_ANSWER = 1.0
PLACEMENT = "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"  # where OpenMP's threads run


def load_engine(model_config: dict[str, Any], folder: Path) -> Engine | Forwarder:
    """Start the kind of engine that a model's parameters select. Raises LoadError.

    model_config: Triton's model config, parsed. folder: the model's version folder.
    """
    kind = model_config.get("parameters", {}).get(KIND, {}).get("string_value")
    if kind not in START:
        raise LoadError(f"parameter 'engine' must be one of {', '.join(START)}; got {kind!r}")
    return START[kind](without_common_parameters(model_config), folder)


def without_common_parameters(model_config: dict[str, Any]) -> dict[str, Any]:
    parameters = model_config.get("parameters", {})
    own = {name: value for name, value in parameters.items() if name not in COMMON}
    return {**model_config, "parameters": own}


def excludes_input(model_config: dict[str, Any]) -> bool:
    """Whether answers omit the context by default.

    The parameter has the same name as in NVIDIA's backend, because NVIDIA's clients look it up.
    """
    parameter = model_config.get("parameters", {}).get(EXCLUDE_INPUT_IN_OUTPUT, {})
    return bool(parameter.get("string_value", "true") == "true")


# Each function imports only what its kind needs, and raises LoadError or ParameterError.


def _start_torch(model_config: dict[str, Any], folder: Path) -> Engine:
    """Load a checkpoint into PyTorch.

    Imported objects are excluded from garbage collection. Otherwise, collections would make the
    start a tenth longer, and later pause all requests for 0.2 s at a time.
    """
    settings = decode(TorchSettings, model_config)
    gc.disable()
    with _openmp(settings.threads, 20_000):
        from tandem.engines.torch.engine import TorchEngine

    gc.freeze()
    gc.enable()
    return TorchEngine(settings, folder)


def _start_llamacpp(model_config: dict[str, Any], folder: Path) -> Engine:
    """Load a GGUF file."""
    settings = decode(LlamaCppSettings, model_config)
    threads = 0 if settings.n_gpu_layers else settings.threads or len(os.sched_getaffinity(0))
    try:
        with _openmp(threads, 300):
            from tandem.engines.llamacpp.engine import LlamaCppEngine
    except ImportError as error:
        raise LoadError(
            f"can't run llama.cpp: {error}; install Tandem with the extra 'gguf'"
        ) from error
    return LlamaCppEngine(settings, folder)


@contextmanager
def _openmp(threads: int, spins: int) -> Iterator[None]:
    """Set how GCC's OpenMP runs threads; it reads the variables when its library is loaded.

    If there is a thread per core, each stays on its core. Otherwise Linux puts threads that have
    slept on the same core, where they wait for each other: the first steps of an answer take twice
    as long, and on a busy machine all steps.

    threads: number of threads of the engine; 0: not known. spins: how often a waiting thread checks
    whether it may continue before it sleeps. If it may move, it takes a core from others meanwhile.
    """
    cores = os.sched_getaffinity(0)
    if any(map(os.environ.get, PLACEMENT)):
        spins = 300  # the user may have placed all threads on one core
    elif threads == len(cores):
        os.environ["OMP_PROC_BIND"] = "true"
        spins = 20_000  # as long as the gaps within a forward pass
    os.environ.setdefault("GOMP_SPINCOUNT", str(spins))
    yield
    os.sched_setaffinity(0, cores)  # loading has put this thread on one core, too


def _start_emulated(model_config: dict[str, Any], folder: Path) -> Engine:  # noqa: ARG001
    """Start an emulated engine.

    This sets Python's thread switch interval to 0.1 ms instead of 5 ms, so that a due step doesn't
    wait while another call's tensors are read.
    """
    from tandem.engines.emulated.engine import EmulatedEngine, WallTimer

    sys.setswitchinterval(1e-4)
    return EmulatedEngine(decode(EmulatedSettings, model_config), WallTimer())


def _start_llmapi(model_config: dict[str, Any], folder: Path) -> Engine:
    from tandem.engines.llmapi.engine import LlmApiEngine

    settings = decode(LlmApiSettings, model_config)
    try:
        package = import_module("tensorrt_llm")
        import_module("tensorrt_llm.llmapi.llm_args")
    except ImportError as error:
        raise LoadError(
            f"can't import TensorRT-LLM: {error}; use an image that has it, or run "
            "`pip install tensorrt-llm==1.2.1 --extra-index-url https://pypi.nvidia.com`"
        ) from error
    drafts = settings.speculative_config or {}
    for name in (settings.model, *map(drafts.get, ("speculative_model", "speculative_model_dir"))):
        if name is not None and Path(name).is_dir():  # otherwise, a name on the Hub
            require_safetensors(Path(name))
    return LlmApiEngine(_with_adapters_in(folder, settings), package)


def _start_vllm(model_config: dict[str, Any], folder: Path) -> Engine:
    from tandem.engines.vllm.engine import VllmEngine

    settings = _with_adapters_in(folder, decode(VllmSettings, model_config))
    return VllmEngine(settings, on_death=_end_process)


def _end_process() -> None:
    """End this model's process, so that `tandem up` ends and its supervisor restarts it."""
    time.sleep(SECONDS_TO_ANSWER)  # time for Triton to take the errors of the last calls
    os._exit(1)


def _start_remote(model_config: dict[str, Any], folder: Path) -> Forwarder:  # noqa: ARG001
    """Connect to the replicas. Raises LoadError if one of them serves a different model."""
    from tandem.engines.remote.engine import RemoteEngine

    return RemoteEngine(decode(RemoteSettings, model_config))


def _with_adapters_in(folder: Path, settings: Any) -> Any:
    """Return settings in which the folders of LoRA adapters are in the model's version folder."""
    adapters = tuple(str(folder / name) for name in settings.lora_adapters)
    return replace(settings, lora_adapters=adapters)


START: dict[str, Callable[[dict[str, Any], Path], Engine | Forwarder]] = {
    "torch": _start_torch,
    "llamacpp": _start_llamacpp,
    "emulated": _start_emulated,
    "llmapi": _start_llmapi,
    "vllm": _start_vllm,
    "remote": _start_remote,
}
