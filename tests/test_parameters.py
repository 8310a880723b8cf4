"""Settings survive their way through config.pbtxt."""

from dataclasses import dataclass
from typing import Literal

import pytest

from tandem.contract.parameters import ParameterError, decode, encode


@dataclass(frozen=True)
class Settings:
    folder: str
    kind: Literal["a", "b"] = "a"
    model: str | None = None
    drafter: Literal["x"] | None = None
    ids: tuple[int, ...] = ()
    exact: bool = False
    pause: float | None = None


def config(parameters: dict[str, str]) -> dict:
    return {
        "name": "m",
        "parameters": {name: {"string_value": value} for name, value in parameters.items()},
    }


@pytest.mark.parametrize(
    "settings",
    [
        Settings("checkpoint"),
        Settings("12", "b", "null", "x", (1, 2), exact=True, pause=0.5),
    ],
)
def test_decode_gives_back_what_encode_took(settings):
    assert decode(Settings, config(encode(settings))) == settings


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"folder": "f", "idz": "1"}, "model 'm': unknown parameter 'idz'; known are folder, kind"),
        ({"folder": "f", "ids": "[1"}, "model 'm': parameter 'ids' is not JSON: '\\[1'"),
        ({}, "model 'm': .*missing.*'folder'"),
    ],
)
def test_decode_names_the_parameter_when_it_cannot_be_read(parameters, message):
    with pytest.raises(ParameterError, match=message):
        decode(Settings, config(parameters))
