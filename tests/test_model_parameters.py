"""Settings are unchanged after a round trip through config.pbtxt."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from tandem.contract.model_parameters import ParameterError, decode, encode


@dataclass(frozen=True)
class Abilities:
    stops: bool
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Engine:
    model: str
    abilities: Abilities
    sizes: tuple[int, ...] = ()
    role: Literal["x", "y"] = "x"
    pause: float | None = None


@dataclass(frozen=True)
class Settings:
    folder: str
    kind: Literal["a", "b"] = "a"
    model: str | None = None
    drafter: Literal["x"] | None = None
    ids: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    exact: bool = False
    count: int = 0
    pause: float | None = None
    target: Engine | None = None
    draft: Engine | None = None
    spares: tuple[Engine, ...] = ()
    options: Mapping[str, Any] | None = None


def config(parameters: dict[str, str]) -> dict:
    return {
        "name": "m",
        "parameters": {name: {"string_value": value} for name, value in parameters.items()},
    }


ENGINE = Engine("target", Abilities(stops=True), sizes=(1, 2), role="y", pause=2.5)


@pytest.mark.parametrize(
    "settings",
    [
        Settings("checkpoint"),
        Settings("12", "b", "null", "x", (1, 2), ("a", "b"), exact=True, count=3, pause=0.5),
        Settings("f", target=ENGINE, draft=Engine("draft", Abilities(stops=False, kind="b"))),
        Settings("f", spares=(ENGINE, ENGINE), options={"a": [1, {"b": None}]}),
    ],
)
def test_decode_inverts_encode(settings):
    assert decode(Settings, config(encode(settings))) == settings


def test_a_nested_field_is_one_parameter():
    assert encode(Settings("f", count=2, target=ENGINE)) == {
        "folder": "f",
        "kind": "a",
        "ids": "[]",
        "names": "[]",
        "exact": "false",
        "count": "2",
        "target": (
            '{"model": "target", "abilities": {"stops": true, "kind": "a"}, "sizes": [1, 2], '
            '"role": "y", "pause": 2.5}'
        ),
        "spares": "[]",
    }


def test_equivalent_json_numbers_and_null_are_accepted():
    read = decode(Settings, config({"folder": "f", "pause": "2", "draft": "null"}))
    assert read == Settings("f", pause=2.0)


KNOWN = (
    "folder, kind, model, drafter, ids, names, exact, count, pause, target, draft, spares, options"
)


@pytest.mark.parametrize(
    ("parameters", "line"),
    [
        ({"idz": "1"}, f"unknown parameter 'idz'; known are {KNOWN}"),
        ({"folder": None}, "parameter 'folder' is missing"),
        ({"ids": "[1"}, "parameter 'ids' is not JSON: '[1'"),
        ({"ids": "1"}, "parameter 'ids': 1 given, must be a list"),
        ({"ids": '["a"]'}, "parameter 'ids': \"a\" given, must be a whole number"),
        ({"names": "[1]"}, "parameter 'names': 1 given, must be a string"),
        ({"kind": "c"}, "parameter 'kind': \"c\" given, must be one of a, b"),
        ({"drafter": "y"}, "parameter 'drafter': \"y\" given, must be one of x"),
        ({"exact": "1"}, "parameter 'exact': 1 given, must be true or false"),
        ({"count": "1.5"}, "parameter 'count': 1.5 given, must be a whole number"),
        ({"count": "true"}, "parameter 'count': true given, must be a whole number"),
        ({"count": "null"}, "parameter 'count': null given, must be a whole number"),
        ({"pause": '"5"'}, "parameter 'pause': \"5\" given, must be a number"),
        ({"pause": "false"}, "parameter 'pause': false given, must be a number"),
        ({"target": "target"}, "parameter 'target' is not JSON: 'target'"),
        ({"target": "[]"}, "parameter 'target': [] given, must be an object"),
        ({"target": "{}"}, "parameter 'target.model' is missing"),
        (
            {"target": '{"modle": "m"}'},
            "unknown parameter 'target.modle'; known are model, abilities, sizes, role, pause",
        ),
        (
            {"target": '{"model": "m", "abilities": {"kind": "a"}}'},
            "parameter 'target.abilities.stops' is missing",
        ),
        (
            {"target": '{"model": "m", "abilities": {"stops": 1}}'},
            "parameter 'target.abilities.stops': 1 given, must be true or false",
        ),
        (
            {"draft": '{"model": null, "abilities": {"stops": true}}'},
            "parameter 'draft.model': null given, must be a string",
        ),
    ],
    ids=lambda part: "-".join(part) if isinstance(part, dict) else "",
)
def test_decode_names_an_unreadable_parameter(parameters, line):
    given = {name: text for name, text in ({"folder": "f"} | parameters).items() if text}
    with pytest.raises(ParameterError) as refused:
        decode(Settings, config(given))
    assert str(refused.value) == f"model 'm': {line}"


@dataclass(frozen=True)
class Facts:
    target: Abilities
    folder: str


def test_a_reader_may_ask_for_some_parameters():
    given = config({"folder": "f", "more": "1", "target": '{"stops": true, "others": []}'})
    assert decode(Facts, given, ignore_unknown=True) == Facts(Abilities(stops=True), "f")
    with pytest.raises(ParameterError, match="parameter 'target' is missing"):
        decode(Facts, config({"folder": "f"}), ignore_unknown=True)
