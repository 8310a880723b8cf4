"""Log-probabilities in the formats that clients of OpenAI and vLLM expect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tandem.contract import entry as tensors
from tandem.gateway.answers.state import AnswerDelta, AnswerState
from tandem.gateway.answers.tokens import top_tokens
from tandem.gateway.protocol.requests import GenerationRequest
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
    tokenizer: ChatTokenizer, body: GenerationRequest, answer: AnswerState, delta: AnswerDelta
) -> list[LogProbRow]:
    """Return rows for an echoed prompt's tokens, then for the tokens that a chunk completes."""
    count = body.num_alternatives or 0
    rows: list[LogProbRow] = []
    if delta.first and body.echoes:
        (ids, echo, _), offset = answer.prompt, 0
        lengths = tokenizer.text_lengths(ids, echo)
        rated = _rated(ids, delta.chunk)
        for (token, log_prob, top), length in zip(rated, lengths, strict=True):
            shown = _shown(tokenizer, token, echo[offset : offset + length], length)
            rows.append(LogProbRow(token, log_prob, top[:count], offset, *shown))
            offset += length
    may_be_cut = bool(body.stop_strings) and delta.chunk.finish_reason == "stop"
    for new in delta.tokens:
        if may_be_cut and answer.texts and new.offset >= answer.texts.end:
            break
        shown = _shown(tokenizer, new.id, new.text, new.length)
        rows.append(LogProbRow(new.id, new.log_prob, new.top[:count], new.offset, *shown))
    return rows


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
) -> list[dict[int, dict[str, Any]] | None]:
    """Return the log-probabilities of a prompt, keyed by token id as in vLLM.

    prompt: its token ids. chunk: first chunk of an answer. A rank is 1 for the most likely token,
    and None if it is unknown.
    """

    def rated(token: int, log_prob: float, rank: int | None) -> dict[str, Any]:
        text = tokenizer.token_text(token)
        return {"logprob": log_prob, "rank": rank, "decoded_token": text}

    rows: list[dict[int, dict[str, Any]] | None] = []
    for token, log_prob, top in _rated(prompt, chunk):
        if log_prob is None:
            rows.append(None)
            continue
        row = {token: rated(token, log_prob, None)}
        for rank, (likely, value) in enumerate(top[:num_alternatives], start=1):
            row[likely] = rated(likely, value, rank)
        rows.append(row)
    return rows


def chat_log_probs(
    tokenizer: ChatTokenizer, rows: Sequence[LogProbRow], *, as_ids: bool
) -> dict[str, Any]:
    """Return rows in the format of chats. as_ids: name tokens by id instead of by text."""

    def rated(token: int, text: str, raw: bytes | None, log_prob: float) -> dict[str, Any]:
        name = f"token_id:{token}" if as_ids else text
        return {"token": name, "logprob": log_prob, "bytes": None if raw is None else list(raw)}

    content = []
    for row in rows:
        alternatives = [
            rated(token, tokenizer.token_text(token), tokenizer.token_bytes(token), log_prob)
            for token, log_prob in row.top
        ]
        chosen = rated(row.token, row.text, row.raw, row.log_prob or 0.0)
        content.append(chosen | {"top_logprobs": alternatives})
    return {"content": content, "refusal": None}


def completion_log_probs(
    tokenizer: ChatTokenizer, rows: Sequence[LogProbRow], *, as_ids: bool
) -> dict[str, list[Any]]:
    """Return rows in the format of completions. as_ids: name tokens by id instead of by text."""

    def name(token: int, text: str, raw: bytes | None) -> str:
        """Return OpenAI's name: the text, or the bytes if they aren't whole characters."""
        if as_ids:
            return f"token_id:{token}"
        if raw is None or raw == text.encode():
            return text
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    names = [name(row.token, row.text, row.raw) for row in rows]
    tops: list[dict[str, float] | None] = []
    for row in rows:
        if row.log_prob is None:
            tops.append(None)
            continue
        top: dict[str, float] = {}
        for token, log_prob in [*row.top, (row.token, row.log_prob)]:
            known_as = name(token, tokenizer.token_text(token), tokenizer.token_bytes(token))
            top.setdefault(known_as, log_prob)
        tops.append(top)
    return {
        "tokens": names,
        "token_logprobs": [row.log_prob for row in rows],
        "top_logprobs": tops,
        "text_offset": [row.offset for row in rows],
    }
