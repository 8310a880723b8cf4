"""Parses the configuration strings of NVIDIA's `run.py`.

``[4,[0],[1],True]``   draft_len, draft devices, target devices, use_logits
``[10,2,[0]]``         prompt_lookup_num_tokens, max_matching_ngram_size, devices
"""

from __future__ import annotations

import ast
from typing import Annotated, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from tandem.tools.errors import TandemError
from tandem.tools.profiles.profile import explain

Devices = list[NonNegativeInt]
Config = TypeVar("Config", bound="ConfigString")
SomeDevices = Annotated[Devices, Field(min_length=1)]


class ConfigString(BaseModel):
    """A list in brackets. Subclasses declare one field per item, in order."""

    model_config = ConfigDict(frozen=True, strict=True)
    example: ClassVar[str]

    @classmethod
    def parse(cls: type[Config], text: str) -> Config:
        """Parse a string; raise TandemError if it is invalid."""
        names = [*cls.model_fields]
        try:
            parts = ast.literal_eval(text.strip())
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            parts = None
        if not isinstance(parts, list) or len(parts) != len(names):
            raise TandemError(
                f'must have the form [{", ".join(names)}]; got {text!r}; example: "{cls.example}"'
            )
        try:
            return cls.model_validate(dict(zip(names, parts, strict=True)))
        except ValidationError as error:
            key_path, reason = explain(error)
            raise TandemError(f'{key_path[0]} {reason}; example: "{cls.example}"') from error


class DraftTargetConfig(ConfigString):
    """A draft model and a target: ``[draft_len,[draft devices],[target devices],use_logits]``.

    use_logits: accept draft tokens by the ratio of probabilities instead of comparing token ids.
    """

    example = "[4,[0],[1],True]"
    draft_len: PositiveInt
    draft_devices: SomeDevices
    target_devices: SomeDevices
    use_logits: bool


class PromptLookupConfig(ConfigString):
    """Prompt lookup: ``[prompt_lookup_num_tokens,max_matching_ngram_size,[devices]]``."""

    example = "[10,2,[0]]"
    prompt_lookup_num_tokens: PositiveInt
    max_matching_ngram_size: PositiveInt
    devices: SomeDevices
