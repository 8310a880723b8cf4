"""GBNF grammars accept exactly the texts that they accept in llama.cpp."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_guides import encoded, fits, matcher, rejection, tokenizer

from tandem.guides.errors import GuideError

LETTERS = 'ab-&^]\n"'
TEXTS = ["".join(text) for length in range(4) for text in product("ab-\n", repeat=length)]
ESCAPES = {"\n": r"\n", '"': r"\"", "\\": r"\\", "]": r"\]", "-": r"\x2d", "^": r"\u005E"}
NAMES = ["root", "start", "Root", "a-b", "a_b"]


def characters(letters):
    return "".join(ESCAPES.get(letter, letter) for letter in letters)


# A node is its GBNF and a function of (ends of rules, text, start) that returns the possible ends.
def literal(letters):
    return (
        f'"{characters(letters)}"',
        lambda _, text, at: {at + len(letters)} if text.startswith(letters, at) else set(),
    )


def one_of(letters, negated):
    return (
        f"[{'^' * negated}{characters(letters)}]",
        lambda _, text, at: (
            {at + 1} if at < len(text) and (text[at] in letters) != negated else set()
        ),
    )


def name(rule):
    return rule, lambda ends, _, at: ends.get((rule, at), set())


def sequence(nodes):
    def match(ends, text, at):
        reached = {at}
        for _, each in nodes:
            reached = {end for start in reached for end in each(ends, text, start)}
        return reached

    return f"({' '.join(written for written, _ in nodes)})", match


def choice(nodes):
    return f"({' | '.join(written for written, _ in nodes)})", lambda ends, text, at: set().union(
        *(match(ends, text, at) for _, match in nodes)
    )


def repeated(node, least, most):
    def match(ends, text, at):
        reached, every, count = {at}, {at} if least == 0 else set(), 0
        while count < (least + len(text) + 1 if most is None else most):
            reached = {end for start in reached for end in node[1](ends, text, start)}
            count += 1
            every |= reached if count >= least else set()
        return every

    counts = f"{{{least},{'' if most is None else most}}}"
    return node[0] + {"{0,}": "*", "{1,}": "+", "{0,1}": "?"}.get(counts, counts), match


DOT = (".", lambda _, text, at: {at + 1} if at < len(text) else set())
LETTER_SETS = st.text(st.sampled_from(LETTERS), min_size=1, max_size=3)
LEAVES = st.one_of(
    st.builds(literal, st.text(st.sampled_from("ab-\n"), max_size=3)),
    st.builds(one_of, LETTER_SETS, st.booleans()),
    st.just(DOT),
)
TIMES = st.tuples(st.integers(0, 2), st.none() | st.integers(0, 2)).map(
    lambda pair: (pair[0], pair[1] if pair[1] is None else sum(pair))
)


def nodes_of(leaves):
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(sequence, st.lists(inner, min_size=1, max_size=3)),
            st.builds(choice, st.lists(inner, min_size=1, max_size=3)),
            st.builds(lambda node, times: repeated(node, *times), inner, TIMES),
        ),
        max_leaves=5,
    )


def accepted(rules, text):
    """Return whether rules accept a text."""
    ends, size = {}, -1
    while size != sum(map(len, ends.values())):
        size = sum(map(len, ends.values()))
        for rule, at in product(rules, range(len(text) + 1)):
            ends[rule, at] = ends.get((rule, at), set()) | rules[rule][1](ends, text, at)
    return len(text) in ends["root", 0]


def accepts(grammar, text):
    try:
        return fits("ebnf_grammar", grammar, text)
    except GuideError:  # a rule that never ends may leave no next token
        return False


@pytest.mark.parametrize("recursive", [False, True])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_grammar_accepts_what_a_reference_matcher_accepts(recursive, data):
    rules = {}
    for at, rule in enumerate(NAMES):
        others = NAMES if recursive else NAMES[at + 1 :]
        leaves = LEAVES | st.sampled_from(others).map(name) if others else LEAVES
        rules[rule] = data.draw(nodes_of(leaves))
    if recursive:
        before, after, inner = (data.draw(nodes_of(LEAVES)) for _ in range(3))
        nested = sequence([before, name("root"), after, rules["root"]])
        rules["root"] = choice([nested, inner])
    grammar = "\n".join(f"{rule} ::= {written}" for rule, (written, _) in rules.items())
    expected = [text for text in TEXTS if accepted(rules, text)]
    assert not expected or [text for text in TEXTS if accepts(grammar, text)] == expected, grammar


@pytest.mark.parametrize(
    ("rule", "text", "fitting"),
    [
        ("[^&&a]", "a", False),
        ("[+--z]", ",", True),
        ("[a-z&&b]", "&", True),
        ("[[a]", "[", True),
        ("[a^~]", "^", True),
        ("[a-]", "-", True),
        (r"[a\]/]", "]", True),
        (r"[a\-c]", "b", False),
        (".", "\n", True),
        ("[^a]", "\n", True),
        ("[^a]", "é", True),
        (r"[\u00e0-\U000000ff]", "é", True),
        (r'"\xe9"', "é", True),
        (r'"\\n/\""', '\\n/"', True),
        ('("a"{2}){2}', "aaaa", True),
        ('"a"{2}{2}', "aaaa", True),
        ('"ab"{0}', "", True),
        ('"a" { 1 , 2 }', "aa", True),
        ('[a-z]+ "a"', "ba", True),
        ('"a" |\n "b" # or so', "b", True),
        ('(\n"a" # first\n| "b"\n)\r\n', "b", True),
        ('other\nother ::= "a"\nother ::= "b"', "b", True),
        ('other | "c"\nother ::= "a"\nother ::= "b"', "a", False),
        ('"%json {}" "<[5]>" "//"', "%json {}<[5]>//", True),
    ],
)
@pytest.mark.parametrize(
    "root", ["root ::= {}", 'root ::= "x"? rule\nx ::= "x" x | ""\nrule ::= {}']
)
def test_syntax_has_the_meaning_that_it_has_in_llama_cpp(rule, text, fitting, root):
    assert fits("ebnf_grammar", root.replace('"x"?', "x").format(rule), text) == fitting


NESTED = [
    ('root ::= "(" root ")" | [a-z]+', "(ab)", True),
    ('root ::= "(" root ")" | [a-z]+ "b"', "(ab)", True),  # greedy letters would take the b
    ('root ::= "(" root ")" | [a-z]+ [b)]', "(ab))", True),
    ('root ::= "(" root ")" | "if" "x" | [a-z]+ "!"', "(ifx)", True),
    ('root ::= "(" root ")" | "if" "x" | [a-z]+ "!"', "(ifx!)", True),
    ('root ::= "(" root ")" | "if" "x" | [a-z]+ "!"', "(ify)", False),
    ('root ::= "(" root ws ")" ws | "a" ws\nws ::= [ ]*', "( a  ) ", False),
    ('root ::= "(" root ws ")" ws | "a" ws\nws ::= [ ]*', "((a  ) )", True),
    # é and è start with the same byte
    ('root ::= root "è" | ("aé")+', "aéaéèè", True),
    ('root ::= root "è" | ("a" "é"?)+', "aaéèè", True),
    ('root ::= root "è" | [aé]+', "aéaè", True),
    ('root ::= item*\nitem ::= [0-9]+ | "-" item "+"', "1-23+4", True),
    ('root ::= a\na ::= b\nb ::= c root? c\nc ::= "x" | "xx"', "xxxxxx", True),
]


@pytest.mark.parametrize(("grammar", "text", "fitting"), NESTED)
def test_recursive_grammars_match_every_length_of_their_parts(grammar, text, fitting):
    assert fits("ebnf_grammar", grammar, text) == fitting


def test_a_large_recursive_grammar_is_accepted():
    words = " | ".join(f'"word{number} " [a-z]{{1,9}} "."' for number in range(500))
    grammar = f'root ::= "(" root ")" | {words}'
    assert fits("ebnf_grammar", grammar, "((word499 abc.))")
    assert not fits("ebnf_grammar", grammar, "((word500 abc.))")


def test_names_that_differ_only_by_case_or_hyphen_are_different_rules():
    rules = {"start": "s", "Start": "S", "a-b": "-", "a_b": "_", "A-B": "AB", "aB": "aB", "1": "1"}
    lines = [f'{rule} ::= "{text}"' for rule, text in rules.items()]
    grammar = "\n".join([f"root ::= {' '.join(rules)}", *lines])
    assert fits("ebnf_grammar", grammar, "".join(rules.values()))


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('root ::= "a"\nb ::= "c', """at 2(7): unexpected or unclosed '"'"""),
        ("root ::= [a", "at 1(10): unexpected or unclosed '['"),
        ("root ::= ()\n\nb ::= c d", "at 3(7): there is no rule 'c'"),
        ("rot ::= ()", "at 1(11): there is no rule 'root'"),
        ("root ::= (\n()", "at 2(3): expected ')'"),
        ("root ::= ())", "at 1(12): expected the end of the line"),
        ("root\n::= ()", "at 1(5): expected '::='"),
        ("root ::= a | *", "at 1(14): expected the end of the line"),
        ("root ::= .{2,1}", "at 1(11): '{2,1}' has a maximum below its minimum"),
        (r'root ::= "ab\q"', "at 1(13): unknown escape"),
        (r'root ::= "\uD800"', r"at 1(11): '\\uD800' isn't a Unicode character"),
        ("root ::= [z-a]", "at 1(10): '[z-a]' has a range whose end is before its start"),
        ("root ::= [^]", "at 1(10): empty brackets match nothing"),
        ("root ::= . <think>", "at 1(12): '<think>' isn't a special token; write its text instead"),
        (
            "root ::= !<[20]>",
            "at 1(10): '!<[20]>' isn't supported; '.' matches all text without tokens",
        ),
        ("root ::= <[20]>", "at 1(10): '<[20]>' isn't a special token; write its text instead"),
    ],
)
def test_errors_name_the_place_in_the_clients_grammar(grammar, reason):
    prefix = "it must be EBNF in llama.cpp's dialect (GBNF): "
    assert rejection("ebnf_grammar", grammar).removeprefix(prefix) == reason


@pytest.mark.parametrize("token", ["<tool call>", "<[{}]>"])
def test_a_grammar_can_name_special_tokens(token):
    number = tokenizer().token_to_id("<tool call>")
    it = matcher("ebnf_grammar", f'root ::= {token.format(number)} "a" | [a-z]+ root')
    it.advance(encoded("xyz"))
    it.advance([number])
    assert it.peek_forced(2) == encoded("a")
