"""Settings don't change in a round trip through config.pbtxt."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from error_lines import error_line
from model_configs import model_config

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
def test_settings_are_unchanged_after_encoding_and_decoding(settings):
    assert decode(Settings, model_config(encode(settings))) == settings


def test_a_nested_field_is_encoded_as_one_json_parameter():
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


def test_integers_for_float_fields_and_null_are_accepted():
    read = decode(Settings, model_config({"folder": "f", "pause": "2", "draft": "null"}))
    assert read == Settings("f", pause=2.0)


KNOWN = (
    "folder, kind, model, drafter, ids, names, exact, count, pause, target, draft, spares, options"
)


@pytest.mark.parametrize(
    ("parameters", "line"),
    [
        ({"idz": "1"}, f"parameter 'idz' isn't known; choose one of: {KNOWN}"),
        ({"folder": None}, "parameter 'folder' is missing"),
        ({"ids": "[1"}, "parameter 'ids' must be JSON; got '[1'"),
        ({"count": "9" * 5000}, f"parameter 'count' must be JSON; got '{'9' * 5000}'"),
        ({"ids": "1"}, "parameter 'ids' must be a list; got 1"),
        ({"ids": '["a"]'}, "parameter 'ids' must be an integer; got \"a\""),
        ({"names": "[1]"}, "parameter 'names' must be a string; got 1"),
        ({"kind": "c"}, "parameter 'kind' must be one of a, b; got \"c\""),
        ({"drafter": "y"}, "parameter 'drafter' must be one of x; got \"y\""),
        ({"exact": "1"}, "parameter 'exact' must be true or false; got 1"),
        ({"count": "1.5"}, "parameter 'count' must be an integer; got 1.5"),
        ({"count": "true"}, "parameter 'count' must be an integer; got true"),
        ({"count": "null"}, "parameter 'count' must be an integer; got null"),
        ({"pause": '"5"'}, "parameter 'pause' must be a number; got \"5\""),
        ({"pause": "false"}, "parameter 'pause' must be a number; got false"),
        ({"target": "target"}, "parameter 'target' must be JSON; got 'target'"),
        ({"target": "[]"}, "parameter 'target' must be an object; got []"),
        ({"target": "{}"}, "parameter 'target.model' is missing"),
        (
            {"target": '{"modle": "m"}'},
            (
                "parameter 'target.modle' isn't known; choose one of: model, abilities, sizes, "
                "role, pause"
            ),
        ),
        (
            {"target": '{"model": "m", "abilities": {"kind": "a"}}'},
            "parameter 'target.abilities.stops' is missing",
        ),
        (
            {"target": '{"model": "m", "abilities": {"stops": 1}}'},
            "parameter 'target.abilities.stops' must be true or false; got 1",
        ),
        (
            {"target": "[" * 100_000},
            f"parameter 'target' must be JSON; got '{'[' * 100_000}'",
        ),
        (
            {"draft": '{"model": null, "abilities": {"stops": true}}'},
            "parameter 'draft.model' must be a string; got null",
        ),
    ],
    ids=lambda part: "-".join(part) if isinstance(part, dict) else "",
)
def test_the_error_names_an_unreadable_parameter(parameters, line):
    given = {name: text for name, text in ({"folder": "f"} | parameters).items() if text}
    assert error_line(ParameterError, decode, Settings, model_config(given)) == line


@dataclass(frozen=True)
class Facts:
    target: Abilities
    folder: str


def test_unknown_parameters_can_be_ignored_on_request():
    given = model_config({"folder": "f", "more": "1", "target": '{"stops": true, "others": []}'})
    assert decode(Facts, given, ignore_unknown=True) == Facts(Abilities(stops=True), "f")
    with pytest.raises(ParameterError, match="parameter 'target' is missing"):
        decode(Facts, model_config({"folder": "f"}), ignore_unknown=True)
