"""Assign text to the tokens of an answer, and write their log-probabilities.

Their formats are those that clients of OpenAI and vLLM expect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.gateway.protocol.requests import GenerationRequest
from tandem.gateway.tokenizer import UNREADABLE, ChatTokenizer
from tandem.gateway.triton.backend import ResponseChunk

if TYPE_CHECKING:
    from tandem.gateway.answers.answer import ParsedAnswer

# The outputs that describe the origin of each token.
ORIGINS = (
    tensors.OUTPUT_ROUNDS,
    tensors.OUTPUT_KINDS,
    tensors.OUTPUT_TEXT_LENGTHS,
    tensors.OUTPUT_REJECTED_IDS,
)
OF_TOKENS = (
    tensors.OUTPUT_ROUNDS,
    tensors.OUTPUT_KINDS,
    tensors.OUTPUT_REJECTED_IDS,
    tensors.OUTPUT_LOG_PROBS,
)


class AnswerToken(NamedTuple):
    """A token of an answer or of an echoed prompt, with its text.

    offset: start of the text in the answer, in characters. length: number of characters that the
    token completes; a stop string may leave fewer of them in the text. round, kind, rejected,
    log_prob: None unless requested; the first token of a prompt has no log_prob. rejected: the
    draft token that it replaces, or -1. top: the most likely tokens and their log-probabilities,
    best first.
    """

    offset: int
    text: str
    id: int
    length: int
    round: int | None
    kind: int | None
    rejected: int | None
    log_prob: float | None
    top: list[tuple[int, float]]


class TokenTexts:
    """Assigns the text of one answer to its tokens.

    Text that may be the start of a stop string arrives later than its tokens. So a token is held
    until its text has arrived.

    rest: text that doesn't belong to a complete token. end: number of characters received so far.
    """

    def __init__(self, offset: int) -> None:
        self._held: deque[tuple[Any, ...]] = deque()
        self._offset = offset  # start of the first held token, in characters
        self.rest = ""
        self.end = offset

    def complete(self, chunk: ResponseChunk) -> Iterator[AnswerToken]:
        """Yield the tokens whose text this chunk completes."""
        self.rest += chunk.text
        self.end += len(chunk.text)
        count = len(chunk.tokens)
        columns = (
            chunk.tokens,
            chunk.extras[tensors.OUTPUT_TEXT_LENGTHS],
            *(chunk.extras.get(name, [None] * count) for name in OF_TOKENS),
            top_tokens(chunk, tensors.OUTPUT_TOP_IDS, tensors.OUTPUT_TOP_LOG_PROBS, count),
        )
        self._held.extend(zip(*columns, strict=True))
        begin = 0
        while self._held:
            token, length, *others = self._held[0]
            # A token that is only part of a character has length 0. The next token shows whether it
            # is in the text.
            if chunk.finish_reason is None and begin + max(length, 1) > len(self.rest):
                break
            self._held.popleft()
            text = self.rest[begin : begin + length]
            yield AnswerToken(self._offset + begin, text, token, length, *others)
            begin += length
        self._offset += begin
        self.rest = self.rest[begin:]


def top_tokens(
    chunk: ResponseChunk, ids: Tensor, log_probs: Tensor, count: int
) -> Sequence[list[tuple[int, float]]]:
    """Return the most likely tokens at each of `count` positions; empty lists if not requested."""
    rows = zip(chunk.extras.get(ids, ()), chunk.extras.get(log_probs, ()), strict=True)
    return [list(zip(*row, strict=True)) for row in rows] or [[] for _ in range(count)]


CONTINUATIONS = bytes(range(0x80, 0xC0))  # bytes that continue a UTF-8 character


def tokens_with_log_probs(
    tokenizer: ChatTokenizer, body: GenerationRequest, answer: ParsedAnswer
) -> Iterator[AnswerToken]:
    """Yield the tokens of an echoed prompt, then the tokens that the last chunk completes."""
    count = body.num_alternatives or 0
    if answer.first and body.echoes:
        (ids, echo, _), at = answer.prompt, 0
        lengths = tokenizer.text_lengths(ids, echo)
        prompt_tokens = _prompt_tokens_with_log_probs(answer)
        for (token, log_prob, top), length in zip(prompt_tokens, lengths, strict=True):
            text = echo[at : at + length]
            yield AnswerToken(at, text, token, length, None, None, None, log_prob, top[:count])
            at += length
    may_be_cut = bool(body.stop) and answer.chunk.finish_reason == "stop"
    for new in answer.tokens:
        if may_be_cut and answer.texts and new.offset >= answer.texts.end:
            break
        yield new._replace(top=new.top[:count])


def _prompt_tokens_with_log_probs(
    answer: ParsedAnswer,
) -> Iterator[tuple[int, float | None, list[tuple[int, float]]]]:
    """Yield a prompt's tokens with log-probabilities; the first token has none."""
    prompt, chunk = answer.prompt.ids, answer.chunk
    top = top_tokens(chunk, tensors.PROMPT_TOP_IDS, tensors.PROMPT_TOP_LOG_PROBS, len(prompt))
    rows = zip(prompt, chunk.extras[tensors.PROMPT_LOG_PROBS], top, strict=True)
    yield next(rows)[0], None, []
    yield from rows


