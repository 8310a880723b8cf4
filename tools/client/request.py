"""What a text entry is sent, and where it answers unless the user says otherwise."""

from __future__ import annotations

from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.client.client import Inputs, Value

URL = "127.0.0.1:8001"
MODEL = "bls_stream"


def inputs_for(prompt: str, max_tokens: int, more: Inputs, *, stream: bool = True) -> Inputs:
    return request_inputs({tensors.TEXT_INPUT: prompt}, max_tokens, more, stream=stream)


def request_inputs(prompt: Inputs, max_tokens: int, more: Inputs, *, stream: bool) -> Inputs:
    """Return everything that an entry is sent; prompt: the inputs that carry it."""
    always: dict[Tensor, Value] = {
        tensors.MAX_TOKENS: max_tokens,
        tensors.STREAM: stream,
        tensors.EXCLUDE_INPUT_IN_OUTPUT: True,
    }
    return always | dict(prompt) | dict(more)
