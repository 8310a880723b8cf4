"""Generates reference answers with transformers' `generate`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers

from tandem.preprocessing.tokenizer import load_tokenizer
from tandem.tools.client.answer import Answer
from tandem.tools.errors import TandemError
from tandem.tools.profiles.checkpoint import read_checkpoint, read_tokenizer, require_weights


class HuggingFace:
    """Answers prompts greedily, one at a time, in this process.

    folder: the checkpoint. tokenizer: a folder with tokenizer.json. The type is the torch engine's
    default: float32 on a CPU, the checkpoint's type on a GPU. The first answer loads the weights,
    but the constructor already raises TandemError if there are none.
    """

    def __init__(self, folder: Path, tokenizer: Path, *, add_special_tokens: bool = True) -> None:
        try:
            self._checkpoint = read_checkpoint(folder)
            require_weights(folder)
            read_tokenizer(tokenizer)
        except TandemError as error:
            raise TandemError(f"--test-hf: {error}") from error
        self._tokenizer = load_tokenizer(tokenizer)
        self._add_special_tokens = add_special_tokens

    def answer(self, prompt: str, max_tokens: int, stop: Sequence[str] = ()) -> Answer:
        model, ends = self._model, self._checkpoint.end_ids
        began = time.perf_counter()
        encoded = self._tokenizer.encode(prompt, add_special_tokens=self._add_special_tokens).ids
        ids = torch.tensor([encoded], device=model.device)
        with torch.inference_mode():
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=next(iter(ends), 0),
                stopping_criteria=[self._stopping(len(encoded), stop)] if stop else None,
            )
        tokens = output[0, len(encoded) :].tolist()
        text, stopped = cut(self._tokenizer.decode(tokens), stop)
        seconds = time.perf_counter() - began
        ended = tokens[-1] in ends
        reason = "stop" if stopped or ended else "length"
        return Answer(text, len(tokens) - ended, finish_reason=reason, seconds=seconds)

    @cached_property
    def _model(self) -> Any:
        quiet: Any = transformers.logging
        quiet.set_verbosity_error()
        quiet.disable_progress_bar()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = "auto" if device == "cuda" else torch.float32
        loader: Any = transformers.AutoModelForCausalLM
        folder = self._checkpoint.folder
        loaded = loader.from_pretrained(folder, dtype=dtype, use_safetensors=True)
        return loaded.to(device).eval()

    def _stopping(self, prompt_length: int, stop: Sequence[str]) -> Any:
        def should_stop(ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            stopped = cut(self._tokenizer.decode(ids[0, prompt_length:].tolist()), stop)[1]
            return torch.tensor([stopped], device=ids.device)

        return should_stop


def cut(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """Return the text before the first stop string, and whether it contains a stop string."""
    places = [place for string in stop if (place := text.find(string)) >= 0]
    return text[: min(places, default=len(text))], bool(places)
