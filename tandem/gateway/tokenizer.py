"""Convert prompts to token ids, and token ids to text."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import Tokenizer

from tandem.gateway.answers.reasoning import BEGIN as BEGIN_OF_THOUGHTS
from tandem.gateway.answers.reasoning import END as END_OF_THOUGHTS
from tandem.gateway.chat_template import (
    ChatTemplateError,
    load_chat_template,
    special_tokens,
)
from tandem.gateway.tool_calls import detect_format
from tandem.postprocessing.detokenizer import (
    make_detokenizer,
    piece_bytes,
    text_lengths,
)
from tandem.preprocessing.tokenizer import load_tokenizer

LAST_TOKENS = 16  # number of tokens to decode; a tag and a line end have fewer
UNREADABLE = "\ufffd"  # replaces bytes that aren't a character

Value = TypeVar("Value")


class Marks:
    """Marks around special tokens in a client's text, while a chat is rendered.

    A mark consists of random digits. So clients can't guess it, and templates keep it unchanged in
    text, JSON and Python literals. end: the mark after a message that the answer continues.
    """

    def __init__(self) -> None:
        begin, end, self.end = (f"{secrets.randbelow(10**30):030d}" for _ in range(3))
        self._begin, self._end, one = begin, end, f"{begin}|{end}"
        self._marked = re.compile(f"{begin}((?:(?!{one}).)*){end}|{one}", re.DOTALL)

    def wrap(self, found: re.Match[str]) -> str:
        return f"{self._begin}{found[0]}{self._end}"

    def split(self, text: str) -> list[str | None]:
        """Return `[text, marked, text, ..., text]`; None for a mark without a partner."""
        return self._marked.split(text)


class ChatTokenizer:
    """A tokenizer with its chat template, from one folder. Raises the errors of loading both.

    size: the largest token id plus 1.
    tool_calls: the model's format of tool calls, if known.
    reasons: whether the model may reason before it answers.
    special_tokens: ids by text.
    tokens_apart: tokens that llguidance doesn't treat as text, which are special tokens and added
    tokens in angle brackets.
    """

    def __init__(self, folder: Path, chat_template: Path | None = None) -> None:
        self.folder = folder
        self.template = load_chat_template(folder, chat_template)
        sources = (self.template.source_with_tools, self.template.source) if self.template else ()
        self.tool_calls = detect_format(sources[0]) if sources else None
        self.reasons = any(BEGIN_OF_THOUGHTS in source for source in sources)
        self._tokenizer = load_tokenizer(folder)
        self._detokenizer = cache(partial(make_detokenizer, self._tokenizer))
        self._as_text = load_tokenizer(folder)
        self._as_text.encode_special_tokens = True
        added = self._tokenizer.get_added_tokens_decoder().items()
        self.special_tokens = {t.content: i for i, t in added if t.special and t.content}
        self.tokens_apart = {
            t.content: i for i, t in added if t.special or re.fullmatch("<.*>", t.content)
        }
        longest_first = sorted(self.special_tokens, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._named_tokens = special_tokens(folder)
        self._token_texts: dict[int, str] = {}
        self._line_end = self._encode(self._tokenizer, "\n")
        ids = self._tokenizer.get_vocab(with_added_tokens=True).values()
        self.size = max(ids, default=-1) + 1

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of a text. Special tokens in the text are encoded as such."""
        return self._encode(self._tokenizer, text, add_special_tokens=add_special_tokens)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any] = {},
        *,
        continue_final_message: bool = False,
        check: Callable[[str], None] = lambda _: None,
    ) -> list[int]:
        """Return the ids of a chat's prompt.

        Special tokens are encoded as such only if the template writes them. In messages and
        variables, they remain text, so that a message can't imitate the end of a turn.

        continue_final_message: end the prompt with the content of the last message. check: called
        with the text before it is encoded; may raise.
        """
        if self.template is None:
            raise ChatTemplateError(
                f"the tokenizer in {self.folder} has no chat template; use /v1/completions, or "
                "start the server with --chat-template FILE"
            )
        marks = Marks()
        marked = [self._mark(dict(message), marks) for message in messages]
        if continue_final_message:
            marked[-1]["content"] += marks.end
        rendered = self.template.render(marked, self._mark(dict(variables), marks))
        if continue_final_message:
            rendered, found, _ = rendered.rpartition(marks.end)
            if not found:
                raise ChatTemplateError(
                    "the chat template drops the last message; set continue_final_message to false"
                )
        first, *rest = pieces = marks.split(rendered)
        check("".join(filter(None, pieces)))
        ids = self._encode(self._tokenizer, first or "")
        as_text = cache(self._as_text_only)
        for number, piece in enumerate(rest):
            if piece:
                ids += as_text(piece) if number % 2 == 0 else self._encode_inside(piece)
        return ids

    @property
    def info(self) -> dict[str, Any]:
        """The answer of /tokenizer_info."""
        return {
            **self._named_tokens,
            "vocab_size": self.size,
            "special_tokens": self.special_tokens,
            "chat_template": self.template.source if self.template else None,
        }

    def complete(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of ids without an incomplete character at the end."""
        return self._detokenizer(skip_special_tokens=skip_special_tokens).decode_complete(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, including special tokens."""
        text: str = self._tokenizer.decode_batch([list(ids)], skip_special_tokens=False)[0]
        return text

    def has_begun_to_reason(self, ids: Sequence[int]) -> bool:
        return self._ends_with(ids, BEGIN_OF_THOUGHTS)

    def has_reasoned(self, ids: Sequence[int]) -> bool:
        return self._ends_with(ids, END_OF_THOUGHTS)

    def first_unknown(self, ids: Sequence[int]) -> int | None:
        return next((i for i in ids if self._tokenizer.id_to_token(i) is None), None)

    def token(self, token_id: int) -> str:
        """Return a token as spelled in the vocabulary, or "" for an unknown id."""
        return self._tokenizer.id_to_token(token_id) or ""

    def token_text(self, token_id: int) -> str:
        """Return the text that a token adds, with U+FFFD for bytes that aren't a character."""
        if token_id not in self._token_texts:
            before = self.decode(self._line_end)
            # Decode it after other text, because some tokenizers remove the space before the first
            # word.
            text = self.decode([*self._line_end, token_id])[len(before) :]
            self._token_texts[token_id] = text
        return self._token_texts[token_id]

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return the bytes that a token adds to a text, or None if they are unknown."""
        text = self.token_text(token_id)
        return piece_bytes(self.token(token_id)) if UNREADABLE in text else text.encode()

    def text_lengths(self, ids: Sequence[int], text: str) -> list[int]:
        """Return the number of characters of a text that each of its ids completes.

        Special tokens that the tokenizer added around the text complete no characters.
        """
        lengths = text_lengths(self._detokenizer(skip_special_tokens=False), ids, 0)
        special = set(self.special_tokens.values())
        too_many = sum(lengths) - len(text)
        for number, token in enumerate(ids):
            if token in special and lengths[number] <= too_many:
                too_many -= lengths[number]
                lengths[number] = 0
        return lengths

    def _mark(self, value: Value, marks: Marks) -> Value:
        """Mark the special tokens in all strings of a value."""
        if isinstance(value, str):
            return self._special.sub(marks.wrap, value)  # type: ignore[return-value]
        if isinstance(value, dict):
            items = value.items()
            return {self._mark(k, marks): self._mark(v, marks) for k, v in items}  # type: ignore[return-value]
        if isinstance(value, list):
            return [self._mark(v, marks) for v in value]  # type: ignore[return-value]
        return value

    def _ends_with(self, ids: Sequence[int], tag: str) -> bool:
        return self.decode(ids[-LAST_TOKENS:]).rstrip().endswith(tag)

    def _as_text_only(self, piece: str) -> list[int]:
        """Return ids that spell a special token as text."""
        token = self._tokenizer.token_to_id(piece)
        ids = self._encode_inside(piece, self._as_text)
        if token in ids:  # the vocabulary also contains the token as a word
            ids = [i for letter in piece for i in self._encode_inside(letter, self._as_text)]
        if token in ids:
            raise ChatTemplateError(f"the tokenizer can't encode {piece!r} as text; remove it")
        return ids

    def _encode_inside(self, piece: str, tokenizer: Tokenizer | None = None) -> list[int]:
        """Encode a piece that follows other text.

        Some tokenizers add a space at the start of a text. So the piece is encoded after a line
        end, whose ids are then removed.
        """
        tokenizer = tokenizer or self._tokenizer
        ids = self._encode(tokenizer, "\n" + piece)
        line_end = self._line_end
        if ids[: len(line_end)] == line_end:
            return ids[len(line_end) :]
        return self._encode(tokenizer, piece)

    @staticmethod
    def _encode(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = False) -> list[int]:
        # Only the batch methods release Python's global lock.
        encoded = tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoded[0].ids
        return ids
