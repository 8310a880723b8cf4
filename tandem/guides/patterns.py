r"""Translates patterns of JSON Schema to regular expressions of the library.

JSON Schema has JavaScript's regular expressions (ECMA-262 in Unicode mode), the library has Rust's.
Both agree on groups, choices and repetitions, but not on characters: in Rust, `.` matches `\r`,
`\s` includes U+0085, and brackets may contain sets such as `[^a&&b]`. So classes are written out.
Names of groups are dropped, because the library reads `(?P<stop>a)` as a lookahead.

llguidance 1.9 adds `"` and `\` to each class that contains all control characters, such as `[^"]`,
and drops characters that it can't write in JSON. So each class excludes these characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tandem.guides.errors import GuideError, shorten

CHARACTER: Final = r"""\\(?:
    u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})
    | x(?P<x>[0-9a-fA-F]{2}) | u(?P<u>[0-9a-fA-F]{4}) | u\{(?P<code>[0-9a-fA-F]{1,8})\}
    | c(?P<control>[A-Za-z]) | (?P<property>[pP](?:\{[^{}\\]*\}|[A-Z]))
    | (?P<letter>0[0-9]|[A-Za-z0-9]) | (?P<same>[^A-Za-z0-9])) | (?P<plain>[^\\])"""
MEMBER = re.compile(CHARACTER, re.DOTALL | re.VERBOSE)
PART = re.compile(
    rf"""\[(?P<negated>\^?)(?P<members>(?:\\.|[^]\\])*)\]
    | \(\?(?P<flags>[A-Za-z-]*)(?P<scope>[:)]) | (?P<open>\((?:\?P?<[^\W\d]\w*>|(?!\?)))
    | (?P<times>(?:[*+?]|\{{[0-9]+(?:,[0-9]*)?\}})\??) | (?P<sign>[()\[{{|^$.]) | {CHARACTER}""",
    re.DOTALL | re.VERBOSE,
)
SPACES: Final = r"\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
CLASSES: Final = {"d": "0-9", "w": "0-9A-Za-z_", "s": SPACES}
CONTROLS: Final = {"0": 0, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
KNOWN_FLAGS: Final = frozenset("ims-")
UNSUPPORTED: Final = {
    **dict.fromkeys("bB", "word boundaries aren't supported"),
    **dict.fromkeys("k123456789", "references to groups aren't supported"),
}
NO_MINIMUM: Final = re.compile(r"\{,[0-9]+\}")
HYPHEN: Final = [("-", ord("-"))]
LINE_ENDS: Final = r"\n\r\u2028\u2029"
NOTHING: Final = r"\x00"  # a member of a class that matches nothing
NEVER: Final = "[a&&b]"
SURROGATES, LAST_CODE = range(0xD800, 0xE000), 0x10FFFF


def translate(pattern: str, unwritable: str) -> str:
    """Return the library's form of a pattern; raise GuideError if it isn't supported.

    unwritable: characters that the answer can't contain, as the inside of brackets.
    """
    try:
        return "".join(_Translator(pattern, unwritable).parts())
    except GuideError as error:
        raise GuideError(f"pattern {shorten(repr(pattern))} has {error}") from error


class _Translator:
    def __init__(self, pattern: str, unwritable: str) -> None:
        self._pattern = pattern
        self._unwritable = unwritable
        self._at = 0
        self._repeatable = False  # whether a repetition may follow
        self._dot_all = False  # whether `.` matches ends of lines
        self._outer: list[bool] = []  # for each open group, the same around it

    def parts(self) -> Iterator[str]:
        while self._at < len(self._pattern):
            found = PART.match(self._pattern, self._at)
            if found is None:
                raise GuideError("a backslash at its end")
            if found.lastgroup == "times" and not self._repeatable:
                raise GuideError(f"nothing to repeat before '{found[0]}'")
            self._at = found.end()
            self._repeatable = found.lastgroup not in ("times", "scope", "open")
            if found.lastgroup == "times":
                yield found[0]
            elif found.lastgroup in ("scope", "open"):
                yield self._group(found["flags"] or "", found["scope"] or ":")
            elif found.lastgroup == "members":
                members = "".join(_members(found["members"])) or NOTHING
                yield self._class(found["negated"] + members)
            elif found.lastgroup == "sign":
                yield self._sign(found[0], found.start())
            else:
                yield self._character(_character(found, in_brackets=False))
        if self._outer:
            raise GuideError("an unmatched '('")

    def _group(self, flags: str, scope: str) -> str:
        if not KNOWN_FLAGS.issuperset(flags):
            raise GuideError(f"flags '{shorten(flags)}'; only i, m and s are supported")
        if scope == ":":
            self._outer.append(self._dot_all)
        on, _, off = flags.partition("-")
        self._dot_all = (self._dot_all or "s" in on) and "s" not in off
        return f"(?{flags}{scope}"

    def _sign(self, sign: str, at: int) -> str:
        if sign == ".":
            return self._class(f"^{NOTHING if self._dot_all else LINE_ENDS}")
        if sign == ")" and self._outer:
            self._dot_all = self._outer.pop()
            return sign
        if sign == "{" and not NO_MINIMUM.match(self._pattern, at):
            return self._character(ord(sign))
        if sign in "|^$":
            self._repeatable = False
            return sign
        if sign == "{":
            raise GuideError("a repetition without a minimum; write '{0,' instead of '{,'")
        if sign == "(":
            name = self._pattern[at : at + 3]
            raise GuideError(f"'{name}'; lookarounds and other special groups aren't supported")
        raise GuideError(f"an unmatched '{sign}'")

    def _character(self, character: int | str) -> str:
        if isinstance(character, str):
            return self._class(character)
        return NEVER if re.match(f"[{self._unwritable}]", chr(character)) else _spell(character)

    def _class(self, members: str) -> str:
        return f"[[{members}]&&[^{self._unwritable}]]"


def _members(text: str) -> Iterator[str]:
    """Yield the library's form of the characters, ranges and classes between brackets."""
    read = [(found[0], _character(found, in_brackets=True)) for found in MEMBER.finditer(text)]
    at = 0
    while at < len(read):
        low = read[at][1]
        high = read[at + 2][1] if read[at + 1 : at + 2] == HYPHEN and at + 2 < len(read) else None
        if isinstance(low, int) and isinstance(high, int):
            if low > high:
                raise GuideError(f"'{shorten(text)}' with a range whose end is before its start")
            yield f"{_spell(low)}-{_spell(high)}"
            at += 3
        else:  # a hyphen next to a class is a character
            yield _spell(low) if isinstance(low, int) else low
            at += 1


def _character(found: re.Match[str], *, in_brackets: bool) -> int | str:
    r"""Return a character's code point, or the members of a class such as `\d`."""
    text, letter = found[0], found["letter"]
    if found["property"]:
        return text
    if letter and letter.lower() in CLASSES:
        members = CLASSES[letter.lower()]
        return members if letter.islower() else f"[^{members}]"
    if letter and (letter not in CONTROLS or (letter == "b" and not in_brackets)):
        raise GuideError(f"'{text}'; {UNSUPPORTED.get(letter, 'unknown escape')}")
    if letter:
        return CONTROLS[letter]
    if found["control"]:
        return ord(found["control"]) % 32
    if found["high"]:
        return ord(bytes.fromhex(found["high"] + found["low"]).decode("utf-16-be"))
    digits = found["x"] or found["u"] or found["code"]
    code = int(digits, 16) if digits else ord(found["same"] or text)
    if code in SURROGATES or code > LAST_CODE:
        raise GuideError(f"'{text}', which isn't a Unicode character")
    return code


def _spell(code: int) -> str:
    return chr(code) if chr(code).isalnum() and code < 128 else rf"\x{{{code:x}}}"
