"""Guides are compiled once and cached within limits."""

import random
import re

import pytest
import tokenizer_kinds
from llguidance import LLParserLimits
from small_guides import END, allowed, encoded, is_cached

from tandem.contract.guide import Guide
from tandem.guides.compiler import GuideCompiler
from tandem.guides.errors import OTHER_KEYWORD, GuideError, GuideUndecided, keywords_of
from tandem.guides.worker import Worker


@pytest.fixture
def fresh(tmp_path):
    tokenizer = tokenizer_kinds.byte_level()
    tokenizer_kinds.write(tokenizer, tmp_path)
    made = GuideCompiler(tmp_path, tokenizer.get_vocab_size(), [END])
    yield made
    made.close()


@pytest.fixture
def compiled(monkeypatch):
    """The list of grammars that this process compiles, without grammars compiled by workers."""
    here, compile_ = [], GuideCompiler._compile

    def compile_and_record(self, tried):
        here.append(tried.grammar)
        return compile_(self, tried)

    monkeypatch.setattr(GuideCompiler, "_compile", compile_and_record)
    return here


def test_an_invalid_guide_is_compiled_only_by_a_worker(fresh, compiled):
    with pytest.raises(GuideError):
        fresh.matcher(Guide("regex", "a{2,1}"), [END])
    assert compiled == []
    fresh.matcher(Guide("regex", "a{2}"), [END])
    assert len(compiled) == 1


def test_end_ids_that_conflict_with_a_guide_affect_only_their_request(fresh, compiled):
    guide = Guide("choice", '["fox"]')
    [first] = allowed(fresh.matcher(guide, [END]).walk([]).masks[0])
    for _ in range(2):
        with pytest.raises(GuideError, match="it conflicts with the request's end ids"):
            fresh.matcher(guide, [first])
        assert fresh.matcher(guide, [END]).peek_forced(1) == [first]
    assert len(compiled) == 1


@pytest.fixture
def sized(fresh, monkeypatch):
    """Each compiled guide takes 1000 bytes and grows by 100 bytes per second of use."""
    times = [0.0, 0.0]  # current time and duration of each call, in seconds

    def clock():
        times[0] += times[1]
        return times[0]

    monkeypatch.setattr("tandem.guides.compiler.perf_counter", clock)
    monkeypatch.setattr("tandem.guides.compiler.BYTES_PER_SECOND", 100)
    compile_ = fresh._compile
    monkeypatch.setattr(fresh, "_compile", lambda tried: compile_(tried._replace(num_bytes=1000)))
    return times


def test_the_cache_drops_the_largest_then_the_oldest_guide(fresh, sized, monkeypatch):
    monkeypatch.setattr("tandem.guides.compiler.MAX_CACHE_BYTES", 4500)
    guides = [Guide("regex", f"[a-z]*{n}") for n in range(6)]
    for guide in guides[:4]:
        fresh.matcher(guide, [END])
    used = fresh.matcher(guides[0], [END])
    fresh.matcher(guides[4], [END])
    assert [is_cached(fresh, guide) for guide in guides[:5]] == [True, False, True, True, True]
    sized[1] = 1.0
    used.walk([])
    sized[1] = 0.0
    fresh.matcher(guides[5], [END])
    assert [is_cached(fresh, guide) for guide in guides] == [False, False, True, True, True, True]
    assert used.advance(encoded("a")) == 1  # a running answer keeps its dropped guide


def test_a_rejected_guide_is_not_compiled_again(fresh, monkeypatch):
    rejected = Guide("json_schema", '{"not": {}}')
    assert not is_cached(fresh, rejected)
    with pytest.raises(GuideError) as first:
        fresh.matcher(rejected, [END])
    assert is_cached(fresh, rejected)
    monkeypatch.setattr(Worker, "try_out", pytest.fail)
    with pytest.raises(GuideError) as again:
        fresh.matcher(rejected, [END])
    assert str(again.value) == str(first.value)


def test_the_same_text_can_be_invalid_as_one_kind_and_valid_as_another(fresh):
    with pytest.raises(GuideError):
        fresh.matcher(Guide("json_schema", "[a]"), [END])
    fresh.matcher(Guide("regex", "[a]"), [END])


def test_the_number_of_cached_rejections_is_limited(fresh, monkeypatch):
    monkeypatch.setattr("tandem.guides.compiler.MAX_CACHED_REJECTIONS", 2)
    rejected = [Guide("json_schema", f'{{"not": {{"const": {n}}}}}') for n in range(3)]
    for guide in rejected:
        with pytest.raises(GuideError):
            fresh.matcher(guide, [END])
    assert [is_cached(fresh, guide) for guide in rejected] == [False, True, True]


def test_a_guide_that_ran_out_of_time_is_compiled_again(fresh, monkeypatch):
    guide = Guide("regex", "[a-z]+")

    def no_time(*_):
        raise GuideUndecided("it is not compiled")

    with monkeypatch.context() as busy:
        busy.setattr(Worker, "try_out", no_time)
        with pytest.raises(GuideUndecided):
            fresh.matcher(guide, [END])
    assert not is_cached(fresh, guide)
    fresh.matcher(guide, [END])


