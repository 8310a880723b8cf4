"""Hostile guides, which crash llguidance, compile slowly, or describe endless texts."""

from __future__ import annotations

import json
import random
from typing import Any

Asked = tuple[str, str]  # type and text of a guide


def _chain(last: int, link: Any) -> Asked:
    """Return a schema in which each definition refers to the next one."""
    definitions = {f"d{n}": link({"$ref": f"#/$defs/d{n + 1}"}) for n in range(last)}
    definitions[f"d{last}"] = {"type": "integer"}
    return "json_schema", json.dumps({"$ref": "#/$defs/d0", "$defs": definitions})


def _rules(last: int, rule: str) -> Asked:
    lines = [rule.format(n, n + 1) for n in range(last)]
    return "lark_grammar", "\n".join(['start: r0 | "x" R0', *lines, f'r{last}: "b"', 'R0: "c"'])


def _nested(depth: int, **schema: Any) -> Asked:
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return "json_schema", json.dumps(schema)


def _regex(text: str) -> Asked:
    return "regex", text


def _schema(**schema: Any) -> Asked:
    return "json_schema", json.dumps(schema)


# Guides that overflow the compiler's stack.
CRASHING: dict[str, Asked] = {
    "references": _chain(4000, lambda link: link),
    "objects in objects": _chain(
        4000, lambda link: {"type": "object", "properties": {"a": link}, "required": ["a"]}
    ),
    "all of all of": _chain(4000, lambda link: {"allOf": [link, {"minimum": 1}]}),
    "rules": _rules(4000, 'r{}: "a" r{}'),
    "rules twice": _rules(4000, 'r{0}: r{1} r{1} | "a"'),
}
# Guides that take minutes or longer to compile.
ENDLESS: dict[str, Asked] = {
    "all patterns": _schema(allOf=[{"type": "string", "pattern": f"a{n}"} for n in range(300)]),
    "intersections": (
        "lark_grammar",
        "start: X\nX: " + " & ".join(f"/.*a{n}.*/" for n in range(300)),
    ),
}
PROPERTIES = {f"property_{n}": {"type": "string"} for n in range(5000)}
TOO_LONG: Asked = _schema(enum=["x" * 100] * 3000)
# Guides that must be answered, or rejected with a one-line error.
ODD: dict[str, Asked] = {
    "properties": _schema(type="object", properties=PROPERTIES),
    "required properties": _schema(
        type="object",
        properties={f"p{n}": {"type": "integer"} for n in range(4000)},
        required=[f"p{n}" for n in range(4000)],
    ),
    "values": _schema(enum=[f"{n:05} value"[::-1] for n in range(11_000)]),
    "itself": _schema(**{"$ref": "#"}),
    "nested deep": _nested(60, type="integer"),
    "nested too deep": _nested(200, type="integer"),
    "brackets": ("json_schema", "[" * 100_000),
    "repeated repetitions": _regex("((((a{1,30}){1,30}){1,30}){1,30}){1,30}"),
    "ambiguous": _regex("(a|a|ab|abc)*(a|aa|aaa)*b"),
    "many states": _regex(".*a.{30}"),
    "more states": _regex(".*a.{12}b.{12}c.*d.{9}"),
    "many optionals": _regex("a?" * 3000),
    "any letters": _regex(r"\p{L}{1,2000}\p{N}*\w{1,3000}"),
    "a very long word": _regex("[a-z]{100000}"),
    "unclosed": _regex("(" * 100_000),
    "many items": _schema(type="array", minItems=10**6, items={"type": "integer"}),
    "a very long text": _schema(type="string", minLength=10**6),
    "surrogates": ("json_schema", r'{"enum": ["\ud800", "\ud83d\ude00", "a\u0000b"]}'),
    "half a pair": ("choice", r'["\ud800"]'),
    "NULs": _regex("a\0b\x7f"),
    "no UTF-8": ("regex", "a\udcffb"),
    "a very long name": _schema(
        type="object", properties={"x" * 10**5: {}}, required=["x" * 10**5]
    ),
    "left recursion": ("lark_grammar", 'start: a\na: a a | b\nb: b b | a | "x"\n'),
    "everything is nothing": ("lark_grammar", 'start: e\ne: e e | "a" | e "a" e | ""\n'),
    "an unknown rule": ("ebnf_grammar", "root ::= " + "a" * 200_000),
    "many alternatives": (
        "ebnf_grammar",
        "root ::= " + " | ".join(f'"a{n}"' for n in range(20_000)),
    ),
    "bidi": ("choice", json.dumps(["\u202e\u0301\u200b\U0001f469\u200d\U0001f680", "\ufeff"])),
    "remote": _schema(**{"$ref": "http://localhost:1/x.json"}),
    "a file": _schema(**{"$ref": "file:///etc/passwd"}),
}


def large(number: int) -> Asked:
    """Return a schema with 200 kB of values that are different for each number."""
    rng = random.Random(number)
    return _schema(enum=[f"{rng.random()} {number}" for _ in range(8_000)])
