"""Log-probabilities in the formats that clients of OpenAI and vLLM expect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tandem.contract import entry as tensors
from tandem.gateway.answers.state import Addition, AnswerState
from tandem.gateway.answers.tokens import top_tokens
from tandem.gateway.protocol.requests import GenerationRequest
from tandem.gateway.protocol.responses import (
    Alternative,
    ChatLogProb,
    ChatLogProbs,
    CompletionLogProbs,
    PromptLogProb,
    PromptLogProbs,
)
from tandem.gateway.tokenizer import UNREADABLE, ChatTokenizer
from tandem.gateway.triton.backend import ResponseChunk

CONTINUATIONS = bytes(range(0x80, 0xC0))  # bytes that continue a UTF-8 character


class LogProbRow(NamedTuple):
    """A token, its log-probability, and the most likely tokens at its position, best first.

    log_prob: None for the first token of a prompt. offset: start of the token in the text, in
    characters. text, raw: the token's characters and bytes in the text. raw is None if the bytes
    are unknown; otherwise, all rows' bytes concatenate to the text.
    """

    token: int
    log_prob: float | None
    top: list[tuple[int, float]]
    offset: int
    text: str
    raw: bytes | None


def log_prob_rows(
    tokenizer: ChatTokenizer, body: GenerationRequest, answer: AnswerState, addition: Addition
) -> list[LogProbRow]:
    """Return rows for an echoed prompt's tokens, then for the tokens that a chunk completes."""
    count = body.num_alternatives or 0
    rows: list[LogProbRow] = []
    if addition.first and body.echoes:
        rows += _echo_rows(tokenizer, answer.prompt, answer.echo.text, addition.chunk, count)
    may_be_cut = bool(body.stop_strings) and addition.chunk.finish_reason == "stop"
    for token in addition.tokens:
        if may_be_cut and answer.texts and token.offset >= answer.texts.end:
            break
        shown = _shown(tokenizer, token.id, token.text, token.length)
        rows.append(LogProbRow(token.id, token.log_prob, token.top[:count], token.offset, *shown))
    return rows


def _echo_rows(
    tokenizer: ChatTokenizer, prompt: Sequence[int], echo: str, chunk: ResponseChunk, count: int
) -> Iterator[LogProbRow]:
    """Yield rows for an echoed prompt.

    prompt: its token ids. echo: its text. chunk: first chunk of the answer. count: number of
    alternatives per token.
    """
    lengths = tokenizer.text_lengths(prompt, echo)
    offset = 0
    for (token, log_prob, top), length in zip(_rated(prompt, chunk), lengths, strict=True):
        shown = _shown(tokenizer, token, echo[offset : offset + length], length)
        yield LogProbRow(token, log_prob, top[:count], offset, *shown)
        offset += length


def _rated(
    prompt: Sequence[int], chunk: ResponseChunk
) -> Iterator[tuple[int, float | None, list[tuple[int, float]]]]:
    """Yield a prompt's tokens with log-probabilities; the first token has none."""
    top = top_tokens(chunk, tensors.PROMPT_TOP_IDS, tensors.PROMPT_TOP_LOG_PROBS, len(prompt))
    rows = zip(prompt, chunk.extras[tensors.PROMPT_LOG_PROBS], top, strict=True)
    yield next(rows)[0], None, []
    yield from rows


def _shown(
    tokenizer: ChatTokenizer, token: int, shown: str, length: int
) -> tuple[str, bytes | None]:
    """Return a token's text and bytes, limited to what the answer's text contains.

    A stop string cuts off some characters, and some tokenizers remove the space before the first
    word.

    shown: the part of the text that the token completes. It has `length` characters unless it was
    cut.
    """
    text, raw = tokenizer.token_text(token), tokenizer.token_bytes(token)
    if UNREADABLE not in text:
        return (shown, shown.encode()) if 0 < len(shown) < len(text) else (text, raw)
    if raw is None or len(shown) == length:
        return text, raw
    others_end = raw[: len(raw) - len(raw.lstrip(CONTINUATIONS))]
    raw = others_end + shown[bool(others_end) :].encode()
    return raw.decode(errors="replace"), raw


def prompt_log_probs(
    tokenizer: ChatTokenizer, prompt: Sequence[int], chunk: ResponseChunk, num_alternatives: int
) -> PromptLogProbs:
    """Return the log-probabilities of a prompt, keyed by token id as in vLLM.

    prompt: its token ids. chunk: first chunk of an answer.
    """
    rated: PromptLogProbs = []
    for token, log_prob, top in _rated(prompt, chunk):
        if log_prob is None:
            rated.append(None)
            continue
        ranked: dict[int, tuple[float, int | None]] = {token: (log_prob, None)}
        for rank, (likely, value) in enumerate(top[:num_alternatives], start=1):
            ranked[likely] = value, rank
        rated.append(
            {
                token: PromptLogProb(
                    logprob=log_prob, rank=rank, decoded_token=tokenizer.token_text(token)
                )
                for token, (log_prob, rank) in ranked.items()
            }
        )
    return rated


def chat_log_probs(
    tokenizer: ChatTokenizer, rows: Sequence[LogProbRow], *, as_ids: bool
) -> ChatLogProbs:
    def alternative(token: int, log_prob: float) -> Alternative:
        return Alternative(
            token=_id_as_name(token) if as_ids else tokenizer.token_text(token),
            logprob=log_prob,
            bytes=_as_list(tokenizer.token_bytes(token)),
        )

    content = [
        ChatLogProb(
            token=_id_as_name(row.token) if as_ids else row.text,
            logprob=row.log_prob or 0.0,
            bytes=_as_list(row.raw),
            top_logprobs=[alternative(*likely) for likely in row.top],
        )
        for row in rows
    ]
    return ChatLogProbs(content=content, refusal=None)


def completion_log_probs(
    tokenizer: ChatTokenizer, rows: Sequence[LogProbRow], *, as_ids: bool
) -> CompletionLogProbs:
    def name(token: int) -> str:
        if as_ids:
            return _id_as_name(token)
        return _name(tokenizer.token_text(token), tokenizer.token_bytes(token))

    return CompletionLogProbs(
        tokens=[_id_as_name(row.token) if as_ids else _name(row.text, row.raw) for row in rows],
        token_logprobs=[row.log_prob for row in rows],
        top_logprobs=[_by_name(name, row) for row in rows],
        text_offset=[row.offset for row in rows],
    )


def _by_name(name: Callable[[int], str], row: LogProbRow) -> dict[str, float] | None:
    """Return the log-probabilities of the token and its alternatives, by name."""
    if row.log_prob is None:
        return None
    named: dict[str, float] = {}
    for token, log_prob in [*row.top, (row.token, row.log_prob)]:
        named.setdefault(name(token), log_prob)
    return named


def _id_as_name(token: int) -> str:
    return f"token_id:{token}"


def _name(text: str, raw: bytes | None) -> str:
    """Return OpenAI's name for a token: its text, or its bytes if they aren't whole characters."""
    if raw is None or raw == text.encode():
        return text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _as_list(raw: bytes | None) -> list[int] | None:
    return None if raw is None else list(raw)