@pytest.mark.parametrize("kind", ["metaspace", "words"])
def test_guides_require_a_tokenizer_with_byte_tokens(kind, tmp_path):
    tokenizer_kinds.write(tokenizer_kinds.KINDS[kind](), tmp_path)
    with pytest.raises(GuideError, match="can't read its tokenizer"):
        GuideCompiler(tmp_path, 500, [END])


def test_an_error_that_quotes_the_guide_is_shortened(fresh):
    with pytest.raises(GuideError, match="regex parse error: exceed") as caught:
        fresh.matcher(Guide("regex", "(" * 10_000 + ")" * 10_000), [END])
    assert len(str(caught.value)) < 400


def test_rejections_are_counted_by_keyword():
    assert keywords_of('Unimplemented keys: ["if", "then"]') == ["if", "then"]
    assert keywords_of('Unimplemented keys: ["my own"]') == [OTHER_KEYWORD]
    assert keywords_of("oneOf constraints are not supported. Enable 'coerce_one_of'") == ["oneOf"]
    assert keywords_of("Invalid type: not") == [OTHER_KEYWORD]
    assert keywords_of("oneOf is not") == [OTHER_KEYWORD]


# The automaton of this guide has thousands of states.
MANY_STATES = Guide("regex", "([a-z]*a[a-z]{9}b[a-z]*|[a-z]*c[a-z]{8}d[a-z]*)")


def letters(seed: int) -> list[int]:
    """Return the tokens of 60 random letters from a to d."""
    drawn = "".join(random.Random(seed).choice("abcd") for _ in range(60))
    return [token for letter in drawn for token in encoded(letter)]


# Searching for forced tokens adds states to this automaton at each position.
LOOPS = Guide(
    "lark_grammar",
    "start: (X | Y)*\nX: /(fox|dog|lazy)*a(fox|dog|lazy)*b[a-z]{6}1/\n"
    "Y: /(fox|over|jumps)*d[a-z]{7}2/",
)


def seen(matcher, tokens):
    """Return a matcher's results for each token."""
    said = []
    for token in tokens:
        rows = matcher.walk([token]).masks.tobytes()
        said.append((rows, matcher.peek_forced(5), matcher.advance([token]), matcher.complete))
    return said


def drawn(compiler, seed):
    """Return a random answer of 12 tokens that fits LOOPS."""
    matcher, rng, tokens = compiler.matcher(LOOPS, [END]), random.Random(seed), []
    for _ in range(12):
        tokens.append(rng.choice([t for t in allowed(matcher.walk([]).masks[0]) if t != END]))
        matcher.advance(tokens[-1:])
    return tokens


def test_an_answer_with_a_full_automaton_is_correct_or_fails(fresh):
    answer = drawn(fresh, seed=24)
    expected, outcomes = seen(fresh.matcher(LOOPS, [END]), answer), []
    for limit in range(36, 66, 2):
        fresh._limits = LLParserLimits(max_lexer_states=limit)
        fresh._rejections.clear()
        fresh._automata.clear()
        try:
            said = seen(fresh.matcher(LOOPS, [END]), answer)
        except GuideError as error:
            outcomes.append(re.sub(r"\d+", "n", str(error)))
        else:
            assert said == expected
            outcomes.append("right")
    assert set(outcomes) == {"right", "lexer error: too many states: n >= n"}


def test_an_answer_continues_after_other_answers_filled_its_automaton(fresh):
    answer = letters(1)
    expected = seen(fresh.matcher(MANY_STATES, [END]), answer)
    fresh._automata.clear()
    fresh._limits = LLParserLimits(max_lexer_states=120)
    it, got = fresh.matcher(MANY_STATES, [END]), []
    for at in range(len(answer)):
        fill(it.automaton)
        got += seen(it, answer[at : at + 1])
        it._renewals_left = 1
    assert got == expected


def test_a_full_automaton_is_detected_if_its_guide_begins_with_forced_text(fresh):
    fresh._limits = LLParserLimits(max_lexer_states=120)
    guide = Guide("regex", f"fox{MANY_STATES.text}")
    fill(fresh.matcher(guide, [END]).automaton, encoded("fox"))


def fill(automaton, start=()):
    """Request masks until the automaton is full."""
    for seed in range(99):
        other = automaton.new_matcher()
        for token in [*start, *letters(seed)]:
            other.compute_bitmask()
            other.try_consume_tokens([token])
        if automaton.error():
            return
    pytest.fail("it does not become full")


def test_the_number_of_cached_guides_is_limited(fresh, monkeypatch):
    monkeypatch.setattr("tandem.guides.compiler.MAX_CACHED_GUIDES", 3)
    for n in range(4):
        fresh.matcher(Guide("regex", str(n)), [END])
    assert [is_cached(fresh, Guide("regex", str(n))) for n in range(4)] == [False, True, True, True]
