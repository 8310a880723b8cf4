"""Where one answer stands in its guide, and which tokens may come there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tandem.guides.errors import GuideError, TokenForbidden, shortened

if TYPE_CHECKING:
    import threading

    from llguidance import LLExecutor, LLMatcher

# Bit (id % 32) of word (id // 32) is set where the token may come: [rows, ceil(vocab_size / 32)].
TokenMasks: TypeAlias = NDArray[np.int32]

T = TypeVar("T")

WORD_BITS = 32
ANYTHING = np.int32(-1)  # a word of a mask that forbids nothing
# How it begins to say that an automaton is full, which answers before may have filled.
FULL = "lexer error:"
MOST_RENEWALS = 16
# Tokens that must come one after the other. The library looks at all of them for each of them, and
# keeps Python's lock where it is not asked for a mask: for 0.1 s where they are 100,000.
LONG_RUN = 1000
STEPS_OF_LONG_RUN = 16  # at once; who is asked for no more can be interrupted
# More are refused: 100,000 cost 0.1 s for each of them, and hold 100 MB.
LONGEST_RUN = 4096
DEAD_END = "no token may come next: the guide and the end ids exclude each other"
# What the library says where no text at all fits a guide.
DEAD_ENDS = ("NoExtensionBias", "NoExtension")
# How it says that it cannot look ahead.
ONE_WAY = "rollback not supported"


class Vocabulary(NamedTuple):
    """The target's. end_ids: those that the compiler knows as ends of sequence."""

    size: int
    end_ids: tuple[int, ...]


class Walk(NamedTuple):
    """What may come at the place of each of some tokens, and behind the last of them.

    masks: [n + 1, words]. num_legal: how many of the tokens the guide takes, one after the other;
    rows behind the first that it does not take say nothing.
    """

    masks: TokenMasks
    num_legal: int


