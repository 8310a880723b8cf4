"""The torch engine: runs packed sequences of a Hugging Face checkpoint over our KV cache.

Loading a model also decides whether its architecture is supported: its attention must go through
`packed_attention` and produce transformers' logits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tandem.engines.engine import Floats
from tandem.engines.errors import LoadError, first_line
from tandem.engines.kinds import TORCH
from tandem.engines.stepping.engine import StepModel, SteppingEngine
from tandem.engines.stepping.kv_cache import Packed, Segment
from tandem.engines.torch import attention
from tandem.engines.torch.attention import Attending, KVShape, TensorEntry, TensorKVCache
from tandem.engines.torch.checkpoint import load_checkpoint
from tandem.engines.torch.cpu import FusedLlama, pack_linears, supports
from tandem.engines.torch.lora import Adapters
from tandem.engines.torch.settings import LAYER_TYPES, TorchSettings

_CHECK_TOKENS = 12
_CHECK_TOLERANCE = {torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 2e-1}


class PackedModel:
    """A loaded checkpoint.

    Attributes:
        vocab_size: width of the model's logits.
        cache: keys and values of past tokens.

    """

    def __init__(self, settings: TorchSettings, folder: Path) -> None:
        """Load and check the checkpoint. Raises LoadError. folder: the model's version folder."""
        self._model = load_checkpoint(settings, folder / settings.checkpoint)
        self._settings = settings
        self._adapters: Adapters | None = None
        if settings.lora_adapters:
            folders = [folder / name for name in settings.lora_adapters]
            self._adapters = Adapters(self._model, folders)
        self._fused: FusedLlama | None = None
        self._device: torch.device = self._model.device
        self._selects_rows = "logits_to_keep" in inspect.signature(self._model.forward).parameters
        try:
            self.cache = TensorKVCache(
                self._kv_shape(),
                settings.kv_cache_tokens,
                settings.kv_block_tokens,
                settings.max_seq_len,
            )
            self.vocab_size = self._check()
        except LoadError:  # a setting is wrong, not the architecture
            raise
        except Exception as error:
            kind = self._model.config.model_type
            raise LoadError(
                f"architecture '{kind}' isn't supported: {first_line(error)}"
            ) from error

    def forward(self, ids: NDArray[np.int64], segments: Sequence[Packed]) -> Floats:
        """Run the segments' tokens, ids [all tokens]. Return logits [all rows, vocab_size]."""
        logits: Floats = self._forward(ids, segments).float().cpu().numpy()
        return logits

    @torch.inference_mode()
    def _forward(self, ids: NDArray[np.int64], segments: Sequence[Packed]) -> torch.Tensor:
        positions = np.concatenate([segment.positions for segment in segments])
        wanted = attention.wanted_rows(segments)
        rows = self._tensor(wanted) if len(wanted) < len(ids) else None
        if self._adapters:
            self._adapters.use(
                [(segment.entry.owner.adapter, segment.count) for segment in segments]
            )
        run = self._fused.forward if self._fused else self._run
        attending = [attention.attention_of(segment) for segment in segments]
        return run(self._tensor(ids), self._tensor(positions), rows, attending)

    def _run(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor | None,
        segments: Sequence[Attending],
    ) -> torch.Tensor:
        """Run transformers' model and return logits [rows, vocab_size].

        If `rows` is None, the logits are for all tokens.
        """
        attention.use(segments)
        selected = {} if rows is None or not self._selects_rows else {"logits_to_keep": rows}
        output = self._model(
            input_ids=ids[None], position_ids=positions[None], use_cache=False, **selected
        )
        attention.use(())  # releases the segments, which would otherwise live until the next pass
        logits: torch.Tensor = output.logits[0]
        return logits if rows is None or self._selects_rows else logits[rows]

    def _tensor(self, array: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)

    @torch.inference_mode()
    def _plain_logits(self, ids: NDArray[np.int64], attention_name: str) -> torch.Tensor:
        self._model.set_attn_implementation(attention_name)
        logits: torch.Tensor = self._model(self._tensor(ids)[None], use_cache=False).logits[0]
        self._model.set_attn_implementation(attention.NAME)
        return logits

    def _kv_shape(self) -> KVShape:
        """Return the shape of one token's keys and values, or raise for unsupported attention."""
        config = self._model.config.get_text_config()
        others = set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES
        if others:
            raise NotImplementedError(f"it has layers of type '{min(others)}'")
        layers, window = attention.recorded_shapes(
            lambda: self._plain_logits(np.zeros(1, np.int64), attention.SHAPES_NAME)
        )
        if len(layers) != config.num_hidden_layers:
            raise NotImplementedError("its attention can't be replaced")
        if window is not None and window < self._settings.max_seq_len:
            raise NotImplementedError(
                f"it has a sliding window of {window} tokens that only transformers' own attention "
                f"applies; set max_seq_len to at most {window}"
            )
        return KVShape(layers, self._model.dtype, self._device)

    def _check(self) -> int:
        """Install the fast paths and compare their logits with transformers'.

        Returns the width of the logits. Raises LoadError.
        """
        length = min(_CHECK_TOKENS, self._settings.max_seq_len)
        ids = np.arange(length) % self._model.config.get_text_config().vocab_size
        plain = self._plain_logits(ids, "eager")
        if not plain.isfinite().all():
            dtype = str(plain.dtype).removeprefix("torch.")
            raise LoadError(
                f"the checkpoint's logits aren't finite in {dtype}; check its weights, or use "
                "another dtype"
            )
        self._speed_up()
        packed = self._packed_logits(ids)
        gap = float((packed - plain).abs().max())
        if not gap <= _CHECK_TOLERANCE[packed.dtype] * max(1.0, float(plain.abs().max())):
            raise NotImplementedError(f"packed and plain logits differ by {gap:.3g}")
        return int(plain.shape[-1])

    def _speed_up(self) -> None:
        """Replace slow parts of float32 models on a CPU."""
        if self._device.type != "cpu" or self._model.dtype != torch.float32:
            return
        if supports(self._model):
            self._fused = FusedLlama(self._model, self._settings.max_seq_len)
        else:
            pack_linears(self._model)

    def _packed_logits(self, ids: NDArray[np.int64]) -> torch.Tensor:
        """Compute the logits [tokens, vocab_size] of `ids` in pieces, next to another sequence."""
        size = len(ids)
        one, other = self._new_entry(size), self._new_entry(size)
        cut = size // 2
        parts = [self._forward(ids[:cut], [Segment(one, cut, cut)])]
        one.length = cut
        tail = size - cut - 1
        mixed = np.concatenate((ids[cut:-1], ids[::-1][:cut]))
        segments = [Segment(one, tail, tail), Segment(other, cut, 0)]
        parts.append(self._forward(mixed, segments))
        one.length = size - 1
        parts.append(self._forward(ids[-1:], [Segment(one, 1, 1)]))
        return torch.cat(parts)

    def _new_entry(self, tokens: int) -> TensorEntry:
        """Return an entry outside of the cache."""
        entry = TensorEntry()
        entry.resize(self.cache.shape, tokens)
        return entry


class TorchEngine(SteppingEngine):
    """Serves a Hugging Face checkpoint."""

    def __init__(self, settings: TorchSettings, folder: Path) -> None:
        """Load the checkpoint, check it and warm it up. Raises LoadError."""

        def load_model() -> PackedModel:
            if settings.threads:
                torch.set_num_threads(settings.threads)
            return PackedModel(settings, folder)

        super().__init__(settings, TORCH, load_model)

    def _run(self, load: Callable[[], StepModel], ready: Future[None]) -> None:
        with torch.inference_mode():
            super()._run(load, ready)
