"""Reads and checks a client's tensors. Every complaint names the input and what would be right.

Triton lets a batch omit a required input, wraps a number that is too large, and passes keys that it
does not know on as parameters; so presence, bounds, shapes and names are all checked here.
"""

from __future__ import annotations

import difflib
import json
import math
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.bls.drafter_registry import CONTROL, DRAFTERS, DrafterKind
from tandem.bls.errors import BadRequest
from tandem.bls.prompt import Options, Prompt, TokenizerInputs, check_logits
from tandem.bls.request import Request, Sampling, TokenIds
from tandem.bls.settings import AUTO, DRAFT_AHEAD, LoopSettings, RequestLimits
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor

# What a front end may send that is not an input of ours: Triton's own request parameters.
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
)

# What a request may set of its drafts, where they are the loop's.
DRAFTING = (
    tensors.NUM_DRAFT_TOKENS,
    tensors.PROMPT_LOOKUP_NUM_TOKENS,
    tensors.MAX_MATCHING_NGRAM_SIZE,
    tensors.USE_DRAFT_LOGITS,
    tensors.DRAFT_ACCEPTANCE_THRESHOLD,
)
WORD_LISTS = (tensors.STOP_WORDS, tensors.BAD_WORDS, tensors.EMBEDDING_BIAS_WORDS)
MAX_PARAMETERS_BYTES = 64 * 1024  # none of them is an input, so none is long
UNTOKENIZED: TokenIds = np.empty(0, np.int32)
LONGEST_QUOTE = 40  # characters of a client's own text in an error


