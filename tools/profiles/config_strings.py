"""Parses the configuration strings of NVIDIA's `run.py`.

``[4,[0],[1],True]``   draft_len, draft devices, target devices, use_logits
``[10,2,[0]]``         prompt_lookup_num_tokens, max_matching_ngram_size, devices
"""

from __future__ import annotations

import ast
from typing import Annotated, NamedTuple, TypeVar

from pydantic import Field, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from tandem.tools.errors import TandemError
from tandem.tools.profiles.profile import explain

Devices = list[NonNegativeInt]
SomeDevices = Annotated[Devices, Field(min_length=1)]


class DraftTargetConfig(NamedTuple):
    """A draft model and a target.

    use_logits: accept draft tokens by the ratio of probabilities instead of comparing token ids.
    """

    draft_len: PositiveInt
    draft_devices: SomeDevices
    target_devices: SomeDevices
    use_logits: bool


class PromptLookupConfig(NamedTuple):
    """Prompt lookup, on the devices of the target."""

    prompt_lookup_num_tokens: PositiveInt
    max_matching_ngram_size: PositiveInt
    devices: SomeDevices


Config = TypeVar("Config", DraftTargetConfig, PromptLookupConfig)
EXAMPLES = {DraftTargetConfig: "[4,[0],[1],True]", PromptLookupConfig: "[10,2,[0]]"}


def parse(kind: type[Config], text: str) -> Config:
    """Parse a string with one item per field of ``kind``. Raises TandemError."""
    names = kind._fields
    try:
        parts = ast.literal_eval(text.strip())
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        parts = None
    if not isinstance(parts, list) or len(parts) != len(names):
        raise TandemError(
            f'must have the form [{", ".join(names)}]; got {text!r}; example: "{EXAMPLES[kind]}"'
        )
    try:
        return TypeAdapter(kind).validate_python(parts, strict=True)
    except ValidationError as error:
        key_path, reason = explain(error)
        name = names[int(key_path[0])]
        raise TandemError(f'{name} {reason}; example: "{EXAMPLES[kind]}"') from error
