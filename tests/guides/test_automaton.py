"""Only one answer at a time uses a shared automaton, and waiting blocks no other threads."""

import threading

from small_guides import END, compiler, encoded

from tandem.contract.guide import Guide
from tandem.guides.compiler import GuideAutomaton
from tandem.guides.grammar import make_grammar
from tandem.guides.matcher import GuideMatcher
from tandem.guides.worker import ValidGuide

GUIDE = Guide("lark_grammar", 'start: "fox" (" a" | " b")+ " jumps."')
# Library calls that are fast enough without the lock.
QUICK = {"deep_copy", "get_error", "is_error", "is_stopped"}


class Watched:
    """A library matcher that reports its calls to the automaton."""

    def __init__(self, matcher, automaton):
        self.matcher, self.automaton = matcher, automaton

    def __getattr__(self, name):
        self.automaton.used(name)
        return getattr(self.matcher, name)


class Recording(GuideAutomaton):
    """An automaton that records matcher calls made with the lock (kept) and without (unkept)."""

    def __init__(self, compiled, tried):
        super().__init__(compiled, tried)
        self.kept, self.unkept = [], []

    def used(self, name):
        if name not in QUICK:
            (self.kept if self._lock.locked() else self.unkept).append(name)

    def new_matcher(self):
        return Watched(super().new_matcher(), self)


class Executor:
    """Unwrap matchers for the library's executor, which accepts only its own matchers."""

    def unsafe_compute_mask_ptr_with_draft_token(self, asked, *where):
        [(watched, row, tokens)] = asked
        watched.automaton.used("masks")
        compiler()._executor.unsafe_compute_mask_ptr_with_draft_token(
            [(watched.matcher, row, tokens)], *where
        )


def automaton(kind=GuideAutomaton):
    made = compiler()._compile(ValidGuide(make_grammar(GUIDE), 1000))
    return kind(made._compiled, made.valid_guide)


def test_every_slow_library_call_locks_the_automaton():
    made = automaton(Recording)
    it = GuideMatcher(made, lambda _: made, Executor(), compiler()._tokenizer, [END])
    it.walk([])
    it.peek_forced(1)
    assert it.take_forced(9) == encoded("fox")
    for tokens in (encoded(" a"), encoded(" b"), encoded(" jumps.")):
        it.walk([*tokens, END])
        it.peek_forced(2)
        it.advance(tokens)
    assert it.complete
    assert not made.unkept
    works = {"masks", "unsafe_compute_mask_ptr", "try_consume_tokens", "rollback"}
    assert works < set(made.kept)


def test_waiting_for_an_automaton_does_not_block_other_threads():
    made, done, waits = automaton(), threading.Event(), threading.Event()
    it = GuideMatcher(made, lambda _: made, compiler()._executor, compiler()._tokenizer, [END])

    def wait():
        waits.set()
        it.walk([])
        done.set()

    with made.lock_and_time():
        waiting = threading.Thread(target=wait)
        waiting.start()
        waits.wait()
        # If the waiting thread held the GIL, this loop would deadlock.
        for _ in range(100):
            other = threading.Thread(target=compiler()._tokenizer.decode_bytes, args=([3],))
            other.start()
            other.join()
        assert not done.is_set()
    waiting.join()
    assert done.is_set()
