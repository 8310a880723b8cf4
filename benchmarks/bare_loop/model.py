"""The least that a loop can do: an asyncio model that calls draft and target once a round."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

ASKED = ["output_ids", "sequence_length", "arrival_time_ns", "last_token_time_ns"]


class TritonPythonModel:
    """Answers how long its rounds took, and how long the engines worked in them, in seconds."""

    async def execute(self, requests: list[Any]) -> list[Any]:
        """Play each request's rounds."""
        return [await self._play(request) for request in requests]

    async def _play(self, request: Any) -> Any:
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        context, rounds = given["input_ids"].reshape(-1), int(given["rounds"].item())
        engines = 0.0
        began = time.perf_counter()
        for _ in range(rounds):
            draft, seconds = await _call("draft", context, 10)
            engines += seconds
            tokens, seconds = await _call("target", context, len(draft) + 1, draft)
            engines += seconds
            context = np.concatenate([context, tokens])
        figures = np.array([[time.perf_counter() - began, engines]])
        return pb_utils.InferenceResponse([pb_utils.Tensor("seconds", figures)])


async def _call(
    model: str, context: Any, max_new_tokens: int, draft: Any = None
) -> tuple[Any, float]:
    inputs = [
        pb_utils.Tensor("input_ids", context[np.newaxis]),
        _scalar("input_lengths", len(context)),
        _scalar("request_output_len", max_new_tokens),
        _scalar("runtime_top_k", 1),
        pb_utils.Tensor("return_perf_metrics", np.array([[True]])),
    ]
    if draft is not None:
        inputs.append(pb_utils.Tensor("draft_input_ids", draft[np.newaxis]))
    request = pb_utils.InferenceRequest(
        model_name=model, requested_output_names=ASKED, inputs=inputs
    )
    for response in await request.async_exec(decoupled=True):
        found = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
        break
    tokens = found["output_ids"].reshape(-1)[: found["sequence_length"].item()]
    seconds = (found["last_token_time_ns"].item() - found["arrival_time_ns"].item()) / 1e9
    return tokens.copy(), seconds


def _scalar(name: str, value: int) -> Any:
    return pb_utils.Tensor(name, np.array([[value]], np.int32))
