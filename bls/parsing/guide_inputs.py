"""Reads a request's guide. The inputs have NVIDIA's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from tandem.bls.errors import BadRequest, GuideRejected
from tandem.bls.parsing.inputs import PromptInputs, quote
from tandem.contract import entry as tensors
from tandem.contract.guide import KINDS, Guide
from tandem.contract.tensor import Tensor

TYPE, TEXT = tensors.GUIDED_DECODING_GUIDE_TYPE, tensors.GUIDED_DECODING_GUIDE
WITHOUT_TEXT = "json"  # the guide type without a text: any JSON


def check_guides(inputs: Mapping[str, NDArray[Any]], max_bytes: int) -> None:
    """Reject guides that are too long, or all guides if ``max_bytes`` is 0."""
    arrays = [inputs[tensor] for tensor in (TYPE, TEXT) if tensor in inputs]
    longest = max((len(text) for texts in arrays for text in texts.flat), default=0)
    if longest and not max_bytes:
        raise GuideRejected(
            f"input '{TYPE}' isn't supported by this deployment: its profile sets "
            "limits.max_guide_bytes to 0"
        )
    if longest > max_bytes:
        raise GuideRejected(
            f"input '{TEXT}' has {longest} bytes; the limit is {max_bytes}; send a shorter guide"
        )


def read_guide(inputs: PromptInputs) -> Guide | None:
    """Return a prompt's guide or None; raise BadRequest if its type or text is bad or missing."""
    kind, text = (_single_value(inputs, tensor) for tensor in (TYPE, TEXT))
    if not kind:
        if text:
            raise BadRequest(f"input '{TYPE}' is missing; send one of {', '.join(KINDS)}")
        return None
    if kind not in KINDS:
        raise BadRequest(f"input '{TYPE}' must be one of {', '.join(KINDS)}; got {quote(kind)}")
    if not text and kind != WITHOUT_TEXT:
        raise BadRequest(f"input '{TEXT}' is missing; '{TYPE}' {kind} requires it")
    return Guide(kind, text)


def _single_value(inputs: PromptInputs, tensor: Tensor) -> str:
    values = inputs.strings(tensor)
    if len(values) > 1:
        raise BadRequest(f"input '{tensor}' must have one value per prompt; got {len(values)}")
    return values[0] if values else ""