class RequestParser:
    """The inputs of one request, by name, a row a prompt.

    Values are copied: Triton may take the memory back.
    """

    def __init__(
        self, inputs: Mapping[str, NDArray[Any]], parameters: str, settings: LoopSettings
    ) -> None:
        refuse_unknown(parameters)
        check_sizes(inputs, settings)
        for tensor in UNSUPPORTED:
            if inputs.get(tensor, np.empty(0)).size:
                raise BadRequest(f"input '{tensor}' is not supported by this deployment")
        self._arrays = inputs
        self._settings = settings
        for name, array in inputs.items():
            if len(array) != self.batch_size:
                raise BadRequest(
                    f"input '{name}': {len(array)} rows given, the request has "
                    f"{self.batch_size} prompts"
                )

    @property
    def batch_size(self) -> int:
        """How many prompts the request holds."""
        return len(next(iter(self._arrays.values()))) if self._arrays else 0

    @property
    def is_stop(self) -> bool:
        """Whether this only ends another request."""
        return tensors.STOP in self._arrays and bool(self._arrays[tensors.STOP].any())

    def options(self) -> Options:
        """Read what all prompts share; a batch that disagrees with itself is refused."""

        def flag(tensor: Tensor, default: bool = False) -> bool:
            values = {bool(self._scalar(tensor, row, default)) for row in range(self.batch_size)}
            if len(values) > 1:
                raise BadRequest(f"input '{tensor}' must be the same for all prompts of a request")
            return values.pop()

        self._require_prompts()
        return Options(
            stream=flag(tensors.STREAM),
            exclude_input_in_output=flag(
                tensors.EXCLUDE_INPUT_IN_OUTPUT, self._settings.exclude_input_in_output
            ),
            return_log_probs=flag(tensors.RETURN_LOG_PROBS),
            return_context_logits=flag(tensors.RETURN_CONTEXT_LOGITS),
            return_generation_logits=flag(tensors.RETURN_GENERATION_LOGITS),
            return_perf_metrics=flag(tensors.RETURN_PERF_METRICS),
            return_num_input_tokens=flag(tensors.RETURN_NUM_INPUT_TOKENS),
            return_num_output_tokens=flag(tensors.RETURN_NUM_OUTPUT_TOKENS),
        )

    def prompts(self, options: Options) -> list[Prompt]:
        """Read every prompt of the request."""
        self._require_prompts()
        prompts = [self._prompt(row, options) for row in range(self.batch_size)]
        lengths = [0 if p.input_ids is None else len(p.input_ids) for p in prompts]
        check_logits(lengths, [p.request.max_tokens for p in prompts], options, self._settings)
        return prompts

    def _require_prompts(self) -> None:
        if not self.batch_size:
            raise BadRequest(f"input '{tensors.TEXT_INPUT}' is missing; send one prompt or more")

    def _prompt(self, row: int, options: Options) -> Prompt:
        self._refuse_beams(row)
        return Prompt(self._words(row), self._input_ids(row), self._request(row, options))

    def _request(self, row: int, options: Options) -> Request:
        """Read all that the tokenizer adds nothing to."""
        max_tokens = self._integer(tensors.MAX_TOKENS, row, 1, self._settings.target.max_seq_len)
        if max_tokens is None:
            raise BadRequest(
                f"input '{tensors.MAX_TOKENS}' is missing; send how many tokens to add"
            )
        seed = self._seed(row)
        request = Request(
            prompt_ids=UNTOKENIZED,
            max_tokens=max_tokens,
            min_tokens=self._integer(tensors.MIN_TOKENS, row, 0, max_tokens) or 0,
            sampling=self._sampling(row, secrets.randbits(63) if seed is None else seed),
            seeded=seed is not None,
            end_ids=self._end_ids(row),
            max_draft_len=self._settings.target.max_draft_len,
            streams_text=options.stream,
            wants_log_probs=options.return_log_probs,
            wants_context_logits=options.return_context_logits,
            wants_generation_logits=options.return_generation_logits,
            wants_kv_blocks=options.return_perf_metrics,
        )
        return self._with_drafts(request, row)

    def _words(self, row: int) -> TokenizerInputs:
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
        return TokenizerInputs(
            text=texts[0] if texts else "",
            stop_words=tuple(w for w in self._strings(tensors.STOP_WORDS, row) if w),
            bad_words=tuple(w for w in self._strings(tensors.BAD_WORDS, row) if w),
            bias_words=bias_words,
            bias_weights=self._bias_weights(row, len(bias_words)),
        )

    def _bias_weights(self, row: int, count: int) -> tuple[float, ...]:
        array = self._arrays.get(tensors.EMBEDDING_BIAS_WEIGHTS)
        weights = np.empty(0) if array is None else array[row].reshape(-1)
        if len(weights) != count:
            raise BadRequest(
                f"input '{tensors.EMBEDDING_BIAS_WEIGHTS}': {len(weights)} weights for {count} "
                f"'{tensors.EMBEDDING_BIAS_WORDS}'; send one a word"
            )
        if not np.isfinite(weights).all():
            raise BadRequest(f"input '{tensors.EMBEDDING_BIAS_WEIGHTS}' must be finite numbers")
        return tuple(weights.tolist())

    def _input_ids(self, row: int) -> TokenIds | None:
        array = self._arrays.get(tensors.INPUT_IDS)
        if array is None:
            return None
        target = self._settings.target
        if not array[row].size:
            raise BadRequest(f"input '{tensors.INPUT_IDS}' is empty; send at least one id")
        if array[row].size > target.max_seq_len:
            raise BadRequest(
                f"input '{tensors.INPUT_IDS}': {array[row].size} ids given for a prompt, which are "
                f"more than max_seq_len, {target.max_seq_len}"
            )
        ids: TokenIds = array[row].reshape(-1).astype(np.int32)
        if ids.view(np.uint32).max() >= target.vocab_size:  # a negative one is huge there
            raise BadRequest(
                f"input '{tensors.INPUT_IDS}': ids must lie in 0..{target.vocab_size - 1}, "
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

    def _sampling(self, row: int, seed: int) -> Sampling:
        """Read how tokens are drawn.

        As with TensorRT-LLM, top_k or top_p make a request sample and 0 leaves either out. So does
        a temperature, but for 0 and 1: NVIDIA's clients send 1.0 with every greedy request.
        """
        temperature = self._number(tensors.TEMPERATURE, row, least=0.0)
        top_k = self._integer(tensors.TOP_K, row, 0, 2**31 - 1)
        top_p = self._number(tensors.TOP_P, row, least=0.0, most=1.0)
        sampling = Sampling(
            seed=seed,
            repetition_penalty=self._number(tensors.REPETITION_PENALTY, row, above=0.0),
            presence_penalty=self._number(tensors.PRESENCE_PENALTY, row),
            frequency_penalty=self._number(tensors.FREQUENCY_PENALTY, row),
        )
        samples = bool(top_k or top_p) or temperature not in (None, 1.0)
        if not samples or temperature == 0.0:
            return sampling
        return replace(
            sampling,
            temperature=1.0 if temperature is None else temperature,
            top_k=top_k or 0,
            top_p=top_p or 1.0,
        )

    def _end_ids(self, row: int) -> tuple[int, ...]:
        """The request's own end id, or the checkpoint's."""
        end_id = self._integer(tensors.END_ID, row, -1, self._settings.target.vocab_size - 1)
        if end_id is None:
            return self._settings.end_ids
        return () if end_id < 0 else (end_id,)

    def _with_drafts(self, request: Request, row: int) -> Request:
        """Return the request with who drafts, how much, and how its drafts are verified."""
        settings = self._settings
        drafter = self._drafter(row)
        longest = settings.target.max_draft_len
        asked = self._integer(tensors.NUM_DRAFT_TOKENS, row, AUTO, longest)
        looked_up = self._integer(tensors.PROMPT_LOOKUP_NUM_TOKENS, row, 1, longest)
        ngram = self._integer(tensors.MAX_MATCHING_NGRAM_SIZE, row, 1, settings.max_ngram_size)
        threshold = self._threshold(row)
        ahead = self._draft_ahead(row, drafter)
        if drafter is CONTROL or asked == 0:
            return replace(request, drafter=CONTROL.name)
        self._refuse_unless(
            drafter.looks_up,
            row,
            (tensors.PROMPT_LOOKUP_NUM_TOKENS, tensors.MAX_MATCHING_NGRAM_SIZE),
            f"needs '{tensors.DRAFTER}' to be {_those(lambda kind: kind.looks_up)}",
        )
        use_logits = self._uses_logits(row, drafter)
        return replace(
            request,
            drafter=drafter.name,
            draft_len=settings.draft_len if asked is None else asked,
            prompt_lookup_num_tokens=self._lookup_length(looked_up, asked),
            max_matching_ngram_size=ngram or settings.max_matching_ngram_size,
            use_draft_logits=use_logits,
            draft_acceptance_threshold=threshold if use_logits else None,
            draft_ahead=ahead,
        )

    def _lookup_length(self, looked_up: int | None, asked: int | None) -> int:
        """What was asked for lookups, or for drafts of any kind; AUTO is a matter of the model."""
        if looked_up is not None:
            return looked_up
        if asked is None or asked == AUTO:
            return self._settings.prompt_lookup_num_tokens
        return asked

    def _drafter(self, row: int) -> DrafterKind:
        names = self._strings(tensors.DRAFTER, row)
        name = names[0] if names and names[0] else self._settings.drafter
        known = self._settings.drafters
        if name not in known:
            raise BadRequest(
                f"input '{tensors.DRAFTER}': {_quoted(name)} given, this deployment has "
                f"{', '.join(known)}"
            )
        drafter = DRAFTERS[name]
        self._refuse_unless(
            not drafter.in_engine,
            row,
            DRAFTING,
            "cannot be honoured: the target drafts by itself",
        )
        return drafter

    def _draft_ahead(self, row: int, drafter: DrafterKind) -> bool | None:
        """Whether to draft ahead; None: where it pays."""
        given = self._strings(tensors.DRAFT_AHEAD, row)
        if not given or not given[0]:
            return self._settings.draft_ahead
        if given[0] not in DRAFT_AHEAD:
            raise BadRequest(
                f"input '{tensors.DRAFT_AHEAD}': {_quoted(given[0])} given, must be "
                f"{', '.join(DRAFT_AHEAD)}"
            )
        ahead = DRAFT_AHEAD[given[0]]
        if ahead and not drafter.samples_from_draft_model:
            raise BadRequest(
                f"input '{tensors.DRAFT_AHEAD}' needs '{tensors.DRAFTER}' to be "
                f"{_those(lambda kind: kind.samples_from_draft_model)}"
            )
        if ahead and not self._settings.draft_branches:
            raise BadRequest(
                f"input '{tensors.DRAFT_AHEAD}': true given, but this deployment's draft engine "
                "cannot draft ahead; say auto or false"
            )
        return ahead

    def _uses_logits(self, row: int, drafter: DrafterKind) -> bool:
        """Whether drafts come with the logits that they were drawn from."""
        samples = drafter.samples_from_draft_model
        self._refuse_unless(
            samples,
            row,
            (tensors.USE_DRAFT_LOGITS,),
            f"needs '{tensors.DRAFTER}' to be {_those(lambda kind: kind.samples_from_draft_model)}"
            f": '{drafter.name}' has no logits",
        )
        return samples and self._flag(
            tensors.USE_DRAFT_LOGITS, row, self._settings.use_draft_logits
        )

    def _threshold(self, row: int) -> float | None:
        """The request's, or the deployment's."""
        threshold = self._number(tensors.DRAFT_ACCEPTANCE_THRESHOLD, row, least=0.0, most=1.0)
        self._refuse_unless(
            self._flag(tensors.USE_DRAFT_LOGITS, row, self._settings.use_draft_logits),
            row,
            (tensors.DRAFT_ACCEPTANCE_THRESHOLD,),
            f"needs '{tensors.USE_DRAFT_LOGITS}' to be true: without logits tokens are accepted by "
            "comparison",
        )
        return self._settings.draft_acceptance_threshold if threshold is None else threshold

    def _refuse_unless(
        self, possible: bool, row: int, inputs: Iterable[Tensor], reason: str
    ) -> None:
        """Refuse inputs that were given (a flag: set) where they cannot be honoured."""
        for tensor in () if possible else inputs:
            if self._scalar(tensor, row, None) not in (None, False):
                raise BadRequest(f"input '{tensor}' {reason}")

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
    """`generate` makes a parameter of every key that is not an input: a typo must not vanish.

    parameters: the request's, as the JSON object that Triton gives.
    """
    if len(parameters) > MAX_PARAMETERS_BYTES:
        raise BadRequest(
            f"{len(parameters)} bytes of parameters given, at most {MAX_PARAMETERS_BYTES} are "
            "taken; send inputs only"
        )
    names: list[str] = list(tensors.INPUTS)
    for key in json.loads(parameters or "{}"):
        if key in TRITON_PARAMETERS or key.startswith("triton_"):
            continue
        near = difflib.get_close_matches(key[:LONGEST_QUOTE], names, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise BadRequest(f"unknown input {_quoted(key)}{hint}")


def check_sizes(inputs: Mapping[str, NDArray[Any]], limits: RequestLimits) -> None:
    """Refuse what is too much to look at: it costs no more than asking each value for its length.

    inputs: by name, a row a prompt; strings as bytes.
    """
    texts = inputs.get(tensors.TEXT_INPUT, np.empty((0, 1), object))
    longest = max((len(text) for text in texts.flat), default=0)
    if limits.max_text_bytes and longest > limits.max_text_bytes:
        raise BadRequest(
            f"input '{tensors.TEXT_INPUT}': {longest} bytes given, at most {limits.max_text_bytes} "
            "are taken; shorten the prompt"
        )
    lists = {tensor: inputs[tensor] for tensor in WORD_LISTS if tensor in inputs}
    for tensor, words in lists.items():
        if words.size > len(words) * limits.max_words:
            raise BadRequest(
                f"input '{tensor}': {words.size // len(words)} words given for a prompt, at most "
                f"{limits.max_words} are taken"
            )
    size = sum(len(word) for words in lists.values() for word in words.flat)
    if size > limits.max_words_bytes:
        names = ", ".join(f"'{tensor}'" for tensor in lists)
        raise BadRequest(
            f"input{'s' * (len(lists) > 1)} {names}: {size} bytes given in all, at most "
            f"{limits.max_words_bytes} are taken"
        )


def _those(fit: Callable[[DrafterKind], bool]) -> str:
    """Name the drafters of some kind."""
    return " or ".join(kind.name for kind in DRAFTERS.values() if fit(kind))


def _quoted(text: str) -> str:
    """A client's own text, short and on one line."""
    cut = "..." if len(text) > LONGEST_QUOTE else ""
    return repr(text[:LONGEST_QUOTE] + cut)
