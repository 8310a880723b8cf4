"""Reads and checks a client's tensors. Every complaint names the input and what would be right.

Triton lets a batch omit a required input, wraps a number that is too large, and passes keys that it
does not know on as parameters; so presence, bounds, shapes and names are all checked here.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bls.errors import BadRequest
from bls.request import TokenIds
from bls.settings import DRAFTERS, DrafterName, LoopSettings
from bls.triton.tokenizers import Words
from contract import entry as tensors
from contract.tensor import Tensor

# What a front end may send that is no input of ours: Triton's own request parameters.
TRITON_PARAMETERS = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output"}
)

# Declared because NVIDIA's models declare them; no engine behind this loop can honour them yet.
UNSUPPORTED = (
    tensors.DECODER_TEXT_INPUT,
    tensors.IMAGE_INPUT,
    tensors.IMAGE_BYTES_INPUT,
    tensors.IMAGE_URL_INPUT,
    tensors.VIDEO_BYTES_INPUT,
    tensors.PROMPT_EMBEDDING_TABLE,
    tensors.PROMPT_VOCAB_SIZE,
    tensors.PROMPT_TABLE_EXTRA_ID,
    tensors.LORA_TASK_ID,
    tensors.LORA_WEIGHTS,
    tensors.LORA_CONFIG,
    tensors.GUIDED_DECODING_GUIDE_TYPE,
    tensors.GUIDED_DECODING_GUIDE,
    tensors.PROMPT_LOOKUP_NUM_TOKENS,
    tensors.MAX_MATCHING_NGRAM_SIZE,
)


class Prompt(NamedTuple):
    """One row of a request, checked as far as it can be before it is tokenized."""

    words: Words
    input_ids: TokenIds | None  # instead of text
    max_tokens: int
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    end_id: int | None
    stop_words: tuple[str, ...]
    drafter: DrafterName
    draft_len: int
    use_draft_logits: bool
    draft_acceptance_threshold: float | None
    return_log_probs: bool
    return_context_logits: bool
    return_generation_logits: bool


class Options(NamedTuple):
    """What holds for all prompts of a request."""

    stream: bool
    exclude_input_in_output: bool
    return_perf_metrics: bool
    return_num_input_tokens: bool
    return_num_output_tokens: bool


class Reader:
    """The inputs of one request, by name. Values are copied: Triton may take the memory back."""

    def __init__(self, inputs: Iterable[Any], parameters: str) -> None:
        self._arrays: dict[str, NDArray[Any]] = {t.name(): t.as_numpy() for t in inputs}
        refuse_unknown(parameters)
        for tensor in UNSUPPORTED:
            if self._arrays.get(tensor, np.empty(0)).size:
                raise BadRequest(f"input '{tensor}' is not supported by this deployment")

    @property
    def batch_size(self) -> int:
        """How many prompts the request holds."""
        return len(next(iter(self._arrays.values()))) if self._arrays else 0

    @property
    def is_stop(self) -> bool:
        """Whether this is no request of its own, but the end of another."""
        return tensors.STOP in self._arrays and bool(self._arrays[tensors.STOP].any())

    def options(self, settings: LoopSettings) -> Options:
        """Read what all prompts share; a batch that disagrees with itself is refused."""

        def flag(tensor: Tensor, default: bool) -> bool:
            values = {bool(self._scalar(tensor, row, default)) for row in range(self.batch_size)}
            if len(values) > 1:
                raise BadRequest(f"input '{tensor}' must be the same for all prompts of a request")
            return values.pop()

        return Options(
            stream=flag(tensors.STREAM, False),
            exclude_input_in_output=flag(
                tensors.EXCLUDE_INPUT_IN_OUTPUT, settings.exclude_input_in_output
            ),
            return_perf_metrics=flag(tensors.RETURN_PERF_METRICS, False),
            return_num_input_tokens=flag(tensors.RETURN_NUM_INPUT_TOKENS, False),
            return_num_output_tokens=flag(tensors.RETURN_NUM_OUTPUT_TOKENS, False),
        )

    def prompts(self, settings: LoopSettings) -> list[Prompt]:
        """Read every prompt of the request."""
        if not self.batch_size:
            raise BadRequest(f"input '{tensors.TEXT_INPUT}' is missing; send one prompt or more")
        return [self._prompt(row, settings) for row in range(self.batch_size)]

    def _prompt(self, row: int, settings: LoopSettings) -> Prompt:
        self._refuse_beams(row)
        max_tokens = self._integer(tensors.MAX_TOKENS, row, 1, settings.max_seq_len)
        if max_tokens is None:
            raise BadRequest(
                f"input '{tensors.MAX_TOKENS}' is missing; send how many tokens to add"
            )
        temperature, top_k, top_p = self._distribution(row)
        drafter, draft_len = self._drafter(row, settings)
        use_logits = self._flag(tensors.USE_DRAFT_LOGITS, row, settings.use_draft_logits)
        return Prompt(
            words=self._words(row),
            input_ids=self._input_ids(row, settings),
            max_tokens=max_tokens,
            min_tokens=self._integer(tensors.MIN_TOKENS, row, 0, max_tokens) or 0,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=self._seed(row),
            repetition_penalty=self._number(tensors.REPETITION_PENALTY, row, above=0.0),
            presence_penalty=self._number(tensors.PRESENCE_PENALTY, row),
            frequency_penalty=self._number(tensors.FREQUENCY_PENALTY, row),
            end_id=self._integer(tensors.END_ID, row, -1, settings.vocab_size - 1),
            stop_words=tuple(w for w in self._strings(tensors.STOP_WORDS, row) if w),
            drafter=drafter,
            draft_len=draft_len,
            use_draft_logits=use_logits,
            draft_acceptance_threshold=self._threshold(row, use_logits=use_logits),
            return_log_probs=self._flag(tensors.RETURN_LOG_PROBS, row),
            return_context_logits=self._flag(tensors.RETURN_CONTEXT_LOGITS, row),
            return_generation_logits=self._flag(tensors.RETURN_GENERATION_LOGITS, row),
        )

    def _words(self, row: int) -> Words:
        texts = self._strings(tensors.TEXT_INPUT, row)
        has_ids = tensors.INPUT_IDS in self._arrays
        if not texts and not has_ids:
            raise BadRequest(f"input '{tensors.TEXT_INPUT}' is missing; send the prompt")
        if texts and has_ids:
            raise BadRequest(
                f"inputs '{tensors.TEXT_INPUT}' and '{tensors.INPUT_IDS}' are both given; send one"
            )
        if texts and not texts[0]:
            raise BadRequest(f"input '{tensors.TEXT_INPUT}' is empty; send at least one character")
        bias_words = self._strings(tensors.EMBEDDING_BIAS_WORDS, row)
        return Words(
            text=texts[0] if texts else "",
            bad_words=tuple(w for w in self._strings(tensors.BAD_WORDS, row) if w),
            bias_words=bias_words,
            bias_weights=self._bias_weights(row, len(bias_words)),
        )

    def _bias_weights(self, row: int, count: int) -> tuple[float, ...]:
        array = self._arrays.get(tensors.EMBEDDING_BIAS_WEIGHTS)
        weights = () if array is None else tuple(float(w) for w in array[row].reshape(-1))
        if len(weights) != count:
            raise BadRequest(
                f"input '{tensors.EMBEDDING_BIAS_WEIGHTS}': {len(weights)} weights for {count} "
                f"'{tensors.EMBEDDING_BIAS_WORDS}'; send one a word"
            )
        if not all(math.isfinite(w) for w in weights):
            raise BadRequest(f"input '{tensors.EMBEDDING_BIAS_WEIGHTS}' must be finite numbers")
        return weights

    def _input_ids(self, row: int, settings: LoopSettings) -> TokenIds | None:
        array = self._arrays.get(tensors.INPUT_IDS)
        if array is None:
            return None
        ids: TokenIds = array[row].reshape(-1).astype(np.int32)
        if not len(ids):
            raise BadRequest(f"input '{tensors.INPUT_IDS}' is empty; send at least one id")
        if ids.min() < 0 or ids.max() >= settings.vocab_size:
            raise BadRequest(
                f"input '{tensors.INPUT_IDS}': ids must lie in 0..{settings.vocab_size - 1}, "
                f"{ids.min()}..{ids.max()} given"
            )
        return ids

    def _refuse_beams(self, row: int) -> None:
        for tensor, instead in (
            (tensors.BEAM_WIDTH, "speculative decoding verifies one continuation"),
            (tensors.NUM_RETURN_SEQUENCES, "send the prompt several times with different seeds"),
        ):
            value = self._integer(tensor, row, 1, 2**31 - 1)
            if value is not None and value > 1:
                raise BadRequest(f"input '{tensor}': {value} given, only 1 is supported: {instead}")

    def _distribution(self, row: int) -> tuple[float, int, float]:
        """Temperature, top-k and top-p, complete; top-k 1 is greedy.

        As with TensorRT-LLM, top_k or top_p make a request sample and 0 leaves either out. So does
        a temperature, but for 0 and 1: NVIDIA's clients send 1.0 with every greedy request.
        """
        temperature = self._number(tensors.TEMPERATURE, row, least=0.0)
        top_k = self._integer(tensors.TOP_K, row, 0, 2**31 - 1)
        top_p = self._number(tensors.TOP_P, row, least=0.0, most=1.0)
        samples = bool(top_k or top_p) or temperature not in (None, 1.0)
        if not samples or temperature == 0.0:
            return 1.0, 1, 1.0
        return 1.0 if temperature is None else temperature, top_k or 0, top_p or 1.0

    def _drafter(self, row: int, settings: LoopSettings) -> tuple[DrafterName, int]:
        names = self._strings(tensors.DRAFTER, row)
        name = names[0] if names and names[0] else settings.drafter
        drafters = [d for d in DRAFTERS if d != "draft_model" or settings.draft_model]
        if name not in drafters:
            raise BadRequest(
                f"input '{tensors.DRAFTER}': '{name}' given, this deployment has "
                f"{', '.join(drafters)}"
            )
        length = self._integer(tensors.NUM_DRAFT_TOKENS, row, 0, settings.max_draft_len)
        if length is None:
            length = settings.draft_len
        return (name if length else "none"), length

    def _threshold(self, row: int, *, use_logits: bool) -> float | None:
        threshold = self._number(tensors.DRAFT_ACCEPTANCE_THRESHOLD, row, least=0.0, most=1.0)
        if threshold is not None and not use_logits:
            raise BadRequest(
                f"input '{tensors.DRAFT_ACCEPTANCE_THRESHOLD}' needs '{tensors.USE_DRAFT_LOGITS}' "
                f"to be true: without logits tokens are accepted by comparison"
            )
        return threshold

    def _seed(self, row: int) -> int | None:
        seed, alias = (self._scalar(t, row, None) for t in (tensors.SEED, tensors.RANDOM_SEED))
        if seed is not None and alias is not None and seed != alias:
            raise BadRequest(
                f"inputs '{tensors.SEED}' and '{tensors.RANDOM_SEED}' differ; they mean the same"
            )
        given = alias if seed is None else seed
        return None if given is None else int(given)

    def _flag(self, tensor: Tensor, row: int, default: bool = False) -> bool:
        return bool(self._scalar(tensor, row, default))

    def _integer(self, tensor: Tensor, row: int, least: int, most: int) -> int | None:
        value = self._scalar(tensor, row, None)
        if value is None:
            return None
        if not least <= value <= most:
            raise BadRequest(f"input '{tensor}': {value} given, must lie in {least}..{most}")
        return int(value)

    def _number(
        self,
        tensor: Tensor,
        row: int,
        *,
        least: float = -math.inf,
        most: float = math.inf,
        above: float = -math.inf,
    ) -> float | None:
        value = self._scalar(tensor, row, None)
        if value is None:
            return None
        if math.isfinite(value) and least <= value <= most and value > above:
            return float(value)
        bounds = [
            (f"at least {least:g}", least > -math.inf),
            (f"at most {most:g}", most < math.inf),
            (f"above {above:g}", above > -math.inf),
            ("finite", True),
        ]
        wanted = " and ".join(text for text, holds in bounds if holds)
        raise BadRequest(f"input '{tensor}': {value:g} given, must be {wanted}")

    def _scalar(self, tensor: Tensor, row: int, default: Any) -> Any:
        array = self._arrays.get(tensor)
        if array is None:
            return default
        if array[row].size != 1:
            raise BadRequest(
                f"input '{tensor}': {array[row].size} values given for a prompt, send one"
            )
        return array[row].reshape(-1)[0].item()

    def _strings(self, tensor: Tensor, row: int) -> tuple[str, ...]:
        array = self._arrays.get(tensor)
        if array is None:
            return ()
        try:
            return tuple(value.decode() for value in array[row].reshape(-1))
        except UnicodeDecodeError as error:
            raise BadRequest(
                f"input '{tensor}' is not valid UTF-8: byte {error.object[error.start]:#04x} at "
                f"position {error.start}"
            ) from error


def refuse_unknown(parameters: str) -> None:
    """`generate` makes a parameter of every key that is no input: a typo must not vanish.

    parameters: the request's, as the JSON object that Triton gives.
    """
    names: list[str] = list(tensors.INPUTS)
    for key in json.loads(parameters or "{}"):
        if key in TRITON_PARAMETERS or key.startswith("triton_"):
            continue
        near = difflib.get_close_matches(key, names, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise BadRequest(f"unknown input '{key}'{hint}")
