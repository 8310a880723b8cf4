"""Reads the guide of a request, under NVIDIA's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from tandem.bls.errors import BadRequest, GuideRefused
from tandem.bls.parsing.inputs import Inputs, quoted
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.guides.guide import KINDS, Guide

TYPE, TEXT = tensors.GUIDED_DECODING_GUIDE_TYPE, tensors.GUIDED_DECODING_GUIDE
WITHOUT_TEXT = "json"  # any JSON


def check_guides(inputs: Mapping[str, NDArray[Any]], max_bytes: int) -> None:
    """Reject guides that are too long, or all guides if ``max_bytes`` is 0."""
    given = [inputs[tensor] for tensor in (TYPE, TEXT) if tensor in inputs]
    longest = max((len(text) for texts in given for text in texts.flat), default=0)
    if longest and not max_bytes:
        raise GuideRefused(
            f"input '{TYPE}' is not supported by this deployment: limits.max_guide_bytes of its "
            "profile is 0"
        )
    if longest > max_bytes:
        raise GuideRefused(
            f"input '{TEXT}': {longest} bytes given, at most {max_bytes} are taken; send a "
            "shorter guide"
        )


def guide_of(inputs: Inputs, row: int) -> Guide | None:
    """Return a prompt's guide, None without one; raise BadRequest if a part is missing."""
    kind, text = (_only(inputs, tensor, row) for tensor in (TYPE, TEXT))
    if not kind:
        if text:
            raise BadRequest(f"input '{TEXT}' needs '{TYPE}': {', '.join(KINDS)}")
        return None
    if kind not in KINDS:
        raise BadRequest(f"input '{TYPE}': {quoted(kind)} given, must be {', '.join(KINDS)}")
    if not text and kind != WITHOUT_TEXT:
        raise BadRequest(f"input '{TEXT}' is missing; send the guide that '{TYPE}' {kind} means")
    return Guide(kind, text)


def _only(inputs: Inputs, tensor: Tensor, row: int) -> str:
    values = inputs.strings(tensor, row)
    if len(values) > 1:
        raise BadRequest(f"input '{tensor}': {len(values)} values given for a prompt, send one")
    return values[0] if values else ""
