"""Follows an answer through its guide, and computes the allowed next tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tandem.guides.errors import GuideError, TokenForbidden, check_run, one_line_reason

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLTokenizer

    from tandem.guides.compiler import GuideAutomaton

# [rows, ceil(vocab_size / 32)]. Bit (id % 32) of word (id // 32) is set if the token is allowed.
TokenMasks: TypeAlias = NDArray[np.int32]

T = TypeVar("T")

WORD_BITS = 32
ANYTHING = np.int32(-1)  # word of a mask that allows all tokens
# Start of the library's error for a full automaton
FULL = "lexer error:"
MAX_RENEWALS = 8
# Length of a long run of forced tokens. For each token the library looks at the whole run, and it
# holds the GIL unless it computes a mask: 0.1 s per token for 100,000 tokens.
LONG_RUN = 1000
LONG_RUN_STEPS = 16  # tokens per call, so that the caller can be interrupted
DEAD_END = "it allows no next token: it conflicts with the request's end ids"
TOO_COMPLEX = "it has become too complex"


class Walk(NamedTuple):
    """The masks at the positions of n tokens, and after the last one.

    masks: [n + 1, words]. num_legal: number of tokens before the first disallowed one. Rows after
    that position are undefined.
    """

    masks: TokenMasks
    num_legal: int


class GuideMatcher:
    """Follows one answer through its guide, without end-of-sequence tokens.

    renew: function that returns a replacement for an automaton that has become full. The tokens so
    far are then replayed. end_ids: end-of-sequence ids of the request, which are allowed only after
    a complete answer.

    Source: https://github.com/guidance-ai/llguidance, `LLMatcher`. That class never gets a
    disallowed token here, because such a token would end it permanently.
    """

    def __init__(
        self,
        automaton: GuideAutomaton,
        renew: Callable[[GuideAutomaton], GuideAutomaton],
        executor: LLExecutor,
        tokenizer: LLTokenizer,
        end_ids: Sequence[int],
    ) -> None:
        self.automaton = automaton
        self._renew = renew
        self._matcher = self.automaton.new_matcher()
        self._followed: list[int] = []
        self._renewals_left = MAX_RENEWALS
        self._in_long_run = False
        self._allows_nothing = False  # after a complete answer; the library doesn't say it at once
        self._executor = executor
        self._size = tokenizer.vocab_size
        self._library_ends = tokenizer.eos_tokens
        self._end_ids = frozenset(end_ids)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about parts of the guide that aren't enforced, one line each."""
        return self.automaton.valid_guide.warnings

    @property
    def complete(self) -> bool:
        """Whether the answer is complete, so that only an end of sequence may follow."""
        stopped = self._allows_nothing or self._matcher.is_stopped()
        return stopped and not self._matcher.is_error()

    def advance(self, tokens: Sequence[int]) -> int:
        """Follow tokens until the answer is complete. Return the number of tokens followed.

        Raises TokenForbidden if a token is disallowed, or GuideError if the guide can't be followed
        any further.
        """
        known = self._known_prefix(tokens)
        taken = self._take(known)
        if taken < len(tokens) and not self.complete:
            raise TokenForbidden(f"token {tokens[taken]} doesn't match the guide")
        return taken

    def peek_forced(self, limit: int) -> list[int]:
        """Return up to ``limit`` next tokens that are forced, without following them."""
        tokens = self.take_forced(limit)
        self._roll_back(len(tokens))
        return tokens

    def take_forced(self, limit: int) -> list[int]:
        """Follow up to ``limit`` forced tokens, and return them. A long run is returned in parts.

        The tokens are computed one at a time, like masks, because the library's tokens for an
        incomplete character depend on the position at which it starts.
        """
        taken: list[int] = []
        while len(taken) < limit and not self.complete:
            token = self._forced_next()
            if token is None or token in self._end_ids:
                break
            if not self._take([token]):
                raise GuideError(TOO_COMPLEX)
            taken.append(token)
            if self._in_long_run:
                limit = min(limit, LONG_RUN_STEPS)
        return taken

    def _take(self, tokens: list[int]) -> int:
        taken: int = self._retry_if_full(lambda: self._matcher.try_consume_tokens(tokens))
        self._followed += tokens[:taken]
        return taken

    def _roll_back(self, count: int) -> None:
        """Undo the last ``count`` tokens."""
        if count:
            self._retry_if_full(lambda: self._matcher.rollback(count))
            del self._followed[-count:]

    def _forced_next(self) -> int | None:
        if self._in_long_run:
            tokens = _ids(self._masks([], rows=1)[0])
            if len(tokens) == 1:
                return int(tokens[0])
        # A lambda, because a new automaton replaces self._matcher.
        run: list[int] = self._retry_if_full(lambda: self._matcher.compute_ff_tokens())  # noqa: PLW0108
        check_run(len(run))
        self._in_long_run = len(run) > LONG_RUN
        return run[0] if run else None

    def walk(self, tokens: Sequence[int], *, may_end: bool = True) -> Walk:
        """Return the masks at the position of each token, and after the last one.

        may_end: whether the answer may end. If not, a complete answer allows any token, because
        tokens after a complete answer are dropped. Raises GuideError if no token is allowed.
        """
        before_end = self._known_prefix(takewhile(lambda token: token not in self._end_ids, tokens))
        masks = self._masks(before_end, rows=len(tokens) + 1)
        self._set_ends(masks, may_end=may_end)
        num_legal = 0
        for token in self._known_prefix(tokens):
            if not _allows(masks[num_legal], token):
                break
            num_legal += 1
        if self._is_dead_end(masks, num_legal, before_end):
            raise GuideError(DEAD_END)
        self._allows_nothing = not masks[0].any()
        if num_legal > len(before_end) or not masks[num_legal].any():
            masks[num_legal] = ANYTHING
        return Walk(masks, num_legal)

    def _known_prefix(self, tokens: Iterable[int]) -> list[int]:
        """Return the tokens before the first unknown id, which would invalidate the matcher."""
        return list(takewhile(lambda token: 0 <= token < self._size, tokens))

    def _masks(self, tokens: list[int], rows: int) -> TokenMasks:
        """Return the library's masks, [rows, words]; zeros after a disallowed token."""
        masks = np.zeros((rows, -(-self._size // WORD_BITS)), np.int32)
        address, row_bytes = masks.ctypes.data, masks.strides[0]

        def fill() -> None:
            masks[:] = 0
            if tokens:
                self._executor.unsafe_compute_mask_ptr_with_draft_token(
                    [(self._matcher, 0, tokens)], address, row_bytes, rows
                )
            else:
                self._matcher.unsafe_compute_mask_ptr(address, row_bytes)

        self._retry_if_full(fill)
        return masks

    def _set_ends(self, masks: TokenMasks, *, may_end: bool) -> None:
        """Replace the library's end ids in the masks with the request's end ids."""
        bits = masks.view(np.uint32)
        word, bit = _word_and_bit(self._library_ends[0])
        accepting = (bits[:, word] & bit) != 0
        for end in self._library_ends:
            word, bit = _word_and_bit(end)
            bits[:, word] &= ~bit
        for end in self._end_ids:
            word, bit = _word_and_bit(end)
            bits[:, word] &= ~bit
            if may_end:
                bits[accepting, word] |= bit

    def _is_dead_end(self, masks: TokenMasks, num_legal: int, before_end: list[int]) -> bool:
        """Return whether no token may follow the allowed ones although the answer is incomplete."""
        if num_legal > len(before_end) or masks[num_legal].any():
            return False
        tokens = before_end[:num_legal]

        def incomplete() -> bool:
            taken = self._matcher.try_consume_tokens(tokens)
            accepting = self._matcher.is_accepting()
            self._matcher.rollback(taken)
            return not accepting

        return self._retry_if_full(incomplete)

    def _retry_if_full(self, operation: Callable[[], T]) -> T:
        """Return the result of ``operation``. If the automaton is full, retry with a new one."""
        result, full = self._run(operation)
        while full:
            if not self._renewals_left:
                raise GuideError(one_line_reason(full))
            self._renewals_left -= 1
            self.automaton = self._renew(self.automaton)
            self._matcher = self.automaton.new_matcher()
            result, full = self._run(operation, follow=self._followed)
        if self._matcher.is_error():
            raise GuideError(one_line_reason(self._matcher.get_error()))
        return result

    def _run(self, operation: Callable[[], T], follow: Sequence[int] = ()) -> tuple[T, str]:
        """Follow tokens and call ``operation``.

        Returns its result, and an error if the automaton is full. Raises GuideError if the tokens
        can't be followed.
        """
        with self.automaton.lock_and_time():
            followed = self._matcher.try_consume_tokens([*follow])
            result = operation()
            errors = self.automaton.error(), self._matcher.get_error()
        full = next((error for error in errors if error.startswith(FULL)), "")
        if followed < len(follow) and not full:
            raise GuideError(one_line_reason(errors[1]) if errors[1] else TOO_COMPLEX)
        return result, full


def _ids(mask: NDArray[np.int32]) -> NDArray[np.intp]:
    """Return the token ids that a mask [words] allows, in ascending order."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


def _word_and_bit(token: int) -> tuple[int, np.uint32]:
    """Return the index of a token's word in a mask, and its bit."""
    return token // WORD_BITS, np.uint32(1 << token % WORD_BITS)


def _allows(mask: NDArray[np.int32], token: int) -> bool:
    """Return whether a mask [words] has a token of the vocabulary."""
    word, bit = _word_and_bit(token)
    return bool(mask.view(np.uint32)[word] & bit)
