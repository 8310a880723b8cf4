"""Measures the engines without Triton: single steps, and a minimal loop vs. transformers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.calls import GreedyCall, generate, speculate
from benchmarks.gpu.figures import FigureLog
from benchmarks.inflated.checkpoint import load_inflated
from benchmarks.inflated.texts import Expected, count_differences
from tandem.engines.torch.engine import TorchEngine
from tandem.engines.torch.settings import TorchSettings

STEPS, TURNS, AT_ONCE, DRAFT_LEN = 32, 5, 16, 10
DRAFT_LENGTHS = (0, 4, 8)  # draft tokens per round of the loop; 0 for the target alone
COPIED_BYTES = 2**30
MS = 1e3


def copy_bytes_a_second(device: torch.device) -> float:
    """Return the memory bandwidth of a copy within the device: bytes read and written / second."""
    size = COPIED_BYTES if device.type == "cuda" else COPIED_BYTES // 16
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _median_seconds(lambda: _wait_until_written(target.copy_(source)))


def measure_steps(
    figures: FigureLog,
    name: str,
    engine: TorchEngine,
    text: Expected,
    *,
    turns: int,
    read_ms: float,
) -> None:
    """Measure a step of one sequence, a draft, a verification, and a step of a batch.

    turns: repetitions of each call. read_ms: milliseconds to read the weights once.
    """

    def ms(run: Callable[[], object]) -> float:
        return MS * _median_seconds(run, turns)

    prompt = [*text.prompt, *text.text[:1]]
    generate(engine, prompt, STEPS)
    step = ms(lambda: generate(engine, prompt, STEPS)) / STEPS
    figures.add(f"{name} step", ms=step, reading_ms=read_ms, of_reading=step / read_ms)
    for length in filter(None, DRAFT_LENGTHS):
        draft = ms(partial(generate, engine, prompt, length))
        figures.add(f"{name} drafts {length}", ms=draft, of_its_steps=draft / step / length)
    drafts = [(token + 1) % 3000 for token in text.text[1 : DRAFT_LEN + 1]]
    call = partial(GreedyCall, engine, prompt, len(drafts) + 1, drafts)
    verify = ms(lambda: call().answer())
    figures.add(f"{name} verifies {len(drafts)}", ms=verify, of_a_step=verify / step)
    many = [[*prompt, 5 + i] for i in range(AT_ONCE)]
    _generate_all(engine, many)
    crowd = ms(lambda: _generate_all(engine, many)) / STEPS
    figures.add(f"{name} step of {AT_ONCE} texts", ms=crowd, of_a_step=crowd / step)


def loop_name(draft_len: int) -> str:
    """Return the name that the results use for a loop with this draft length."""
    return f"loop, draft_len {draft_len}" if draft_len else "target alone"


def measure_texts(
    figures: FigureLog,
    engines: Mapping[str, TorchEngine],
    settings: TorchSettings,
    texts: Sequence[Expected],
    draft_len: int,
) -> None:
    """Decode the prompts with a minimal loop, and check the outputs.

    settings: the target's. draft_len: draft tokens per round; 0 for the target alone.
    """
    target, draft = engines["target"], engines["draft"]
    began = time.perf_counter()
    outputs, rounds = [], 0
    for text in texts:
        if draft_len:
            output = speculate(target, draft, text.prompt, len(text.text), draft_len)
            rounds += len(output.target_seconds)
            outputs.append(output.tokens)
        else:
            outputs.append(generate(target, text.prompt, len(text.text)))
    seconds = time.perf_counter() - began
    tokens = sum(map(len, outputs))
    figures.add(
        loop_name(draft_len),
        tokens_a_second=tokens / seconds,
        tokens_a_round=tokens / rounds if rounds else 1.0,
        **count_differences(texts, outputs, settings),
    )


def measure_transformers(
    figures: FigureLog, settings: dict[str, TorchSettings], texts: Sequence[Expected]
) -> None:
    """Decode the prompts with `generate` of transformers, plain and assisted."""
    models = {role: _plain_model(settings[role]) for role in ("target", "draft")}
    assistant = models["draft"]
    assistant.generation_config.num_assistant_tokens = 4
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    assistant.generation_config.assistant_confidence_threshold = 0.0
    variants: dict[str, dict[str, Any]] = {"plain": {}, "assisted": {"assistant_model": assistant}}
    for name, options in variants.items():
        _generate(models["target"], texts[0], options)
        began = time.perf_counter()
        outputs = [_generate(models["target"], text, options) for text in texts]
        seconds = time.perf_counter() - began
        tokens = sum(len(text) for text in outputs)
        figures.add(
            f"transformers {name}",
            tokens_a_second=tokens / seconds,
            **count_differences(texts, outputs, settings["target"]),
        )


def _generate_all(engine: TorchEngine, prompts: Sequence[Sequence[int]]) -> None:
    calls = [GreedyCall(engine, ids, STEPS) for ids in prompts]
    for call in calls:
        call.answer()


def _plain_model(settings: TorchSettings) -> Any:
    model = load_inflated(settings, Path(settings.checkpoint))
    model.set_attn_implementation("sdpa")
    return model


def _generate(model: Any, text: Expected, options: dict[str, Any]) -> list[int]:
    ids = torch.tensor([text.prompt], device=model.device)
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=len(text.text),
        eos_token_id=None,
        pad_token_id=0,
        **options,
    )
    tokens: list[int] = out[0, len(text.prompt) :].tolist()
    return tokens


def _median_seconds(run: Callable[[], object], turns: int = TURNS) -> float:
    run()
    times = []
    for _ in range(turns):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _wait_until_written(tensor: torch.Tensor) -> None:
    """Wait until the device has finished writing a tensor."""
    tensor[-1].item()
