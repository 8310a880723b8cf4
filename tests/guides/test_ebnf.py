"""Grammars as llama.cpp writes them (GBNF), which vLLM's users know as EBNF."""

import pytest
from matching import PLAIN, Matcher, tokenizer_with

from tandem.guides.errors import GuideError
from tandem.guides.grammar import grammar_of
from tandem.guides.guide import Guide

QUERY = """
root ::= "SELECT " column " FROM " table
column ::= "a" | "b"  # or so
table ::= [a-z]+ ("_" [0-9])?
"""


def test_it_is_understood():
    asked = Matcher(tokenizer_with(PLAIN), grammar_of(Guide("ebnf_grammar", QUERY)))
    assert asked.takes("SELECT a FROM things_1")
    assert not asked.takes("SELECT c FROM things")


@pytest.mark.parametrize("text", ["root ::= (" * 50_000, "root", "a ::= b", "\x00"])
def test_what_is_none_is_refused_in_one_line(text):
    with pytest.raises(GuideError, match="not EBNF as llama") as refused:
        grammar_of(Guide("ebnf_grammar", text))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300