class GuideMatcher:
    """Follows one answer through its guide. Ends of sequence are no part of what it follows.

    fresh: returns the library's matcher at the beginning of an answer, and the lock of all that
    share its automaton: the library has one too, and waits for it with Python's own held. It is
    asked again where the one before is full: the tokens so far are then followed anew.
    end_ids: those of the request. One of them may come wherever the answer is complete, and nowhere
    else, whatever the vocabulary says of it.

    Source: https://github.com/guidance-ai/llguidance, `LLMatcher`. It is fed no token that its own
    mask forbids: that would end it for good.
    """

    def __init__(
        self,
        fresh: Callable[[], tuple[LLMatcher, threading.Lock]],
        executor: LLExecutor,
        vocabulary: Vocabulary,
        end_ids: Sequence[int],
    ) -> None:
        self._fresh = fresh
        self._matcher, self._lock = fresh()
        self._followed: list[int] = []
        self._renewals_left = MOST_RENEWALS
        self._in_long_run = False
        self._executor = executor
        self._vocabulary = vocabulary
        self._end_ids = frozenset(end_ids)
        self._words = -(-vocabulary.size // WORD_BITS)

    def check_start(self) -> None:
        """Raise GuideError for a guide that fails at once: at its first mask, or in going back.

        To look ahead is to follow tokens, and to go back.
        """
        self.walk([])
        legal = _ids(self._masks([], rows=1)[0])
        first: list[int] = legal[~np.isin(legal, self._vocabulary.end_ids)][:1].tolist()
        self._checked(lambda: self._matcher.rollback(self._matcher.try_consume_tokens(first)))
        self._forced_next()

    @property
    def complete(self) -> bool:
        """Whether nothing may follow any more but an end of sequence."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def advance(self, tokens: Sequence[int]) -> int:
        """Follow tokens up to where the guide is complete; return how many it took.

        Raises TokenForbidden, or GuideError where it cannot be followed.
        """
        known = self._known(tokens)
        taken = self._take(known)
        if taken < len(known) and not self.complete and self._may_renew():
            # A full automaton may say so, or that a token does not fit which its own mask let come.
            self._renew()
            taken += self._take(known[taken:])
        if taken < len(tokens) and not self.complete:
            raise TokenForbidden(f"the token {tokens[taken]} does not fit the guide")
        return taken

    def forced(self, most: int) -> list[int]:
        """Return up to ``most`` tokens that must come now, because no others may."""
        tokens = self.take_forced(most)
        if tokens:
            self._checked(lambda: self._matcher.rollback(len(tokens)))
            del self._followed[-len(tokens) :]
        return tokens

    def take_forced(self, most: int) -> list[int]:
        """Follow up to ``most`` tokens that must come now, and return them; of many only some.

        One after the other: how the library spells bytes that are no whole character depends on
        where it begins, and a mask that is made for one place begins there.
        """
        taken: list[int] = []
        while len(taken) < most and not self.complete:
            token = self._forced_next()
            if token is None or token in self._end_ids:
                break
            self.advance([token])
            taken.append(token)
            if self._in_long_run:
                most = min(most, STEPS_OF_LONG_RUN)
        return taken

    def _take(self, tokens: list[int]) -> int:
        taken: int = self._checked(lambda: self._matcher.try_consume_tokens(tokens))
        self._followed += tokens[:taken]
        return taken

    def _forced_next(self) -> int | None:
        if self._in_long_run:
            tokens = _ids(self._masks([], rows=1)[0])
            if len(tokens) == 1:
                return int(tokens[0])
        run: list[int] = self._checked(self._run)
        if len(run) > LONGEST_RUN:
            raise GuideError(
                f"{len(run)} tokens would be the only ones to fit, one after the other, at most "
                f"{LONGEST_RUN} are taken; send shorter constants"
            )
        self._in_long_run = len(run) > LONG_RUN
        return run[0] if run else None

    def _run(self) -> list[int]:
        return self._matcher.compute_ff_tokens()

    def walk(self, tokens: Sequence[int], *, may_end: bool = True) -> Walk:
        """Return what may come at the place of each token, and behind the last one.

        may_end: whether the answer may end there at all. Where it is complete and may not, anything
        may come: what comes behind a complete answer is dropped. Raises GuideError.
        """
        before_end = self._known(_up_to(tokens, self._end_ids))
        masks, num_legal = self._masks_and_legal(tokens, before_end, may_end=may_end)
        if self._is_dead_end(masks, num_legal, before_end):
            if self._may_renew():
                self._renew()  # a full automaton may say so
                masks, num_legal = self._masks_and_legal(tokens, before_end, may_end=may_end)
            if self._is_dead_end(masks, num_legal, before_end):
                raise GuideError(DEAD_END)
        if num_legal > len(before_end) or not masks[num_legal].any():
            masks[num_legal] = ANYTHING
        return Walk(masks, num_legal)

    def _masks_and_legal(
        self, tokens: Sequence[int], before_end: list[int], *, may_end: bool
    ) -> tuple[TokenMasks, int]:
        """Return a row for each token and the next, and how many of the tokens these let come."""
        masks = self._masks(before_end, rows=len(tokens) + 1)
        self._set_ends(masks, may_end=may_end)
        illegal = (i for i, token in enumerate(tokens) if not self._may(masks[i], token))
        return masks, next(illegal, len(tokens))

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """Those before the first id that the vocabulary does not have: it would end the matcher."""
        unknown = (i for i, token in enumerate(tokens) if not 0 <= token < self._vocabulary.size)
        return list(tokens[: next(unknown, len(tokens))])

    def _masks(self, tokens: list[int], rows: int) -> TokenMasks:
        """Return what the library says, [rows, words]; zeros behind what it does not take."""
        masks = np.zeros((rows, self._words), np.int32)
        address, row_bytes = masks.ctypes.data, masks.strides[0]

        def fill() -> None:
            masks[:] = 0
            if tokens:
                self._executor.unsafe_compute_mask_ptr_with_draft_token(
                    [(self._matcher, 0, tokens)], address, row_bytes, rows
                )
            else:
                self._matcher.unsafe_compute_mask_ptr(address, row_bytes)

        self._checked(fill)
        return masks

    def _set_ends(self, masks: TokenMasks, *, may_end: bool) -> None:
        """Let the request's end ids come where the library would let the vocabulary's come."""
        bits = masks.view(np.uint32)
        word, bit = _place(self._vocabulary.end_ids[0])
        accepting = (bits[:, word] & bit) != 0
        for end in self._vocabulary.end_ids:
            word, bit = _place(end)
            bits[:, word] &= ~bit
        for end in self._end_ids:
            word, bit = _place(end)
            bits[:, word] &= ~bit
            if may_end:
                bits[accepting, word] |= bit

    def _may(self, mask: NDArray[np.int32], token: int) -> bool:
        if not 0 <= token < self._vocabulary.size:
            return False
        word, bit = _place(token)
        return bool(mask.view(np.uint32)[word] & bit)

    def _is_dead_end(self, masks: TokenMasks, num_legal: int, before_end: list[int]) -> bool:
        """Whether nothing may follow the legal tokens though the answer is incomplete."""
        if num_legal > len(before_end) or masks[num_legal].any():
            return False
        tokens = before_end[:num_legal]

        def incomplete() -> bool:
            taken = self._matcher.try_consume_tokens(tokens)
            accepting = self._matcher.is_accepting()
            self._matcher.rollback(taken)
            return not accepting

        return self._checked(incomplete)

    def _checked(self, act: Callable[[], T]) -> T:
        """Return what is done, once more where it was the automaton's fault that it failed."""
        with self._lock:
            done = act()
        full = self._matcher.is_error() and self._matcher.get_error().startswith(FULL)
        if full and self._may_renew():
            self._renew()
            with self._lock:
                done = act()
        self._check()
        return done

    def _may_renew(self) -> bool:
        self._renewals_left -= 1
        return self._renewals_left >= 0

    def _renew(self) -> None:
        """Follow the answer so far in a new automaton."""
        self._matcher, self._lock = self._fresh()
        with self._lock:
            taken = self._matcher.try_consume_tokens(self._followed)
        self._check()
        if taken < len(self._followed):
            raise GuideError("it has become too complex")

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GuideError(reason_of(self._matcher.get_error()))


def reason_of(error: str) -> str:
    """Return one line of the library's words; the others may hold the answer's text.

    Of an expression that is none, the first line says only that; the reason is in another.
    """
    line, _, others = error.strip().partition("\n")
    if line.endswith("regex parse error:"):
        reasons = (other for other in others.split("\n") if other.startswith("error: "))
        line = f"{line} {next(reasons, '').removeprefix('error: ')}".rstrip()
    if line.startswith(ONE_WAY):
        return "attributes of rules that count or stop, max_tokens and stop, are not supported"
    return "no text fits it" if line in DEAD_ENDS else shortened(line)


def _up_to(tokens: Sequence[int], ends: frozenset[int]) -> list[int]:
    """Those before the first end."""
    return next((list(tokens[:i]) for i, token in enumerate(tokens) if token in ends), list(tokens))


def _ids(mask: NDArray[np.int32]) -> NDArray[np.intp]:
    """Return the tokens that a row lets come, the smallest first."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


def _place(token: int) -> tuple[int, np.uint32]:
    """Return the word and the bit of a token in a mask."""
    return token // WORD_BITS, np.uint32(1 << token % WORD_BITS)
