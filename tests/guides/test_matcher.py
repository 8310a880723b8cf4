"""A matcher computes masks and forced tokens during an answer."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_guides import END, OTHER_END, allowed, compiler, decoded, encoded, matcher, vocab_size
from tokenizer_kinds import SPECIAL

from tandem.contract.guide import Guide
from tandem.guides.compiler import GuideAutomaton
from tandem.guides.errors import GuideError, TokenForbidden
from tandem.guides.matcher import GuideMatcher
from tandem.guides.worker import ValidGuide

GRAMMAR = 'start: "fox" (" a" | " b")+ "."'
EVERYTHING = -(-vocab_size() // 32) * 32  # number of bits in a mask


def start():
    return matcher("lark_grammar", GRAMMAR)


def at_end(**options):
    """Return a matcher whose answer is complete."""
    it = matcher("lark_grammar", GRAMMAR, **options)
    it.advance(encoded("fox a."))
    return it


def test_each_mask_row_equals_the_mask_after_advancing():
    tokens = encoded("fox a b.")
    rows = start().walk(tokens).masks
    for i in range(len(tokens) + 1):
        one = start()
        one.advance(tokens[:i])
        assert allowed(rows[i]) == allowed(one.walk([]).masks[0])


@pytest.mark.parametrize(("kind", "text"), [("regex", "a{0}"), ("ebnf_grammar", 'root ::= ""')])
@pytest.mark.parametrize("ignores_ends", [True, False])
def test_an_answer_is_complete_if_a_guide_allows_only_the_empty_text(kind, text, ignores_ends):
    it = matcher(kind, text, ends=() if ignores_ends else (END,))
    it.walk([], may_end=False)  # as with min_tokens
    assert it.complete
    assert it.advance(encoded("fox")) == 0


NAMES = ["</s>", "a<unk> fox", "<s></s></s>b"]


@pytest.mark.parametrize("text", NAMES)
@pytest.mark.parametrize("kind", ["choice", "lark_grammar"])
def test_text_that_looks_like_a_special_token_stays_text(kind, text):
    one = matcher(kind, json.dumps([text]) if kind == "choice" else f'start: "{text}"')
    forced = one.peek_forced(99)
    assert decoded(forced) == text
    assert not set(range(len(SPECIAL))) & set(forced)
    walk = one.walk(forced)
    assert walk.num_legal == len(forced)
    assert [allowed(row) for row in walk.masks[:-1]] == [[token] for token in forced]
    assert allowed(walk.masks[-1]) == sorted([END, OTHER_END])
    assert one.advance(forced) == len(forced)
    assert one.complete


def test_a_grammar_can_still_name_special_tokens():
    one = matcher("lark_grammar", 'start: <unk> "fox"')
    assert one.peek_forced(9) == [SPECIAL.index("<unk>"), *encoded("fox")]


def test_tokens_are_legal_up_to_the_first_illegal_one():
    tokens = encoded("fox a")
    assert start().walk([*tokens, *encoded("x"), *encoded(".")]).num_legal == len(tokens)
    assert start().walk([vocab_size()]).num_legal == 0
    assert start().walk([-1]).num_legal == 0


def test_forced_text_allows_only_one_tokenization():
    it = matcher("lark_grammar", 'start: "fox jumps"')
    whole = it.peek_forced(9)
    assert whole == encoded("fox jumps")
    assert allowed(it.walk([]).masks[0]) == whole[:1]
    assert it.walk(encoded("f")).num_legal == 0


def test_an_end_id_is_allowed_only_after_a_complete_answer():
    tokens = [*encoded("fox a."), END]
    walk = start().walk(tokens)
    assert walk.num_legal == len(tokens)
    for row in walk.masks[: len(tokens) - 1]:
        assert END not in allowed(row)
        assert OTHER_END not in allowed(row)
    assert {END, OTHER_END} <= set(allowed(walk.masks[len(tokens) - 1]))
    assert start().walk([*encoded("fox a"), END]).num_legal == len(tokens) - 2


def test_the_end_ids_of_the_request_end_a_guided_answer():
    only = at_end(ends=[OTHER_END])
    assert allowed(only.walk([]).masks[0]) == [OTHER_END]
    assert only.walk([END]).num_legal == 0
    text = encoded("a")[0]
    assert allowed(at_end(ends=[text]).walk([]).masks[0]) == [text]
    # A token that ends answers can't be text.
    assert matcher("regex", "a*b", ends=[text]).walk([text]).num_legal == 0


def test_any_token_is_allowed_if_a_complete_answer_may_not_end():
    walk = at_end().walk([], may_end=False)
    assert len(allowed(walk.masks[0])) == EVERYTHING
    more = matcher("regex", "a+")
    more.advance(encoded("a"))
    assert END in allowed(more.walk([]).masks[0])
    assert END not in allowed(more.walk([], may_end=False).masks[0])


def test_an_answer_without_end_ids_can_be_complete():
    it = at_end(ends=[])
    assert it.complete
    assert len(allowed(it.walk([]).masks[0])) == EVERYTHING


def test_an_answer_is_complete_if_no_more_text_is_allowed():
    it = start()
    assert not it.complete
    it.advance(encoded("fox a"))
    assert not it.complete
    it.advance(encoded("."))
    assert it.complete
    assert it.peek_forced(9) == []


def test_tokens_after_a_complete_answer_are_not_consumed():
    tokens = encoded("fox a.")
    assert start().advance([*tokens, 9, 9]) == len(tokens)


def test_consuming_an_illegal_token_is_reported():
    with pytest.raises(TokenForbidden, match=r"^token \d+ doesn't match the guide$"):
        start().advance(encoded("fox x"))


def test_end_ids_that_conflict_with_a_guide_are_reported():
    ends = encoded("fox")[:1]
    with pytest.raises(GuideError, match="it allows no next token"):
        matcher("lark_grammar", 'start: "fox"', ends=ends)


LITERALS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


@settings(max_examples=40)
@given(LITERALS, st.integers(0, 30))
def test_forced_tokens_are_the_only_legal_ones(text, limit):
    guide = Guide("choice", json.dumps([text]))
    it = compiler().matcher(guide, [END])
    forced = it.peek_forced(limit)
    assert forced == compiler().matcher(guide, [END]).take_forced(limit)
    for token in forced:
        assert allowed(it.walk([]).masks[0]) == [token]
        it.advance([token])
    assert len(forced) == limit or it.complete
    assert compiler()._tokenizer.decode_bytes(forced) == text.encode() or not it.complete


def test_a_long_run_of_forced_tokens_is_taken_in_steps(monkeypatch):
    text = "fox jumps " * 40
    guide = ("choice", json.dumps([text]))
    whole = matcher(*guide).peek_forced(999)
    monkeypatch.setattr("tandem.guides.matcher.LONG_RUN", len(whole) // 2)
    it = matcher(*guide)
    taken = [it.take_forced(999) for _ in range(6)]
    assert {len(some) for some in taken[:3]} == {16}
    assert [token for some in taken for token in some] == whole
    assert matcher(*guide).take_forced(5) == whole[:5]


def test_too_many_consecutive_forced_tokens_are_rejected():
    with pytest.raises(GuideError, match=r"it forces \d+ consecutive tokens"):
        matcher("choice", json.dumps(["fox jumps " * 4000]))
    it = matcher("choice", json.dumps(["a", "fox jumps " * 4000]))
    it.advance(encoded("f"))
    with pytest.raises(GuideError, match="the limit is 4096"):
        it.take_forced(1)


@pytest.mark.parametrize("attribute", ["max_tokens=3", 'stop="x"', 'stop_capture="n", stop="x"'])
@pytest.mark.parametrize("before", ["", '"fox" ', "/[a-c]+/ "])
def test_grammar_attributes_that_prevent_looking_ahead_are_rejected(attribute, before):
    with pytest.raises(GuideError, match="max_tokens and stop aren't supported"):
        matcher("lark_grammar", f"start: {before}a\na[{attribute}]: /[a-z]*/")


def test_forced_tokens_stop_before_an_end_id():
    tokens = matcher("lark_grammar", 'start: "fox jumps"').peek_forced(9)
    assert len(tokens) > 1
    ended = matcher("lark_grammar", 'start: "fox jumps"', ends=tokens[1:2])
    assert ended.peek_forced(9) == tokens[:1]


def test_errors_do_not_quote_the_answer():
    class Failed:
        """A library matcher that failed because the answer was too complex."""

        def __getattr__(self, name):
            return lambda *_: {
                "deep_copy": self,
                "get_error": "ParserTooComplex\n<state>secret",
                "is_error": True,
                "try_consume_tokens": 0,
            }.get(name)

    failed = GuideAutomaton(Failed(), ValidGuide("", 0))
    it = GuideMatcher(failed, lambda _: failed, None, compiler()._tokenizer, [END])
    with pytest.raises(GuideError, match=r"^ParserTooComplex$"):
        it.walk([])
