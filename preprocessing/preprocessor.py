"""One request of `preprocessing`: tensors in, tensors out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from tandem.contract import preprocessing as tensors
from tandem.contract.heap import trim_heap
from tandem.preprocessing.tokenizer import InputError, load_tokenizer, special_token_ids

Array = npt.NDArray[Any]

WORD_LISTS = (
    tensors.STOP_WORDS_DICT,
    tensors.BAD_WORDS_DICT,
    tensors.EMBEDDING_BIAS_WORDS,
)
TEXTS = (tensors.QUERY, tensors.DECODER_QUERY, tensors.PREDICTION)
MAX_CHARS_PER_TOKEN = 16  # more bytes per token than in any realistic text
LONG_TEXT_BYTES = 2**20  # above this, the memory for a text's tokens is worth releasing
IMAGES = (tensors.IMAGE_BYTES, tensors.IMAGE_URL, tensors.VIDEO_BYTES)
# [b][words of the prompt]. Empty words are ignored, because NVIDIA's examples send an empty word to
# mean none.
Words = Sequence[Sequence[str]]
WordLists = Callable[[Tokenizer, Words], npt.NDArray[np.int32]]


@dataclass(frozen=True)
class TokenizerSettings:
    """The parameters of the model.

    tokenizer_dir: Hugging Face folder, absolute or relative to the model's version folder.
    add_special_tokens: whether prompts get the tokenizer's own special tokens (usually BOS).
    vocab_size: padded width of the engines' logits, which is also the width of an embedding bias.
    end_id, pad_id: defaults for requests.
    max_seq_len: maximum sequence length of the engines, in tokens; 0: no limit.
    max_text_bytes: maximum size of one prompt, in bytes of UTF-8; 0: no limit.
    max_words: maximum length of each list of stop, bad or bias words of a prompt; 0: no limit.
    max_words_bytes: maximum total size of all words of a request, in bytes; 0: no limit.
    """

    tokenizer_dir: str
    add_special_tokens: bool
    vocab_size: int
    end_id: int
    pad_id: int
    max_seq_len: int = 0
    max_text_bytes: int = 0
    max_words: int = 0
    max_words_bytes: int = 0


class Preprocessor:
    """Converts the input tensors of one request to its output tensors."""

    def __init__(self, tokenizer: Tokenizer, settings: TokenizerSettings) -> None:
        self._tokenizer = tokenizer
        self._settings = settings
        self._special = special_token_ids(tokenizer)

    @classmethod
    def load(cls, settings: TokenizerSettings, base: Path) -> Preprocessor:
        """Load the tokenizer. Raises TokenizerError. `tokenizer_dir` is relative to `base`."""
        return cls(load_tokenizer(base / settings.tokenizer_dir), settings)

    def answer(self, inputs: Mapping[str, Array], wanted: Collection[str]) -> dict[str, Array]:
        """Return the wanted outputs, which are NVIDIA's tensors for text. Raises InputError.

        Inputs are batched, with strings as bytes, for example QUERY [b, 1] and ..._WORDS_DICT [b,
        words].

        Outputs:

        - INPUT_ID [b, longest], padded with the prompt's pad id, and REQUEST_INPUT_LEN [b, 1]
        - BAD_WORDS_IDS and STOP_WORDS_IDS [b, 2, n], SPECIAL_STOP_IDS [b, words] and EMBEDDING_BIAS
          [b, vocab_size]; all have width 0 if the request sends no words
        - PREDICTION_IDS [b, longest], padded with -1
        - OUT_END_ID and OUT_PAD_ID [b, 1]

        Images are rejected, so their outputs are never produced.
        """
        _check(inputs)
        _check_sizes(inputs, self._settings)
        settings, special = self._settings, self._settings.add_special_tokens
        pads = _ids_or_default(inputs, tensors.PAD_ID, settings.pad_id)
        prompts, lengths = _pad(self._ids(inputs, tensors.QUERY, special=special), pads)
        decoder_ids = pads.tolist()  # without a DECODER_QUERY: start from the pad id
        if tensors.DECODER_QUERY in inputs:
            decoder_ids = self._ids(inputs, tensors.DECODER_QUERY, special=special)
        decoder_prompts, decoder_lengths = _pad(decoder_ids, pads)
        # Only virtual tokens have ids in the prompt table; the ids of a text are 0.
        extra_ids = np.zeros_like(prompts, np.uint64)
        if tensors.PROMPT_TABLE_EXTRA_ID not in inputs:
            extra_ids = extra_ids[:, :0]
        outputs: dict[str, Array] = {
            tensors.INPUT_ID: prompts,
            tensors.REQUEST_INPUT_LEN: lengths,
            tensors.DECODER_INPUT_ID: decoder_prompts,
            tensors.REQUEST_DECODER_INPUT_LEN: decoder_lengths,
            tensors.BAD_WORDS_IDS: self._word_lists(inputs, tensors.BAD_WORDS_DICT, bad_word_lists),
            tensors.STOP_WORDS_IDS: self._word_lists(
                inputs, tensors.STOP_WORDS_DICT, stop_word_lists
            ),
            tensors.SPECIAL_STOP_IDS: self._special_stops(inputs),
            tensors.PREDICTION_IDS: self._prediction(inputs),
            tensors.EMBEDDING_BIAS: self._embedding_bias(inputs),
            tensors.OUT_REQUEST_OUTPUT_LEN: require_input(inputs, tensors.REQUEST_OUTPUT_LEN),
            tensors.OUT_END_ID: _ids_or_default(inputs, tensors.END_ID, settings.end_id),
            tensors.OUT_PAD_ID: pads,
            tensors.OUT_PROMPT_TABLE_EXTRA_IDS: extra_ids,
        }
        if sum(len(text) for name in TEXTS if name in inputs for text in inputs[name].flat) > (
            LONG_TEXT_BYTES
        ):
            trim_heap()  # such a text takes a hundred times its size in memory
        return {name: array for name, array in outputs.items() if name in wanted}

    def _ids(self, inputs: Mapping[str, Array], name: str, *, special: bool) -> list[list[int]]:
        """Return the ids of an input's texts: [b][tokens].

        special: whether to add the tokens that mark a text's start and end. Raises InputError for a
        text that is far too long, without encoding all of it.
        """
        rows, limit = [], self._settings.max_seq_len
        for (text,) in _texts(inputs, name):
            beginning = text[: limit * MAX_CHARS_PER_TOKEN]
            if 0 < len(beginning) < len(text):
                count = len(self._encode(beginning, special))
                if count > 2 * limit:  # the cut changes a token or two, not half of them
                    raise InputError(
                        f"{name} has {count} tokens in the first {len(beginning)} of its "
                        f"{len(text)} characters; the limit is {limit}",
                        name,
                    )
            rows.append(self._encode(text, special))
        return rows

    def _prediction(self, inputs: Mapping[str, Array]) -> Array:
        if tensors.PREDICTION not in inputs:
            return np.empty((_batch(inputs), 0), np.int32)
        ids = self._ids(inputs, tensors.PREDICTION, special=False)
        return _pad(ids, np.full((len(ids), 1), -1, np.int32))[0]

    def _encode(self, text: str, special: bool) -> list[int]:
        """Encode a text without offsets, which would take most of the time for a long text."""
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        ids: list[int] = encoding.ids
        return ids

    def _special_stops(self, inputs: Mapping[str, Array]) -> Array:
        if tensors.STOP_WORDS_DICT not in inputs:
            return np.empty((_batch(inputs), 0), np.int32)
        words = _texts(inputs, tensors.STOP_WORDS_DICT)
        return special_stop_ids(self._tokenizer, words, self._special)

    def _word_lists(self, inputs: Mapping[str, Array], name: str, make: WordLists) -> Array:
        if name not in inputs:
            return np.empty((_batch(inputs), 2, 0), np.int32)
        return make(self._tokenizer, _texts(inputs, name))

    def _embedding_bias(self, inputs: Mapping[str, Array]) -> Array:
        words = inputs.get(tensors.EMBEDDING_BIAS_WORDS)
        weights = inputs.get(tensors.EMBEDDING_BIAS_WEIGHTS)
        if words is None and weights is None:
            return np.empty((_batch(inputs), 0), np.float32)
        if words is None or weights is None or words.shape != weights.shape:
            raise InputError(
                f"{tensors.EMBEDDING_BIAS_WEIGHTS} must have one value per item of "
                f"{tensors.EMBEDDING_BIAS_WORDS}",
                tensors.EMBEDDING_BIAS_WEIGHTS,
            )
        if np.isnan(weights).any():
            raise InputError(
                f"{tensors.EMBEDDING_BIAS_WEIGHTS} must not be NaN", tensors.EMBEDDING_BIAS_WEIGHTS
            )
        texts = _texts(inputs, tensors.EMBEDDING_BIAS_WORDS)
        return embedding_bias(self._tokenizer, texts, weights, self._settings.vocab_size)


def require_input(inputs: Mapping[str, Array], name: str) -> Array:
    """Return an input that Triton lets a request omit. Raises InputError if it is missing."""
    if name not in inputs:
        raise InputError(f"{name} is missing", name)
    return inputs[name]


def _check(inputs: Mapping[str, Array]) -> None:
    """Reject what Triton doesn't check: a missing QUERY, rows that don't match it, images."""
    require_input(inputs, tensors.QUERY)
    for image in IMAGES:
        if image in inputs:
            raise InputError(f"{image} isn't supported: this model accepts text only", image)
    batch = _batch(inputs)
    for name, array in inputs.items():
        if array.shape[0] != batch:
            raise InputError(
                f"{name} must have {batch} rows, one per prompt; got {array.shape[0]}", name
            )
    for query in TEXTS:
        if query in inputs and inputs[query].shape != (batch, 1):
            raise InputError(
                f"{query} must have shape [{batch}, 1]; got {list(inputs[query].shape)}", query
            )


def _check_sizes(inputs: Mapping[str, Array], settings: TokenizerSettings) -> None:
    """Reject inputs that would block the model for long or permanently increase its memory."""
    for name in TEXTS:
        longest = max((len(text) for text in inputs.get(name, np.empty(0, object)).flat), default=0)
        if 0 < settings.max_text_bytes < longest:
            raise InputError(
                f"{name} has {longest} bytes; the limit is {settings.max_text_bytes}", name
            )
    lists = {name: inputs[name] for name in WORD_LISTS if name in inputs}
    for name, words in lists.items():
        if 0 < settings.max_words * len(words) < words.size:
            raise InputError(
                f"{name} has {words.size // len(words)} words per prompt; the limit is "
                f"{settings.max_words}",
                name,
            )
    size = sum(len(word) for words in lists.values() for word in words.flat)
    if 0 < settings.max_words_bytes < size:
        raise InputError(
            f"{' and '.join(lists)}: {size} bytes in total; the limit is "
            f"{settings.max_words_bytes}",
            next(iter(lists)),
        )


def _batch(inputs: Mapping[str, Array]) -> int:
    return int(inputs[tensors.QUERY].shape[0])


def _pad(ids: Sequence[Sequence[int]], pads: Array) -> tuple[Array, Array]:
    """Return ids [b, longest], padded with pads [b, 1], and their lengths [b, 1]."""
    lengths = np.array([[len(row)] for row in ids], np.int32)
    padded = np.repeat(pads, lengths.max(), axis=1)
    for row, given in zip(padded, ids, strict=True):
        row[: len(given)] = given
    return padded, lengths


def _texts(inputs: Mapping[str, Array], name: str) -> list[list[str]]:
    """Decode the UTF-8 strings of an input: [b, words]."""
    try:
        return [[raw.decode("utf-8") for raw in row] for row in inputs[name]]
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} must be UTF-8; got byte {error.object[error.start]:#04x} at position "
            f"{error.start}",
            name,
        ) from error


def _ids_or_default(inputs: Mapping[str, Array], name: str, default: int) -> Array:
    """Return the request's ids, or else the deployment's default: [b, 1]."""
    given = inputs.get(name)
    if given is None:
        return np.full((_batch(inputs), 1), default, np.int32)
    return given.reshape(-1, 1)


def stop_word_lists(tokenizer: Tokenizer, words: Words) -> npt.NDArray[np.int32]:
    """Return the words' ids as NVIDIA's `stop_words_list`, [b, 2, n] (see `word_lists`)."""
    return word_lists([[_ids(tokenizer, word) for word in prompt] for prompt in words])


def special_stop_ids(
    tokenizer: Tokenizer, words: Words, special: Collection[int]
) -> npt.NDArray[np.int32]:
    """Return the id of each stop word that is one special token, and -1 for others: [b, words].

    special: the ids of all special tokens.
    """
    found = np.full((len(words), max(map(len, words))), -1, np.int32)
    for row, prompt in zip(found, words, strict=True):
        for at, word in enumerate(prompt):
            ids = _ids(tokenizer, word)
            if len(ids) == 1 and ids[0] in special:
                row[at] = ids[0]
    return found


def bad_word_lists(tokenizer: Tokenizer, words: Words) -> npt.NDArray[np.int32]:
    """Return the words' ids as NVIDIA's `bad_words_list`, [b, 2, n] (see `word_lists`).

    A word inside a sentence has other ids than the word on its own. NVIDIA's preprocessing bans
    only the word on its own. Here, the word after a space is banned, too.
    """
    spelled = [[form for word in prompt if word for form in (word, f" {word}")] for prompt in words]
    ids = ([_ids(tokenizer, form) for form in prompt] for prompt in spelled)
    return word_lists([list(dict.fromkeys(prompt)) for prompt in ids])  # each form once


def word_lists(ids: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.int32]:
    """Arrange words for TensorRT-LLM: [b, 2, n]. n: maximum number of ids per prompt, at least 1.

    Row 0 contains the ids of all words, padded with 0. Row 1 contains the end offset of each word,
    padded with -1. For example, words [7, 8] and [9] give [[7, 8, 9], [2, 3, -1]].
    """
    kept = [[word for word in prompt if word] for prompt in ids]
    width = max([1, *(sum(map(len, prompt)) for prompt in kept)])
    lists = np.empty((len(kept), 2, width), np.int32)
    lists[:, 0], lists[:, 1] = 0, -1
    for row, prompt in zip(lists, kept, strict=True):
        flat = [token_id for word in prompt for token_id in word]
        row[0, : len(flat)] = flat
        row[1, : len(prompt)] = np.cumsum([len(word) for word in prompt])
    return lists


def embedding_bias(
    tokenizer: Tokenizer, words: Words, weights: npt.NDArray[np.float32], vocab_size: int
) -> npt.NDArray[np.float32]:
    """Return the bias to add to the logits: [b, vocab_size]. weights: [b, words].

    A word of several ids adds its weight to each of them, once per occurrence, as in NVIDIA's
    preprocessing, but BOS gets no bias here. Raises InputError if an id is outside vocab_size.
    """
    bias = np.zeros((len(words), vocab_size), np.float32)
    for row, prompt, prompt_weights in zip(bias, words, weights, strict=True):
        for word, weight in zip(prompt, prompt_weights, strict=True):
            ids = list(_ids(tokenizer, word))
            if any(token_id >= vocab_size for token_id in ids):
                raise InputError(
                    f"{tensors.EMBEDDING_BIAS_WORDS} must be in the engine's vocabulary; "
                    f"got '{word}'",
                    tensors.EMBEDDING_BIAS_WORDS,
                )
            np.add.at(row, ids, weight)
    return bias


def _ids(tokenizer: Tokenizer, word: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(word, add_special_tokens=False).ids) if word else ()
