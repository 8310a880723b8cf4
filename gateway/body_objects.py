"""The objects that a request's body consists of: fields that are not known are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from tandem.gateway import fields
from tandem.gateway.fields import Refused

NOTHING_REFUSED: Mapping[str, Refused] = MappingProxyType({})


class Strict(BaseModel):
    """An object whose values have to be of their types: true is no number, and "1" is none."""

    model_config = ConfigDict(strict=True)


class Body(Strict):
    """A request's body. Unknown fields are refused by name; some known ones are ignored."""

    @model_validator(mode="before")
    @classmethod
    def _only_known_fields(cls, data: Any) -> Any:
        return fields.accepted(data, cls.model_fields) if isinstance(data, dict) else data


class BodyObject(Strict):
    """An object in a body. Unknown fields are refused by name; null is as good as nothing.

    place: the object's path in the body. refused: fields that are known, and refused all the same.
    """

    place: ClassVar[str]
    refused: ClassVar[Mapping[str, Refused]] = NOTHING_REFUSED

    @model_validator(mode="before")
    @classmethod
    def _only_known_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return fields.taken(data, known, cls.refused, cls.place)
