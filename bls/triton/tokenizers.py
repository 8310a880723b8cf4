"""Calls of the tokenizer models: `preprocessing` and `postprocessing`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from bls.effects import TextCall
from bls.errors import EngineError
from bls.request import TokenIds
from contract import postprocessing, preprocessing


class Words(NamedTuple):
    """What of a prompt goes through the tokenizer."""

    text: str
    bad_words: tuple[str, ...] = ()
    bias_words: tuple[str, ...] = ()
    bias_weights: tuple[float, ...] = ()


class Tokens(NamedTuple):
    """What the tokenizer made of it."""

    prompt_ids: TokenIds  # [n]
    bad_words: TokenIds | None = None  # [2, m]
    embedding_bias: NDArray[np.float32] | None = None  # [vocab_size]


def tokens_request(model: str, prompts: Sequence[Words]) -> Any:
    """The call that tokenizes all prompts of a request at once."""
    inputs = [
        pb_utils.Tensor(preprocessing.QUERY, _strings([[p.text] for p in prompts])),
        pb_utils.Tensor(preprocessing.REQUEST_OUTPUT_LEN, np.ones((len(prompts), 1), np.int32)),
    ]
    outputs = [preprocessing.INPUT_ID, preprocessing.REQUEST_INPUT_LEN]
    if any(p.bad_words for p in prompts):
        inputs.append(
            pb_utils.Tensor(preprocessing.BAD_WORDS_DICT, _strings([p.bad_words for p in prompts]))
        )
        outputs.append(preprocessing.BAD_WORDS_IDS)
    if any(p.bias_words for p in prompts):
        words = _strings([p.bias_words for p in prompts])
        weights = np.zeros(words.shape, np.float32)
        for row, prompt in zip(weights, prompts, strict=True):
            row[: len(prompt.bias_weights)] = prompt.bias_weights
        inputs.append(pb_utils.Tensor(preprocessing.EMBEDDING_BIAS_WORDS, words))
        inputs.append(pb_utils.Tensor(preprocessing.EMBEDDING_BIAS_WEIGHTS, weights))
        outputs.append(preprocessing.EMBEDDING_BIAS)
    return pb_utils.InferenceRequest(
        model_name=model, requested_output_names=list(outputs), inputs=inputs
    )


def tokens_of(response: Any, prompts: Sequence[Words]) -> list[Tokens]:
    """Read the answer to ``tokens_request``, a row a prompt."""
    outputs = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
    lengths = outputs[preprocessing.REQUEST_INPUT_LEN].reshape(-1)
    bad_words = outputs.get(preprocessing.BAD_WORDS_IDS)
    bias = outputs.get(preprocessing.EMBEDDING_BIAS)
    return [
        Tokens(
            prompt_ids=outputs[preprocessing.INPUT_ID][row, :length].copy(),
            bad_words=bad_words[row].copy() if bad_words is not None and p.bad_words else None,
            embedding_bias=bias[row].copy() if bias is not None and p.bias_words else None,
        )
        for row, (p, length) in enumerate(zip(prompts, lengths, strict=True))
    ]


def text_request(model: str, call: TextCall) -> Any:
    """The call that turns ids into text."""
    window = call.window
    inputs = [
        pb_utils.Tensor(postprocessing.TOKENS_BATCH, window[np.newaxis, np.newaxis]),
        pb_utils.Tensor(postprocessing.SEQUENCE_LENGTH, np.array([[len(window)]], np.int32)),
    ]
    if call.context_length is not None:
        length = np.array([[call.context_length]], np.int32)
        inputs.append(pb_utils.Tensor(postprocessing.CONTEXT_LENGTH, length))
    return pb_utils.InferenceRequest(
        model_name=model, requested_output_names=[postprocessing.OUTPUT], inputs=inputs
    )


def text_of(model: str, response: Any) -> str:
    """Read the answer to ``text_request``."""
    for tensor in response.output_tensors():
        if tensor.name() == postprocessing.OUTPUT:
            text: bytes = tensor.as_numpy().reshape(-1)[0]
            return text.decode()
    raise EngineError(model, f"its answer lacks '{postprocessing.OUTPUT}'")


def _strings(rows: Sequence[Sequence[str]]) -> NDArray[np.object_]:
    """[b, longest row] of bytes; shorter rows end in empty strings, which mean nothing."""
    longest = max(len(row) for row in rows)
    array = np.full((len(rows), longest), b"", dtype=object)
    for at, row in enumerate(rows):
        array[at, : len(row)] = [word.encode() for word in row]
    return array
