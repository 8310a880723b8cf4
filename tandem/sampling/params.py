"""The sampling parameters, such as temperature or min_p, declared once for all packages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from tandem.contract import engine, entry
from tandem.contract.tensor import Tensor


class Bounds(NamedTuple):
    """Bounds of a finite number.

    minimum, maximum: inclusive bounds. above: exclusive lower bound.
    """

    minimum: float = -math.inf
    maximum: float = math.inf
    above: float = -math.inf

    def fault(self, value: float) -> str:
        """Return what is wrong with a value, to follow its name in an error; empty if it is valid.

        >>> Bounds(0, 1).fault(2), Bounds(minimum=0).fault(math.inf), Bounds(above=0).fault(1)
        ('must be between 0 and 1; got 2', 'must be a finite number; got inf', '')
        """
        if math.isfinite(value) and self.minimum <= value <= self.maximum and value > self.above:
            return ""
        if math.isfinite(self.minimum) and math.isfinite(self.maximum):
            wanted = f"between {self.minimum:g} and {self.maximum:g}"
        elif not math.isfinite(value):
            wanted = "a finite number"
        elif math.isfinite(self.minimum):
            wanted = f"at least {self.minimum:g}"
        else:
            wanted = f"greater than {self.above:g}"
        return f"must be {wanted}; got {value:g}"


class Number(NamedTuple):
    """Declaration of one numeric sampling parameter.

    neutral: value without effect. entry, engine: name of the parameter's input tensor in the
    entries and in the engines. draws: whether the parameter shapes the distribution to sample from;
    any value but 0 turns on sampling. capability: field of `Capabilities` that engines need, or
    None.
    """

    neutral: float
    entry: Tensor
    engine: Tensor
    bounds: Bounds
    draws: bool
    capability: str | None


def _number(
    neutral: float,
    entry: Tensor,
    engine: Tensor,
    bounds: Bounds = Bounds(),  # noqa: B008 (immutable)
    *,
    draws: bool = False,
    capability: str | None = None,
) -> Any:
    number = Number(neutral, entry, engine, bounds, draws, capability)
    return field(default=neutral, metadata={"number": number})


@dataclass(frozen=True)
class SamplingNumbers:
    """Numeric sampling parameters. By default, tokens are sampled from the model's distribution.

    A `top_k` of 1 or a `temperature` of 0 means greedy decoding. Greedy decoding ignores the other
    parameters whose `Number` has ``draws``.
    """

    temperature: float = _number(
        1.0, entry.TEMPERATURE, engine.TEMPERATURE, Bounds(minimum=0), draws=True
    )
    top_k: int = _number(0, entry.TOP_K, engine.RUNTIME_TOP_K, Bounds(minimum=0), draws=True)
    top_p: float = _number(1.0, entry.TOP_P, engine.RUNTIME_TOP_P, Bounds(0, 1), draws=True)
    min_p: float = _number(
        0.0, entry.MIN_P, engine.MIN_P, Bounds(0, 1), draws=True, capability="min_p"
    )
    repetition_penalty: float = _number(
        1.0, entry.REPETITION_PENALTY, engine.REPETITION_PENALTY, Bounds(above=0)
    )
    presence_penalty: float = _number(0.0, entry.PRESENCE_PENALTY, engine.PRESENCE_PENALTY)
    frequency_penalty: float = _number(0.0, entry.FREQUENCY_PENALTY, engine.FREQUENCY_PENALTY)

    @property
    def greedy(self) -> bool:
        return self.top_k == 1 or self.temperature == 0

    @property
    def truncates(self) -> bool:
        """Whether some tokens with a probability above 0 are excluded, as by top-k."""
        cuts = {name for name, number in NUMBERS.items() if number.draws} - {"temperature"}
        return not self.greedy and any(getattr(self, n) != NUMBERS[n].neutral for n in cuts)

    def engine_inputs(self) -> dict[Tensor, float]:
        """Return the inputs for an engine: all parameters that aren't neutral.

        top_p is always sent if tokens are sampled, because an engine decodes greedily unless it
        gets a parameter with ``draws``.
        """
        sent = {name: getattr(self, name) for name in NUMBERS}
        sent = {name: value for name, value in sent.items() if value != NUMBERS[name].neutral}
        if self.greedy:
            sent = {name: value for name, value in sent.items() if not NUMBERS[name].draws}
            sent["top_k"] = 1
        else:
            sent["top_p"] = self.top_p
        return {NUMBERS[name].engine: value for name, value in sent.items()}


NUMBERS: dict[str, Number] = {
    part.name: part.metadata["number"] for part in fields(SamplingNumbers)
}


def sampling_fields(given: Mapping[str, float]) -> dict[str, Any]:
    """Return the fields of `SamplingNumbers` for the values that a request sends.

    As with TensorRT-LLM, a request is greedy unless it sends a parameter with ``draws``. A 0 counts
    as not sent, except for a temperature of 0, which is greedy.
    """
    draws = {name: value for name, value in given.items() if NUMBERS[name].draws and value}
    if not draws or given.get("temperature") == 0:
        draws = {"top_k": 1}
    return {name: value for name, value in given.items() if not NUMBERS[name].draws} | draws
