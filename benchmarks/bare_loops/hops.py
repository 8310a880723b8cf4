"""The engine calls of a round and their times by part, shared by both bare loops."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

ASKED = ["output_ids", "sequence_length", "arrival_time_ns", "last_token_time_ns"]


class Hop:
    """One engine call, with the wall-clock time in nanoseconds at each stage."""

    def __init__(self, model: str, context: Any, max_new_tokens: int, draft: Any = None) -> None:
        self._stations = [time.time_ns()]
        inputs = [
            pb_utils.Tensor("input_ids", context[np.newaxis]),
            scalar("input_lengths", len(context)),
            scalar("request_output_len", max_new_tokens),
            scalar("runtime_top_k", 1),
            pb_utils.Tensor("return_perf_metrics", np.array([[True]])),
        ]
        if draft is not None:
            inputs.append(pb_utils.Tensor("draft_input_ids", draft[np.newaxis]))
        self.request = pb_utils.InferenceRequest(
            model_name=model, requested_output_names=ASKED, inputs=inputs
        )
        self._stations.append(time.time_ns())

    def read(self, response: Any) -> Any:
        """Return the output tokens, [n]."""
        returned = time.time_ns()
        found = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
        tokens = found["output_ids"].reshape(-1)[: found["sequence_length"].item()].copy()
        in_engine = [found[name].item() for name in ("arrival_time_ns", "last_token_time_ns")]
        self._stations += [*in_engine, returned, time.time_ns()]
        return tokens

    @property
    def seconds(self) -> Any:
        """Seconds per part, [5]: build the request, send, compute, return, read the response."""
        return np.diff(self._stations) / 1e9


class BareRounds:
    """The rounds of one request, each a draft call and a target call, and their times."""

    def __init__(self, request: Any) -> None:
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        self._context, self._rounds = given["input_ids"].reshape(-1), int(given["rounds"].item())
        self._seconds = np.zeros(5)

    def play(self) -> Any:
        """Yield each engine call and receive its response.

        Returns the answer: the seconds of all rounds, in total and by part.
        """
        began = time.perf_counter()
        for _ in range(self._rounds):
            draft = yield from self._hop("draft", self._context, 10)
            tokens = yield from self._hop("target", self._context, len(draft) + 1, draft)
            self._context = np.concatenate([self._context, tokens])
        figures = np.array([[time.perf_counter() - began, *self._seconds]])
        return pb_utils.InferenceResponse([pb_utils.Tensor("seconds", figures)])

    def _hop(self, *call: Any) -> Any:
        hop = Hop(*call)
        tokens = hop.read((yield hop.request))
        self._seconds += hop.seconds
        return tokens


def scalar(name: str, value: int) -> Any:
    """Return an int32 tensor of shape [1, 1]."""
    return pb_utils.Tensor(name, np.array([[value]], np.int32))
