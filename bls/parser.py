"""Parses a client's request into prompts, and builds their requests after tokenization.

Each error names the input and the valid values.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.bls.errors import BadRequest
from tandem.bls.inputs import (
    DraftInputs,
    PromptInputs,
    check_guides,
    check_sizes,
    quote,
    read_guide,
    reject_unknown,
    split_rows,
)
from tandem.bls.lossless import make_lossless
from tandem.bls.request import LoraTask, Options, Request, Sampling, TokenIds
from tandem.bls.settings import EngineSettings, LoopSettings
from tandem.contract import entry as tensors
from tandem.contract.engine import MAX_TOP_LOG_PROBS
from tandem.contract.tensor import Tensor
from tandem.sampling.params import NUMBERS, sampling_fields

MAX_PRIORITY = 100
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
            tensor
            for tensor, requested in (
                (tensors.RETURN_CONTEXT_LOGITS, options.return_context_logits),
                (tensors.RETURN_GENERATION_LOGITS, options.return_generation_logits),
            )
            if requested
        ]
        names = " and ".join(f"'{tensor}'" for tensor in wanted)
        raise BadRequest(
            f"input{'s' * (len(wanted) > 1)} {names}: up to {size} bytes of logits "
            f"(shape {[len(max_tokens), rows, width]}); the limit is {settings.max_logits_bytes}; "
            "request fewer tokens or send fewer prompts",
            wanted[0],
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
            "(max_seq_len); shorten the prediction",
            tensor,
        )


def _check_length(prompt_length: int, max_tokens: int, target: EngineSettings) -> None:
    """Reject a prompt or answer that is too long, because engines cut it silently."""
    limit = target.context
    if prompt_length < 1:
        raise BadRequest(
            f"input '{tensors.TEXT_INPUT}' must have at least one token; got none",
            tensors.TEXT_INPUT,
        )
    if prompt_length + max_tokens > limit:
        raise BadRequest(
            f"input '{tensors.MAX_TOKENS}' is {max_tokens} and the prompt has {prompt_length} "
            f"tokens; the limit is {limit} in total (max_seq_len {target.max_seq_len} minus "
            f"max_draft_len {target.max_draft_len})",
            tensors.MAX_TOKENS,
        )


# Inputs that are declared because NVIDIA's models declare them. No engine here supports them.
UNSUPPORTED = (
    tensors.DECODER_TEXT_INPUT,
    tensors.IMAGE_INPUT,
    tensors.IMAGE_BYTES_INPUT,
    tensors.IMAGE_URL_INPUT,
    tensors.VIDEO_BYTES_INPUT,
    tensors.PROMPT_EMBEDDING_TABLE,
    tensors.PROMPT_VOCAB_SIZE,
    tensors.PROMPT_TABLE_EXTRA_ID,
)

MAX_IDS_IN_ERROR = 10  # maximum number of invalid ids in an error message
UNTOKENIZED: TokenIds = np.empty(0, np.int32)


def validate_rows(
    arrays: Mapping[str, NDArray[Any]], parameters: str, settings: LoopSettings
) -> list[PromptInputs]:
    """Return the inputs of each prompt, after checks of their names and sizes.

    arrays: inputs by name, with one row per prompt. parameters: see ``reject_unknown``.
    """
    reject_unknown(parameters)
    check_sizes(arrays, settings)
    check_guides(arrays, settings.max_guide_bytes)
    for tensor in UNSUPPORTED:
        if arrays.get(tensor, np.empty(0)).size:
            raise BadRequest(f"input '{tensor}' isn't supported by this deployment", tensor)
    return split_rows(arrays)


def is_stop(rows: Sequence[PromptInputs]) -> bool:
    """Return whether a request only stops another request."""
    return any(row.values(tensors.STOP).any() for row in rows)


def pool_command(rows: Sequence[PromptInputs]) -> str | None:
    """Return the command if a request only lists or empties lookup pools."""
    commands = [command for row in rows for command in row.strings(tensors.MANAGE_POOLS)]
    return commands[0] if commands else None


def parse(
    rows: Sequence[PromptInputs], settings: LoopSettings, *, return_text_lengths: bool = False
) -> list[Prompt]:
    """Return the prompts of a request.

    return_text_lengths: see ``Options``. Values that are kept are copied, because Triton may reuse
    the memory.
    """
    if not rows:
        raise BadRequest(
            f"input '{tensors.TEXT_INPUT}' is missing; send at least one prompt", tensors.TEXT_INPUT
        )
    prompts = [PromptParser(row, settings).prompt(return_text_lengths) for row in rows]
    requests = [prompt.request for prompt in prompts]
    for option in fields(Options):
        if len({getattr(request, option.name) for request in requests}) > 1:
            raise BadRequest(
                f"input '{option.name}' must be the same for all prompts of a request", option.name
            )
    lengths = [0 if p.input_ids is None else len(p.input_ids) for p in prompts]
    check_logits(lengths, [r.max_tokens for r in requests], requests[0], settings)
    return prompts


class PromptParser:
    """Parses the inputs of one prompt."""

    def __init__(self, inputs: PromptInputs, settings: LoopSettings) -> None:
        self._inputs = inputs
        self._settings = settings

    def prompt(self, return_text_lengths: bool) -> Prompt:
        self._reject_beams()
        words, input_ids = self._words(), self._input_ids()
        request = DraftInputs(self._inputs, self._settings).apply(
            replace(self._request(), return_text_lengths=return_text_lengths)
        )
        if request.prediction_num_tokens:
            words, request = self._with_prediction(words, request)
        return Prompt(words, input_ids, request)

    def _with_prediction(
        self, words: TokenizerInputs, request: Request
    ) -> tuple[TokenizerInputs, Request]:
        """Add the prompt's prediction, which is given as text or as ids."""
        texts = self._inputs.strings(tensors.PREDICTION)
        ids: TokenIds = self._inputs.values(tensors.PREDICTION_IDS).astype(np.int32)
        if not len(ids):
            return words._replace(prediction=texts[0]), request
        if any(texts):
            raise BadRequest(
                f"send input '{tensors.PREDICTION}' or input '{tensors.PREDICTION_IDS}', not both",
                tensors.PREDICTION,
            )
        check_prediction(tensors.PREDICTION_IDS, len(ids), self._settings.target)
        self._check_ids(tensors.PREDICTION_IDS, ids)
        return words, replace(request, prediction=ids)

    def _request(self) -> Request:
        """Read the inputs that don't need the tokenizer."""
        max_tokens = self._inputs.integer(tensors.MAX_TOKENS, 1, self._settings.target.max_seq_len)
        if max_tokens is None:
            raise BadRequest(
                f"input '{tensors.MAX_TOKENS}' is missing; send the maximum length of the output",
                tensors.MAX_TOKENS,
            )
        seed, flag = self._seed(), self._inputs.flag
        return Request(
            prompt_ids=UNTOKENIZED,
            max_tokens=max_tokens,
            min_tokens=self._inputs.integer(tensors.MIN_TOKENS, 0, max_tokens) or 0,
            priority=self._inputs.integer(tensors.PRIORITY, -MAX_PRIORITY, MAX_PRIORITY) or 0,
            sampling=self._sampling(secrets.randbits(63) if seed is None else seed),
            seeded=seed is not None,
            end_ids=self._end_ids(),
            max_draft_len=self._settings.target.max_draft_len,
            guide=read_guide(self._inputs),
            lora_name=self._lora_name(),
            lora_task=self._lora_task(),
            cache_salt=self._cache_salt(),
            stream=flag(tensors.STREAM),
            exclude_input_in_output=flag(
                tensors.EXCLUDE_INPUT_IN_OUTPUT, self._settings.exclude_input_in_output
            ),
            return_log_probs=flag(tensors.RETURN_LOG_PROBS),
            return_prompt_log_probs=self._return_prompt_log_probs(),
            num_top_log_probs=self._num_top_log_probs(),
            return_context_logits=flag(tensors.RETURN_CONTEXT_LOGITS),
            return_generation_logits=flag(tensors.RETURN_GENERATION_LOGITS),
            return_perf_metrics=flag(tensors.RETURN_PERF_METRICS),
            return_num_input_tokens=flag(tensors.RETURN_NUM_INPUT_TOKENS),
            return_num_output_tokens=flag(tensors.RETURN_NUM_OUTPUT_TOKENS),
        )

    def _return_prompt_log_probs(self) -> bool:
        requested = self._inputs.flag(tensors.RETURN_PROMPT_LOG_PROBS)
        if requested and not self._settings.target.capabilities.prompt_log_probs:
            raise self._unsupported_by("target", tensors.RETURN_PROMPT_LOG_PROBS)
        return requested

    def _num_top_log_probs(self) -> int:
        """Return the number of alternatives per token."""
        tensor = tensors.NUM_TOP_LOG_PROBS
        count = self._inputs.integer(tensor, 0, MAX_TOP_LOG_PROBS) or 0
        flags = (tensors.RETURN_LOG_PROBS, tensors.RETURN_PROMPT_LOG_PROBS)
        if count and not any(map(self._inputs.flag, flags)):
            raise BadRequest(
                f"input '{tensor}' requires '{flags[0]}' or '{flags[1]}' to be true", tensor
            )
        if count and not self._settings.target.capabilities.top_log_probs:
            raise self._unsupported_by("target", tensor)
        return count

    def _words(self) -> TokenizerInputs:
        texts = self._inputs.strings(tensors.TEXT_INPUT)
        has_ids = tensors.INPUT_IDS in self._inputs
        if not texts and not has_ids:
            raise BadRequest(
                f"input '{tensors.TEXT_INPUT}' is missing; send the prompt", tensors.TEXT_INPUT
            )
        if texts and has_ids:
            raise BadRequest(
                f"send input '{tensors.TEXT_INPUT}' or input '{tensors.INPUT_IDS}', not both",
                tensors.TEXT_INPUT,
            )
        if texts and not texts[0]:
            raise BadRequest(f"input '{tensors.TEXT_INPUT}' must not be empty", tensors.TEXT_INPUT)
        bias_words = self._inputs.strings(tensors.EMBEDDING_BIAS_WORDS)
        return TokenizerInputs(
            text=texts[0] if texts else "",
            stop_words=tuple(w for w in self._inputs.strings(tensors.STOP_WORDS) if w),
            bad_words=tuple(w for w in self._inputs.strings(tensors.BAD_WORDS) if w),
            bias_words=bias_words,
            bias_weights=self._bias_weights(len(bias_words)),
        )

    def _bias_weights(self, count: int) -> tuple[float, ...]:
        weights = self._inputs.values(tensors.EMBEDDING_BIAS_WEIGHTS)
        if len(weights) != count:
            raise BadRequest(
                f"input '{tensors.EMBEDDING_BIAS_WEIGHTS}' must have {count} values, one per "
                f"item of '{tensors.EMBEDDING_BIAS_WORDS}'; got {len(weights)}",
                tensors.EMBEDDING_BIAS_WEIGHTS,
            )
        if not np.isfinite(weights).all():
            raise BadRequest(
                f"input '{tensors.EMBEDDING_BIAS_WEIGHTS}' must have finite values",
                tensors.EMBEDDING_BIAS_WEIGHTS,
            )
        return tuple(weights.tolist())

    def _logit_bias(self) -> NDArray[np.float32] | None:
        """Return the bias given by ids, [vocab_size]. If an id occurs twice, its values add up."""
        ids = self._inputs.values(tensors.LOGIT_BIAS_IDS)
        values = self._inputs.values(tensors.LOGIT_BIAS_VALUES)
        if len(ids) != len(values):
            raise BadRequest(
                f"input '{tensors.LOGIT_BIAS_VALUES}' must have {len(ids)} values, one per "
                f"item of '{tensors.LOGIT_BIAS_IDS}'; got {len(values)}",
                tensors.LOGIT_BIAS_VALUES,
            )
        if not len(ids):
            return None
        if len(ids) > self._settings.target.vocab_size:
            raise BadRequest(
                f"input '{tensors.LOGIT_BIAS_IDS}' has {len(ids)} ids; the limit is "
                f"{self._settings.target.vocab_size}, the size of the vocabulary",
                tensors.LOGIT_BIAS_IDS,
            )
        self._check_ids(tensors.LOGIT_BIAS_IDS, ids)
        if not np.isfinite(values).all():
            raise BadRequest(
                f"input '{tensors.LOGIT_BIAS_VALUES}' must have finite values",
                tensors.LOGIT_BIAS_VALUES,
            )
        bias = np.zeros(self._settings.target.vocab_size, np.float32)
        np.add.at(bias, ids, values)
        return bias

    def _check_ids(self, tensor: Tensor, ids: TokenIds) -> None:
        vocab_size = self._settings.target.vocab_size
        wrong = ids[ids.view(np.uint32) >= vocab_size]  # negative ids become huge
        if len(wrong):
            named = ", ".join(map(str, wrong[:MAX_IDS_IN_ERROR])) + ", ..." * (
                len(wrong) > MAX_IDS_IN_ERROR
            )
            raise BadRequest(
                f"input '{tensor}' must have ids between 0 and {vocab_size - 1}; got {named}",
                tensor,
            )

    def _input_ids(self) -> TokenIds | None:
        if tensors.INPUT_IDS not in self._inputs:
            return None
        ids: TokenIds = self._inputs.values(tensors.INPUT_IDS).astype(np.int32)
        longest = self._settings.target.max_seq_len
        if not len(ids):
            raise BadRequest(f"input '{tensors.INPUT_IDS}' must not be empty", tensors.INPUT_IDS)
        if len(ids) > longest:
            raise BadRequest(
                f"input '{tensors.INPUT_IDS}' has {len(ids)} ids per prompt; the limit is "
                f"{longest} (max_seq_len)",
                tensors.INPUT_IDS,
            )
        self._check_ids(tensors.INPUT_IDS, ids)
        return ids

    def _lora_name(self) -> str | None:
        names = self._inputs.strings(tensors.LORA_NAME)
        if not names or not names[0]:
            return None
        known = self._settings.target.lora_adapters
        if names[0] not in known:
            fix = f"choose one of: {', '.join(known)}" if known else "the deployment has none"
            raise BadRequest(
                f"input '{tensors.LORA_NAME}': {quote(names[0])} isn't known; {fix}",
                tensors.LORA_NAME,
            )
        return names[0]

    def _lora_task(self) -> LoraTask | None:
        weights, config = tensors.LORA_WEIGHTS, tensors.LORA_CONFIG
        inputs = (tensors.LORA_TASK_ID, weights, config)
        present = [tensor for tensor in inputs if self._inputs.values(tensor).size]
        if not present:
            return None
        target = self._settings.target
        if not target.client_adapters:
            fix = f"; send '{tensors.LORA_NAME}'" if target.lora_adapters else ""
            raise BadRequest(
                f"input '{present[0]}' isn't supported by this deployment{fix}", present[0]
            )
        task_id = self._inputs.integer(tensors.LORA_TASK_ID, 0, 2**64 - 1)
        if task_id is None:
            raise BadRequest(
                f"input '{tensors.LORA_TASK_ID}' is missing; input '{present[0]}' requires it",
                tensors.LORA_TASK_ID,
            )
        arrays: dict[str, NDArray[Any]] = {t: self._inputs.copy(t) for t in present[1:]}
        if len(arrays) == 1:
            raise BadRequest(f"send inputs '{weights}' and '{config}' together", weights)
        if arrays and arrays[weights].shape[1] != arrays[config].shape[1]:
            raise BadRequest(
                f"input '{config}' must have {arrays[weights].shape[1]} rows, one per row of "
                f"'{weights}'; got {arrays[config].shape[1]}",
                config,
            )
        return LoraTask(task_id, arrays)

    def _cache_salt(self) -> int:
        """Return a number for the client's salt; 0 without one."""
        salts = self._inputs.strings(tensors.CACHE_SALT)
        if not salts:
            return 0
        if not salts[0]:
            raise BadRequest(f"input '{tensors.CACHE_SALT}' must not be empty", tensors.CACHE_SALT)
        if not self._settings.target.capabilities.cache_salt:
            raise self._unsupported_by("target", tensors.CACHE_SALT)
        return int.from_bytes(hashlib.blake2b(salts[0].encode(), digest_size=8).digest(), "big")

    def _reject_beams(self) -> None:
        for tensor, instead in (
            (tensors.BEAM_WIDTH, "beam search isn't supported"),
            (tensors.NUM_RETURN_SEQUENCES, "send the prompt once per answer, with different seeds"),
        ):
            value = self._inputs.integer(tensor, 1, 2**31 - 1)
            if value is not None and value > 1:
                raise BadRequest(f"input '{tensor}' must be 1; got {value}; {instead}", tensor)

    def _sampling(self, seed: int) -> Sampling:
        """Read the sampling parameters.

        A temperature of 1 alone doesn't turn on sampling, because NVIDIA's clients send it with
        every greedy request.
        """
        values = {}
        for name, number in NUMBERS.items():
            value = self._inputs.number(number.entry, number.bounds)
            if value is not None:
                values[name] = value
                if value != number.neutral and number.capability:
                    self._check_engines(number.entry, number.capability)
        if values.get("temperature") == 1.0:
            del values["temperature"]
        return Sampling(seed=seed, embedding_bias=self._logit_bias(), **sampling_fields(values))

    def _check_engines(self, tensor: Tensor, capability: str) -> None:
        """Reject an input that an engine would ignore. capability: field of `Capabilities`."""
        for role, engine in (("target", self._settings.target), ("draft", self._settings.draft)):
            if engine is not None and not getattr(engine.capabilities, capability):
                raise self._unsupported_by(role, tensor)

    @staticmethod
    def _unsupported_by(role: str, tensor: Tensor) -> BadRequest:
        return BadRequest(
            f"input '{tensor}' isn't supported by this deployment's {role} engine", tensor
        )

    def _end_ids(self) -> tuple[int, ...]:
        """Return the request's end id, or the checkpoint's end ids."""
        end_id = self._inputs.integer(tensors.END_ID, -1, self._settings.target.vocab_size - 1)
        if end_id is None:
            return self._settings.end_ids
        return () if end_id < 0 else (end_id,)

    def _seed(self) -> int | None:
        seed, alias = (self._inputs.scalar(t, None) for t in (tensors.SEED, tensors.RANDOM_SEED))
        if seed is not None and alias is not None and seed != alias:
            raise BadRequest(
                f"send input '{tensors.SEED}' or its alias '{tensors.RANDOM_SEED}', not both",
                tensors.SEED,
            )
        value = alias if seed is None else seed
        return None if value is None else int(value)
