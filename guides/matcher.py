"""Where one answer stands in its guide, and which tokens may come there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tandem.guides.errors import EndsExcluded, GuideError, TokenForbidden, shortened

if TYPE_CHECKING:
    from llguidance import LLExecutor

    from tandem.guides.automaton import GuideAutomaton

# Bit (id % 32) of word (id // 32) is set where the token may come: [rows, ceil(vocab_size / 32)].
TokenMasks: TypeAlias = NDArray[np.int32]

T = TypeVar("T")

WORD_BITS = 32
ANYTHING = np.int32(-1)  # a word of a mask that forbids nothing
# How it begins to say that an automaton is full, which answers before may have filled.
FULL = "lexer error:"
MOST_RENEWALS = 8
# Tokens that must come one after the other. The library looks at all of them for each of them, and
# keeps Python's lock where it is not asked for a mask: for 0.1 s where they are 100,000.
LONG_RUN = 1000
STEPS_OF_LONG_RUN = 16  # at once; who is asked for no more can be interrupted
# More are refused: 100,000 cost 0.1 s for each of them, and hold 100 MB.
LONGEST_RUN = 4096
DEAD_END = "no token may come next: the guide and the end ids exclude each other"
TOO_COMPLEX = "it has become too complex"
# What the library says where no text at all fits a guide.
DEAD_ENDS = ("NoExtensionBias", "NoExtension")
# How the library begins what is no text, but a token of its own.
NO_TEXT = b"\xff"
# How it says that it cannot look ahead.
ONE_WAY = "rollback not supported"
# What it advises and is not to be had here, and what is.
NO_ONE_OF = (
    ". Enable 'coerce_one_of' option to approximate oneOf with anyOf",
    " where two of them may fit at once; tell them apart by a constant, or send anyOf",
)


class Vocabulary(NamedTuple):
    """The target's.

    end_ids: those that the compiler knows as ends of sequence. special: a row of masks with the
    tokens that are no text, such as these. first_token: of bytes, no matter what they spell.
    """

    size: int
    end_ids: tuple[int, ...]
    special: NDArray[np.int32]
    first_token: Callable[[bytes], int]


class Walk(NamedTuple):
    """What may come at the place of each of some tokens, and behind the last of them.

    masks: [n + 1, words]. num_legal: how many of the tokens the guide takes, one after the other;
    rows behind the first that it does not take say nothing.
    """

    masks: TokenMasks
    num_legal: int


class GuideMatcher:
    """Follows one answer through its guide. Ends of sequence are no part of what it follows.

    fresh: returns the guide's automaton. It is asked again where the one before is full: the tokens
    so far are then followed anew.
    end_ids: those of the request. One of them may come wherever the answer is complete, and nowhere
    else, whatever the vocabulary says of it.

    Source: https://github.com/guidance-ai/llguidance, `LLMatcher`. It is fed no token that its own
    mask forbids: that would end it for good.
    """

    def __init__(
        self,
        fresh: Callable[[], GuideAutomaton],
        executor: LLExecutor,
        vocabulary: Vocabulary,
        end_ids: Sequence[int],
    ) -> None:
        self._fresh = fresh
        self._automaton = fresh()
        self._matcher = self._automaton.new_matcher()
        self._followed: list[int] = []
        self._renewals_left = MOST_RENEWALS
        self._in_long_run = False
        self._executor = executor
        self._vocabulary = vocabulary
        self._end_ids = frozenset(end_ids)
        self._words = -(-vocabulary.size // WORD_BITS)
        self._special_words = np.flatnonzero(vocabulary.special)

    def check_start(self) -> None:
        """Raise GuideError for a guide that fails at once: at its first mask, or in going back.

        To look ahead is to follow tokens, and to go back.
        """
        self.walk([])
        legal = _ids(self._masks([], rows=1)[0])
        first: list[int] = legal[~np.isin(legal, self._vocabulary.end_ids)][:1].tolist()
        self._checked(lambda: self._matcher.rollback(self._matcher.try_consume_tokens(first)))
        self.forced(1)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the guide isn't enforced, one line each."""
        return self._automaton.tried.warnings

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
        if taken < len(tokens) and not self.complete:
            raise TokenForbidden(f"the token {tokens[taken]} does not fit the guide")
        return taken

    def forced(self, most: int) -> list[int]:
        """Return up to ``most`` tokens that must come now, because no others may."""
        tokens = self.take_forced(most)
        self._go_back(len(tokens))
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
            if not self._take([token]):
                raise GuideError(TOO_COMPLEX)
            taken.append(token)
            if self._in_long_run:
                most = min(most, STEPS_OF_LONG_RUN)
        return taken

    def _take(self, tokens: list[int]) -> int:
        taken: int = self._checked(lambda: self._matcher.try_consume_tokens(tokens))
        self._followed += tokens[:taken]
        return taken

    def _go_back(self, count: int) -> None:
        """Follow the last tokens no longer."""
        if count:
            self._checked(lambda: self._matcher.rollback(count))
            del self._followed[-count:]

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
        if run and self._is_special(run[0]):
            return self._spelled([], run[0])
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
            raise EndsExcluded(DEAD_END)
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
        """Return what may come at each place, [rows, words]; zeros behind what does not fit.

        The library takes a text that must come for the special token of that name, which is no
        text. It is spelled here instead, and the library goes on with the rest of it.
        """
        masks = self._library_masks(tokens, rows)
        for place in self._places_of_special(masks[: len(tokens) + 1]):
            [lone, *others] = _ids(masks[place])
            if others or (token := self._spelled(tokens[:place], int(lone))) == lone:
                continue
            masks[place:] = 0
            word, bit = _place(token)
            masks[place].view(np.uint32)[word] = bit
            if tokens[place : place + 1] == [token]:
                masks[place + 1 :] = self._masks_behind(tokens, place + 1, rows)
            break
        return masks

    def _masks_behind(self, tokens: list[int], count: int, rows: int) -> TokenMasks:
        """Return the masks behind the first tokens."""
        taken = self._take(tokens[:count])
        masks = self._masks(tokens[count:], rows - count)
        self._go_back(taken)
        return masks

    def _spelled(self, before: list[int], special: int) -> int:
        """Return the token that must come behind some: a special one only where it is meant."""

        def text() -> bytes:
            taken = self._matcher.try_consume_tokens(before)
            forced: bytes = self._matcher.compute_ff_bytes()
            self._matcher.rollback(taken)
            return forced

        forced = self._checked(text)
        if not forced or forced.startswith(NO_TEXT):
            return special
        return self._vocabulary.first_token(forced[:1])

    def _places_of_special(self, masks: TokenMasks) -> list[int]:
        """Return the rows that hold a special token, and few others if any."""
        words = self._special_words
        has_special = (masks[:, words] & self._vocabulary.special[words]).any(axis=1)
        rows: list[int] = np.flatnonzero(has_special).tolist()
        return [row for row in rows if np.count_nonzero(masks[row]) == 1]

    def _is_special(self, token: int) -> bool:
        word, bit = _place(token)
        return bool(self._vocabulary.special.view(np.uint32)[word] & bit)

    def _library_masks(self, tokens: list[int], rows: int) -> TokenMasks:
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
        """Return what is done, by a new automaton where the one before is full."""
        done, full, alone = self._do(act)
        while full:
            if alone or not self._renewals_left:
                raise GuideError(reason_of(full))
            self._renewals_left -= 1
            self._automaton = self._fresh()
            self._matcher = self._automaton.new_matcher()
            done, full, alone = self._do(act, follow=self._followed)
        self._check()
        return done

    def _do(self, act: Callable[[], T], follow: list[int] | None = None) -> tuple[T, str, bool]:
        """Follow tokens, and act; return what is done, and why the automaton is full, if it is.

        The third says whether no other answer had a part in that.
        """
        with self._automaton.at_work():
            alone = self._automaton.untouched
            followed = self._matcher.try_consume_tokens(follow) if follow else 0
            done = act()
            errors = self._automaton.error(), self._matcher.get_error()
        full = next((error for error in errors if error.startswith(FULL)), "")
        if follow and followed < len(follow) and not full:
            raise GuideError(reason_of(errors[1]) if errors[1] else TOO_COMPLEX)
        return done, full, alone

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
    return "no text fits it" if line in DEAD_ENDS else shortened(line.replace(*NO_ONE_OF))


def _up_to(tokens: Sequence[int], ends: frozenset[int]) -> list[int]:
    """Those before the first end."""
    return next((list(tokens[:i]) for i, token in enumerate(tokens) if token in ends), list(tokens))


def _ids(mask: NDArray[np.int32]) -> NDArray[np.intp]:
    """Return the tokens that a row lets come, the smallest first."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


def _place(token: int) -> tuple[int, np.uint32]:
    """Return the word and the bit of a token in a mask."""
    return token // WORD_BITS, np.uint32(1 << token % WORD_BITS)
