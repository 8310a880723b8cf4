"""Calls to the tokenizer models, `preprocessing` and `postprocessing`.

Functions that take a `CallSlot` block, and raise Abandoned if another thread abandons the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from tandem.bls.errors import BadRequest, EngineCallError, ServingError
from tandem.bls.parser import Prompt, TokenizerInputs, Tokens
from tandem.bls.ports import DecodedText
from tandem.bls.request import Options, TokenIds
from tandem.bls.settings import LoopSettings
from tandem.bls.text import Decode
from tandem.bls.triton.calls import CallSlot
from tandem.contract import entry, postprocessing, preprocessing

# Maps each input of the tokenizer model to the client's input.
INPUTS: dict[str, str] = {
    preprocessing.QUERY: entry.TEXT_INPUT,
    preprocessing.STOP_WORDS_DICT: entry.STOP_WORDS,
    preprocessing.BAD_WORDS_DICT: entry.BAD_WORDS,
    preprocessing.EMBEDDING_BIAS_WORDS: entry.EMBEDDING_BIAS_WORDS,
    preprocessing.EMBEDDING_BIAS_WEIGHTS: entry.EMBEDDING_BIAS_WEIGHTS,
    preprocessing.PREDICTION: entry.PREDICTION,
}


def needs_tokenizer(prompt: Prompt, options: Options) -> bool:
    """Return whether a prompt has text to tokenize, or ids to show as text."""
    shows_ids = prompt.input_ids is not None and not options.exclude_input_in_output
    return any(prompt.words) or shows_ids


def tokenize(
    prompts: Sequence[Prompt], settings: LoopSettings, call_slot: CallSlot
) -> list[Tokens]:
    """Return the token ids of each prompt and of its words. Makes at most one call."""
    words = [prompt.words for prompt in prompts]
    tokenized = [Tokens(p.input_ids) for p in prompts if p.input_ids is not None]
    if len(tokenized) == len(prompts) and not any(map(any, words)):
        return tokenized  # nothing to tokenize
    model = settings.preprocessing_model
    request = _tokens_request(model, words)
    try:
        response = call_slot.infer(model, request, timeout=settings.target.timeout)
    except EngineCallError as error:
        raise _client_error(error) from error
    return [
        tokens if prompt.input_ids is None else tokens._replace(prompt_ids=prompt.input_ids)
        for prompt, tokens in zip(prompts, _read_tokens(response, words), strict=True)
    ]


def answer_prefixes(prompts: Sequence[Prompt], options: Options, decode: Decode) -> list[str]:
    """Return the text to show before each answer: its prompt, or "" if prompts are excluded.

    An unfinished character at the end of a prompt belongs to the answer's text.
    """
    if options.exclude_input_in_output:
        return [""] * len(prompts)
    return [
        prompt.words.text if prompt.input_ids is None else decode(prompt.input_ids, 0).text
        for prompt in prompts
    ]


def detokenize(
    window: TokenIds,
    context_length: int | None,
    settings: LoopSettings,
    call_slot: CallSlot,
    *,
    wants_lengths: bool = False,
) -> DecodedText:
    """Return the text of token ids from the model `postprocessing` (see `LoopPorts.decode`)."""
    model = settings.postprocessing_model
    request = _text_request(model, window, context_length, wants_lengths=wants_lengths)
    response = call_slot.infer(model, request, timeout=settings.target.timeout)
    return _read_text(model, response)


def _tokens_request(model: str, prompts: Sequence[TokenizerInputs]) -> Any:
    """Return the BLS request that tokenizes all prompts of a client request."""
    inputs = [
        pb_utils.Tensor(preprocessing.QUERY, _strings([[p.text] for p in prompts])),
        pb_utils.Tensor(preprocessing.REQUEST_OUTPUT_LEN, np.ones((len(prompts), 1), np.int32)),
    ]
    outputs = [preprocessing.INPUT_ID, preprocessing.REQUEST_INPUT_LEN]
    if any(p.stop_words for p in prompts):
        words = _strings([p.stop_words for p in prompts])
        inputs.append(pb_utils.Tensor(preprocessing.STOP_WORDS_DICT, words))
        outputs.append(preprocessing.SPECIAL_STOP_IDS)
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
    if any(p.prediction for p in prompts):
        texts = _strings([[p.prediction] for p in prompts])
        inputs.append(pb_utils.Tensor(preprocessing.PREDICTION, texts))
        outputs.append(preprocessing.PREDICTION_IDS)
    return pb_utils.InferenceRequest(
        model_name=model, requested_output_names=list(outputs), inputs=inputs
    )


def _read_tokens(response: Any, prompts: Sequence[TokenizerInputs]) -> list[Tokens]:
    """Return the tokens in the response to ``_tokens_request``, one element per prompt."""
    outputs = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
    lengths = outputs[preprocessing.REQUEST_INPUT_LEN].reshape(-1)
    special_stops = outputs.get(preprocessing.SPECIAL_STOP_IDS)
    bad_words = outputs.get(preprocessing.BAD_WORDS_IDS)
    bias = outputs.get(preprocessing.EMBEDDING_BIAS)
    predicted = outputs.get(preprocessing.PREDICTION_IDS)
    return [
        Tokens(
            prompt_ids=outputs[preprocessing.INPUT_ID][row, :length].copy(),
            special_stops=(
                () if special_stops is None else _special(special_stops[row], len(p.stop_words))
            ),
            bad_words=bad_words[row].copy() if bad_words is not None and p.bad_words else None,
            embedding_bias=bias[row].copy() if bias is not None and p.bias_words else None,
            prediction=(
                predicted[row][predicted[row] >= 0]
                if predicted is not None and p.prediction
                else None
            ),
        )
        for row, (p, length) in enumerate(zip(prompts, lengths, strict=True))
    ]


def _client_error(error: EngineCallError) -> ServingError:
    """Convert a tokenizer error into an error for clients: BadRequest if an input is wrong."""
    if error.field not in INPUTS:
        return error
    name = INPUTS[error.field]
    return BadRequest(f"input '{name}'{error.what.removeprefix(error.field)}", name)


def _special(ids: NDArray[np.int32], count: int) -> tuple[int | None, ...]:
    """Return the id of each stop word that is a single special token, and None for the others."""
    return tuple(None if token_id < 0 else token_id for token_id in ids[:count].tolist())


def _text_request(
    model: str, window: TokenIds, context_length: int | None, *, wants_lengths: bool
) -> Any:
    """Return the BLS request that detokenizes ids."""
    inputs = [
        pb_utils.Tensor(postprocessing.TOKENS_BATCH, window[np.newaxis, np.newaxis]),
        pb_utils.Tensor(postprocessing.SEQUENCE_LENGTH, np.array([[len(window)]], np.int32)),
    ]
    if context_length is not None:
        length = np.array([[context_length]], np.int32)
        inputs.append(pb_utils.Tensor(postprocessing.CONTEXT_LENGTH, length))
    outputs = [postprocessing.OUTPUT]
    if wants_lengths:
        outputs.append(postprocessing.TEXT_LENGTHS)
    return pb_utils.InferenceRequest(
        model_name=model, requested_output_names=list(outputs), inputs=inputs
    )


def _read_text(model: str, response: Any) -> DecodedText:
    """Return the text in the response to ``_text_request``."""
    outputs = {tensor.name(): tensor for tensor in response.output_tensors()}
    if postprocessing.OUTPUT in outputs:
        text: bytes = outputs[postprocessing.OUTPUT].as_numpy().reshape(-1)[0]
        lengths = outputs.get(postprocessing.TEXT_LENGTHS)
        # Copied, because the array outlives the response and its memory.
        counts = None if lengths is None else lengths.as_numpy().reshape(-1).copy()
        return DecodedText(text.decode(), counts)
    raise EngineCallError(model, f"'{postprocessing.OUTPUT}' is missing from its response")


def _strings(rows: Sequence[Sequence[str]]) -> NDArray[np.object_]:
    """Return rows as bytes [b, longest row]. Padding is empty strings, which are ignored."""
    longest = max(len(row) for row in rows)
    array = np.full((len(rows), longest), b"", dtype=object)
    for at, row in enumerate(rows):
        array[at, : len(row)] = [word.encode() for word in row]
    return array
