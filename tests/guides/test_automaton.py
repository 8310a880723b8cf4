"""What answers by one guide share is used by one at a time; who waits for it stops nobody."""

import threading

import pytest
from small_guides import END, compiler, encoded

from tandem.guides.automaton import GuideAutomaton
from tandem.guides.grammar import grammar_of
from tandem.guides.guide import Guide
from tandem.guides.matcher import GuideMatcher
from tandem.guides.trial import Tried

GUIDE = Guide("lark_grammar", 'start: "fox" (" a" | " b")+ " jumps."')
# What the library only looks up, of one matcher that nobody else has.
QUICK = {"deep_copy", "get_error", "is_error", "is_stopped"}


class Watched:
    """A matcher of the library that only works where it may."""

    def __init__(self, matcher, automaton):
        self.matcher, self.automaton = matcher, automaton

    def __getattr__(self, name):
        self.automaton.told(name)
        return getattr(self.matcher, name)


class Recording(GuideAutomaton):
    """An automaton whose matchers tell of work that nobody has kept it for."""

    def __init__(self, compiled, tried):
        super().__init__(compiled, tried)
        self.kept, self.unkept = [], []

    def told(self, name):
        if name not in QUICK:
            (self.kept if self._lock.locked() else self.unkept).append(name)

    def new_matcher(self):
        return Watched(super().new_matcher(), self)


class Executor:
    """The library's, which takes no matchers but its own."""

    def unsafe_compute_mask_ptr_with_draft_token(self, asked, *where):
        [(watched, row, tokens)] = asked
        watched.automaton.told("masks")
        compiler()._executor.unsafe_compute_mask_ptr_with_draft_token(
            [(watched.matcher, row, tokens)], *where
        )


def automaton(kind=GuideAutomaton):
    made = compiler()._compile(Tried(grammar_of(GUIDE), 1000))
    return kind(made._compiled, made.tried)


def test_all_that_takes_time_is_done_with_the_automaton_kept():
    made = automaton(Recording)
    it = GuideMatcher(lambda: made, Executor(), compiler()._vocabulary, [END])
    it.check_start()
    assert it.take_forced(9) == encoded("fox")
    for tokens in (encoded(" a"), encoded(" b"), encoded(" jumps.")):
        it.walk([*tokens, END])
        it.forced(2)
        it.advance(tokens)
    assert it.complete
    assert not made.unkept
    works = {"masks", "unsafe_compute_mask_ptr", "try_consume_tokens", "rollback"}
    assert works < set(made.kept)


def test_who_waits_for_an_automaton_lets_others_work():
    made, done, waits = automaton(), threading.Event(), threading.Event()
    it = GuideMatcher(lambda: made, compiler()._executor, compiler()._vocabulary, [END])

    def wait():
        waits.set()
        it.walk([])
        done.set()

    with made.at_work():
        waiting = threading.Thread(target=wait)
        waiting.start()
        waits.wait()
        # It would end neither if who waits held Python's lock: each switches threads.
        for _ in range(100):
            other = threading.Thread(target=compiler()._tokenizer.decode_bytes, args=([3],))
            other.start()
            other.join()
        assert not done.is_set()
    waiting.join()
    assert done.is_set()


def test_an_automaton_is_held_to_grow_while_it_works(monkeypatch):
    times = iter([1.0, 1.5])
    made = automaton()
    before = made.most_bytes
    assert made.untouched
    monkeypatch.setattr("tandem.guides.automaton.perf_counter", lambda: next(times))
    monkeypatch.setattr("tandem.guides.automaton.BYTES_PER_SECOND", 100)
    with made.at_work():
        pass
    assert made.most_bytes == before + 50
    assert not made.untouched


@pytest.mark.parametrize("text", ['start: "fox jumps over" ("." | "!")', "start: /[a-z]+/"])
def test_what_tells_of_a_full_automaton_stands_where_nothing_is_forced(text):
    made = compiler()._compile(Tried(text, 1000))
    for _ in range(30):
        assert not made.error()
    assert not made._probe_is_forced
    assert not made._probe.is_stopped()
