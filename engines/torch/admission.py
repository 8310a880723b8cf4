"""Which calls the torch engine refuses."""

from __future__ import annotations

import numpy as np

from engines.errors import RequestError
from engines.request import EngineRequest
from engines.torch.settings import TorchSettings


def check(request: EngineRequest, settings: TorchSettings, vocab_size: int) -> None:
    """Raise RequestError, naming the input, for a call that cannot be served."""
    _check_lengths(request, settings)
    _check_ids("input_ids", request.input_ids, vocab_size)
    _check_ids("draft_input_ids", request.draft_ids, vocab_size)
    bad_words = [token for word in request.sampling.bad_words for token in word]
    _check_ids("bad_words_list", np.array(bad_words, np.int32), vocab_size)
    if request.end_id is not None and request.end_id >= vocab_size:
        raise RequestError(
            f"end_id {request.end_id} is outside the vocabulary (0..{vocab_size - 1})"
        )
    bias = request.sampling.embedding_bias
    if bias is not None and len(bias) != vocab_size:
        raise RequestError(
            f"embedding_bias has {len(bias)} values; the vocabulary has {vocab_size}"
        )
    _check_draft_logits(request, vocab_size)


def _check_lengths(request: EngineRequest, settings: TorchSettings) -> None:
    drafts = len(request.draft_ids)
    if drafts > settings.max_draft_len:
        raise RequestError(
            f"draft_input_ids has {drafts} tokens; this engine verifies up to "
            f"{settings.max_draft_len}"
        )
    total = len(request.input_ids) + max(request.max_new_tokens, drafts + 1)
    if total > settings.max_seq_len:
        raise RequestError(
            f"input_ids ({len(request.input_ids)} tokens) with request_output_len "
            f"({request.max_new_tokens}) and draft_input_ids ({drafts}) reach {total} tokens; "
            f"max_seq_len is {settings.max_seq_len}"
        )


def _check_ids(name: str, ids: np.ndarray, vocab_size: int) -> None:  # type: ignore[type-arg]
    if len(ids) and not (ids.min() >= 0 and ids.max() < vocab_size):
        wrong = ids[(ids < 0) | (ids >= vocab_size)][0]
        raise RequestError(f"{name} holds {wrong}; token ids are 0..{vocab_size - 1}")


def _check_draft_logits(request: EngineRequest, vocab_size: int) -> None:
    if request.draft_logits is None:
        return
    expected = (len(request.draft_ids), vocab_size)
    if request.draft_logits.shape != expected:
        raise RequestError(
            f"draft_logits has shape {list(request.draft_logits.shape)}; "
            f"draft_input_ids and the vocabulary ask for {list(expected)}"
        )
