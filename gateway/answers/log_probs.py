"""Log-probabilities of one answer, from the entries to OpenAI's clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.gateway.answers.tokens import TokenTexts
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

CONTINUATIONS = bytes(range(0x80, 0xC0))  # bytes of UTF-8 that only go on with a character


class LogProbRow(NamedTuple):
    """A token, how likely it was, and the likeliest at its place, best first.

    log_prob: None for a prompt's first token, which nothing precedes. offset: where it begins in
    the text, in characters. text, raw: what the text shows of it, as OpenAI's clients read it.
    """

    token: int
    log_prob: float | None
    top: list[tuple[int, float]]
    offset: int
    text: str
    raw: bytes | None


class LogProbReader:
    """Reads the rows of one answer off its chunks. The tokens of all rows join to the text.

    num_alternatives: of each token, at most. may_be_cut: there are stop strings, and what they cut
    off has no rows. prompt: its ids, if the answer begins with it; echo: its text.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        num_alternatives: int,
        *,
        may_be_cut: bool = False,
        prompt: Sequence[int] | None = None,
        echo: str = "",
    ) -> None:
        self._num_alternatives = num_alternatives
        self._tokenizer = tokenizer
        self._may_be_cut = may_be_cut
        self._prompt = prompt
        self._echo = echo
        self._texts: TokenTexts[tuple[int, float, int, list[tuple[int, float]]]] = TokenTexts(
            len(echo)
        )

    def rows(self, chunk: ResponseChunk) -> list[LogProbRow]:
        """Return the rows that the next chunk completes, after the prompt's in the first one."""
        return [*self._prompt_rows(chunk), *self._answer_rows(chunk)]

    def _prompt_rows(self, chunk: ResponseChunk) -> Iterator[LogProbRow]:
        prompt, self._prompt = self._prompt, None
        if prompt is None:
            return
        top = _top(chunk, tensors.PROMPT_TOP_IDS, tensors.PROMPT_TOP_LOG_PROBS, len(prompt))
        lengths = self._tokenizer.text_lengths(prompt, self._echo)
        columns = zip(prompt, chunk.extras[tensors.PROMPT_LOG_PROBS], lengths, top, strict=True)
        offset = 0
        for number, (token, log_prob, length, likeliest) in enumerate(columns):
            shown = self._shown(token, self._echo[offset : offset + length], length)
            if number:
                best = likeliest[: self._num_alternatives]
                yield LogProbRow(token, log_prob, best, offset, *shown)
            else:  # nothing precedes the first token
                yield LogProbRow(token, None, [], offset, *shown)
            offset += length

    def _answer_rows(self, chunk: ResponseChunk) -> Iterator[LogProbRow]:
        top = _top(chunk, tensors.OUTPUT_TOP_IDS, tensors.OUTPUT_TOP_LOG_PROBS, len(chunk.tokens))
        columns = (chunk.extras[n] for n in (tensors.OUTPUT_LOG_PROBS, tensors.OUTPUT_TEXT_LENGTHS))
        rows = zip(chunk.tokens, *columns, top, strict=True)
        cut = self._may_be_cut and chunk.finish_reason == "stop"
        for offset, text, (token, log_prob, length, likeliest) in self._texts.completed(
            chunk, rows
        ):
            if cut and offset >= self._texts.end:
                return
            shown = self._shown(token, text, length)
            best = likeliest[: self._num_alternatives]
            yield LogProbRow(token, log_prob, best, offset, *shown)

    def _shown(self, token: int, shown: str, length: int) -> tuple[str, bytes | None]:
        """Return a token's text and bytes, less what the text leaves out.

        That is what a stop string cuts off, and the space that some tokenizers take off the text's
        first word. shown: the characters that the token completes, of which there were ``length``.
        """
        text, raw = self._tokenizer.token_text(token), self._tokenizer.token_bytes(token)
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
    """Return the log-probabilities of a prompt by token id, as vLLM's clients read them.

    prompt: its ids. chunk: the first one of an answer.
    """
    told: PromptLogProbs = [None]  # nothing precedes the first token
    top = _top(chunk, tensors.PROMPT_TOP_IDS, tensors.PROMPT_TOP_LOG_PROBS, len(prompt))
    rows = zip(prompt, chunk.extras[tensors.PROMPT_LOG_PROBS], top, strict=True)
    for token, log_prob, likeliest in list(rows)[1:]:
        ranked: dict[int, tuple[float, int | None]] = {token: (log_prob, None)}
        for rank, (likely, value) in enumerate(likeliest[:num_alternatives], start=1):
            ranked[likely] = value, rank
        told.append(
            {
                token: PromptLogProb(
                    logprob=log_prob, rank=rank, decoded_token=tokenizer.token_text(token)
                )
                for token, (log_prob, rank) in ranked.items()
            }
        )
    return told


def chat_log_probs(
    tokenizer: ChatTokenizer, rows: Sequence[LogProbRow], *, as_ids: bool = False
) -> ChatLogProbs:
    name = _id_as_name if as_ids else tokenizer.token_text

    def alternative(token: int, log_prob: float) -> Alternative:
        return Alternative(
            token=name(token),
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
    tokenizer: ChatTokenizer, rows: Sequence[LogProbRow], *, as_ids: bool = False
) -> CompletionLogProbs:

    def name(token: int) -> str:
        if as_ids:
            return _id_as_name(token)
        return _name(tokenizer.token_text(token), tokenizer.token_bytes(token))

    return CompletionLogProbs(
        tokens=[_id_as_name(row.token) if as_ids else _name(row.text, row.raw) for row in rows],
        token_logprobs=[row.log_prob for row in rows],
        top_logprobs=[_likeliest(name, row) for row in rows],
        text_offset=[row.offset for row in rows],
    )


def _likeliest(name: Callable[[int], str], row: LogProbRow) -> dict[str, float] | None:
    """The alternatives by their names, and the token itself, which may be none of them."""
    if row.log_prob is None:
        return None
    told: dict[str, float] = {}
    for token, log_prob in [*row.top, (row.token, row.log_prob)]:
        told.setdefault(name(token), log_prob)
    return told


def _id_as_name(token: int) -> str:
    return f"token_id:{token}"


def _name(text: str, raw: bytes | None) -> str:
    """What OpenAI calls a token: its text, or the bytes of what is no text alone."""
    if raw is None or raw == text.encode():
        return text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _top(
    chunk: ResponseChunk, ids: Tensor, log_probs: Tensor, count: int
) -> Sequence[list[tuple[int, float]]]:
    if ids not in chunk.extras:
        return [[]] * count
    rows = zip(chunk.extras[ids], chunk.extras[log_probs], strict=True)
    return [list(zip(*row, strict=True)) for row in rows]


def _as_list(raw: bytes | None) -> list[int] | None:
    return None if raw is None else list(raw)