def visible_text(tokenizer: ChatTokenizer, token: AnswerToken) -> tuple[str, bytes | None]:
    """Return a token's text and bytes, limited to what the answer's text contains.

    A stop string cuts off some characters, and some tokenizers remove the space before the first
    word. The bytes are None if they are unknown; otherwise, all tokens' bytes concatenate to the
    text.
    """
    text, raw = tokenizer.token_text(token.id), tokenizer.token_bytes(token.id)
    if UNREADABLE not in text:
        return (token.text, token.text.encode()) if 0 < len(token.text) < len(text) else (text, raw)
    if raw is None or len(token.text) == token.length:
        return text, raw
    others_end = raw[: len(raw) - len(raw.lstrip(CONTINUATIONS))]
    raw = others_end + token.text[bool(others_end) :].encode()
    return raw.decode(errors="replace"), raw


def prompt_log_probs(
    tokenizer: ChatTokenizer, answer: ParsedAnswer, num_alternatives: int
) -> list[dict[int, dict[str, Any]] | None]:
    """Return the log-probabilities of an answer's prompt, keyed by token id as in vLLM.

    The first chunk has them. A rank is 1 for the most likely token, and None if it is unknown.
    """

    def describe(token: int, log_prob: float, rank: int | None) -> dict[str, Any]:
        text = tokenizer.token_text(token)
        return {"logprob": log_prob, "rank": rank, "decoded_token": text}

    rows: list[dict[int, dict[str, Any]] | None] = []
    for token, log_prob, top in _prompt_tokens_with_log_probs(answer):
        if log_prob is None:
            rows.append(None)
            continue
        row = {token: describe(token, log_prob, None)}
        for rank, (likely, value) in enumerate(top[:num_alternatives], start=1):
            row[likely] = describe(likely, value, rank)
        rows.append(row)
    return rows


def chat_log_probs(
    tokenizer: ChatTokenizer, tokens: Iterable[AnswerToken], *, as_ids: bool
) -> dict[str, Any]:
    """Return log-probabilities in the format of chats. as_ids: name tokens by id, not by text."""

    def describe(token: int, text: str, raw: bytes | None, log_prob: float) -> dict[str, Any]:
        name = f"token_id:{token}" if as_ids else text
        return {"token": name, "logprob": log_prob, "bytes": None if raw is None else list(raw)}

    content = []
    for token in tokens:
        alternatives = [
            describe(other, tokenizer.token_text(other), tokenizer.token_bytes(other), log_prob)
            for other, log_prob in token.top
        ]
        chosen = describe(token.id, *visible_text(tokenizer, token), token.log_prob or 0.0)
        content.append(chosen | {"top_logprobs": alternatives})
    return {"content": content, "refusal": None}


def completion_log_probs(
    tokenizer: ChatTokenizer, tokens: Iterable[AnswerToken], *, as_ids: bool
) -> dict[str, list[Any]]:
    """Return log-probabilities in the format of completions.

    as_ids: name tokens by id, not by text. The first token of an echoed prompt has no
    log-probability. text_offset: start of each token in the text, in characters.
    """

    def name(token: int, text: str, raw: bytes | None) -> str:
        """Return OpenAI's name: the text, or the bytes if they aren't whole characters."""
        if as_ids:
            return f"token_id:{token}"
        if raw is None or raw == text.encode():
            return text
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    made: dict[str, list[Any]] = {
        "tokens": [],
        "token_logprobs": [],
        "top_logprobs": [],
        "text_offset": [],
    }
    for token in tokens:
        top: dict[str, float | None] = {}
        for other, log_prob in [*token.top, (token.id, token.log_prob)]:
            known_as = name(other, tokenizer.token_text(other), tokenizer.token_bytes(other))
            top.setdefault(known_as, log_prob)
        made["tokens"].append(name(token.id, *visible_text(tokenizer, token)))
        made["token_logprobs"].append(token.log_prob)
        made["top_logprobs"].append(None if token.log_prob is None else top)
        made["text_offset"].append(token.offset)
    return made
