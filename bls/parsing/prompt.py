"""One prompt of a client's request, before and after tokenization."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.bls.errors import BadRequest
from tandem.bls.exactness.lossless import make_lossless
from tandem.bls.request import Options, Request, TokenIds
from tandem.bls.settings import EngineSettings, LoopSettings
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor

LOGITS_BYTES = 4  # answers contain FP32 logits


class TokenizerInputs(NamedTuple):
    """The parts of a prompt that have to be tokenized."""

    text: str
    stop_words: tuple[str, ...] = ()
    bad_words: tuple[str, ...] = ()
    bias_words: tuple[str, ...] = ()
    bias_weights: tuple[float, ...] = ()
    prediction: str = ""


class Tokens(NamedTuple):
    """The tokenizer's output for a prompt.

    special_stops: for each stop word, its id if it is a single special token, else None. Special
    tokens don't appear in the text, so they can't be matched there.
    """

    prompt_ids: TokenIds  # [n]
    special_stops: tuple[int | None, ...] = ()
    bad_words: TokenIds | None = None  # [2, m]
    embedding_bias: NDArray[np.float32] | None = None  # [vocab_size]
    prediction: TokenIds | None = None  # [k]


class Prompt(NamedTuple):
    """One row of a request, validated as far as possible without the tokenizer.

    words: texts for the tokenizer. request: request without the tokenizer's output, which
    `build_request` adds.
    """

    words: TokenizerInputs
    input_ids: TokenIds | None  # used instead of text
    request: Request

    @property
    def num_bytes(self) -> int:
        """Size in memory of the inputs that can be large."""
        request = self.request
        arrays = [self.input_ids, request.prediction, request.sampling.embedding_bias]
        if request.lora_task is not None:
            arrays += request.lora_task.arrays.values()
        texts = (self.words.text, self.words.prediction)
        return sum(map(sys.getsizeof, texts)) + sum(a.nbytes for a in arrays if a is not None)


def build_request(prompt: Prompt, tokens: Tokens, settings: LoopSettings) -> Request:
    """Return the complete request; raise BadRequest if it doesn't fit the engine."""
    request = prompt.request
    _check_length(len(tokens.prompt_ids), request.max_tokens, settings.target)
    if tokens.prediction is not None:
        request = replace(request, prediction=tokens.prediction)
        check_prediction(tensors.PREDICTION, len(tokens.prediction), settings.target)
    sampling = replace(
        request.sampling,
        bad_words=tokens.bad_words,
        embedding_bias=_add_biases(request.sampling.embedding_bias, tokens.embedding_bias),
    )
    words = prompt.words.stop_words
    stops = [*zip(words, tokens.special_stops or (None,) * len(words), strict=True)]
    special = [token_id for _, token_id in stops if token_id is not None]
    complete = replace(
        request,
        prompt_ids=tokens.prompt_ids,
        sampling=sampling,
        end_ids=tuple(dict.fromkeys([*request.end_ids, *special])),
        stop_strings=tuple(word for word, token_id in stops if token_id is None),
    )
    return make_lossless(complete, settings)


def check_logits(
    context_lengths: Sequence[int],
    max_tokens: Sequence[int],
    options: Options,
    settings: LoopSettings,
) -> None:
    """Raise BadRequest if the answer could have more logits than ``max_logits_bytes``.

    context_lengths: tokens per prompt, [b]; 0 if not known yet. max_tokens: [b]. All rows of a
    batch are padded to the length of the longest row.
    """
    rows = 0
    if options.return_context_logits:
        rows += max(context_lengths)
    if options.return_generation_logits:
        rows += max(max_tokens)
    width = settings.target.vocab_size
    size = len(max_tokens) * rows * width * LOGITS_BYTES
    if size > settings.max_logits_bytes:
        wanted = [
            f"'{tensor}'"
            for tensor, requested in (
                (tensors.RETURN_CONTEXT_LOGITS, options.return_context_logits),
                (tensors.RETURN_GENERATION_LOGITS, options.return_generation_logits),
            )
            if requested
        ]
        raise BadRequest(
            f"input{'s' * (len(wanted) > 1)} {' and '.join(wanted)}: up to {size} bytes of logits "
            f"(shape {[len(max_tokens), rows, width]}); the limit is {settings.max_logits_bytes}; "
            "request fewer tokens or send fewer prompts"
        )


def _add_biases(
    by_ids: NDArray[np.float32] | None, by_words: NDArray[np.float32] | None
) -> NDArray[np.float32] | None:
    """Return the sum of the biases that are given as ids and as words, [vocab_size], or None."""
    if by_ids is None or by_words is None:
        return by_words if by_ids is None else by_ids
    total = by_ids.copy()
    total[: len(by_words)] += by_words  # a tokenizer may have fewer tokens than the engine
    return total


def check_prediction(tensor: Tensor, length: int, target: EngineSettings) -> None:
    """Reject a prediction that is longer than ``max_seq_len``. length: number of tokens."""
    if length > target.max_seq_len:
        raise BadRequest(
            f"input '{tensor}' has {length} tokens; the limit is {target.max_seq_len} "
            "(max_seq_len); shorten the prediction"
        )


def _check_length(prompt_length: int, max_tokens: int, target: EngineSettings) -> None:
    """Reject a prompt or answer that is too long, because engines cut it silently."""
    limit = target.max_seq_len - target.max_draft_len
    if prompt_length < 1:
        raise BadRequest(f"input '{tensors.TEXT_INPUT}' must have at least one token; got none")
    if prompt_length + max_tokens > limit:
        raise BadRequest(
            f"input '{tensors.MAX_TOKENS}' is {max_tokens} and the prompt has {prompt_length} "
            f"tokens; the limit is {limit} in total (max_seq_len {target.max_seq_len} minus "
            f"max_draft_len {target.max_draft_len})"
        )
