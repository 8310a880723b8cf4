"""The least that a loop can do that drafts ahead: a thread that verifies, another for branches."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from hops import scalar


class TritonPythonModel:
    """Answers how long a text took, in seconds, and how many rounds and branches in time it had."""

    def execute(self, requests: list[Any]) -> None:
        """Write each request's text on a thread of its own."""
        for request in requests:
            threading.Thread(target=self._answer, args=(request,), daemon=True).start()

    def _answer(self, request: Any) -> None:
        sender = request.get_response_sender()
        sender.send(AheadLoop(request).play(), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class AheadLoop:
    """One text: rounds of verifications, and of branches beside them.

    counts [k + 1]: branches behind each accepted length of a draft of k tokens. on_miss: tokens of
    a draft for which no branch was there.
    """

    def __init__(self, request: Any) -> None:
        given = {tensor.name(): tensor.as_numpy().reshape(-1) for tensor in request.inputs()}
        self._context = given["input_ids"]
        self._end = len(self._context) + given["max_tokens"].item()
        self._counts, self._on_miss = given["counts"], given["on_miss"].item()
        self._length = len(self._counts) - 1
        self._tasks: SimpleQueue[Any] = SimpleQueue()
        self._done: SimpleQueue[Any] = SimpleQueue()

    def play(self) -> Any:
        """Return the response."""
        helper = threading.Thread(target=self._draft_branches, daemon=True)
        helper.start()
        began = time.perf_counter()
        rounds, hits, branches = 0, 0, {}
        key: tuple[int, int] | None = None
        while len(self._context) < self._end:
            draft = branches.get(key)
            hits += draft is not None
            if draft is None:
                draft = _draft(self._context, self._on_miss)
            inputs = _behind(self._context, len(draft) + 1, draft_input_ids=draft)
            self._tasks.put((self._context, draft))
            new = _tokens(_call("target", inputs, TOKENS))
            self._context = np.concatenate([self._context, new])
            key = (len(new) - 1, int(new[-1]))
            branches = self._done.get()
            rounds += 1
        seconds = time.perf_counter() - began
        self._tasks.put(None)
        figures = np.array([[seconds, rounds, hits]])
        return pb_utils.InferenceResponse([pb_utils.Tensor("figures", figures)])

    def _draft_branches(self) -> None:
        while (task := self._tasks.get()) is not None:
            context, draft = task
            inputs = _behind(
                context,
                self._length,
                draft_input_ids=draft,
                branch_counts=self._counts[: len(draft) + 1],
                branch_output_len=np.full(len(draft) + 1, self._length, np.int32),
            )
            found = _call("draft", inputs, BRANCHES)
            rows = zip(*(found[name] for name in BRANCHES), strict=True)
            self._done.put({tuple(key.tolist()): ids[:length] for key, ids, length in rows})


TOKENS = ["output_ids", "sequence_length"]
BRANCHES = ["branch_outcomes", "branch_ids", "branch_lengths"]


def _draft(context: Any, max_new_tokens: int) -> Any:
    return _tokens(_call("draft", _behind(context, max_new_tokens), TOKENS))


def _behind(context: Any, max_new_tokens: int, **arrays: Any) -> list[Any]:
    """Return the inputs of a call behind a context; arrays: more of them, without the batch."""
    return [
        pb_utils.Tensor("input_ids", context[np.newaxis]),
        scalar("input_lengths", len(context)),
        scalar("request_output_len", max_new_tokens),
        scalar("runtime_top_k", 1),
        *(pb_utils.Tensor(name, array[np.newaxis]) for name, array in arrays.items()),
    ]


def _call(model: str, inputs: list[Any], asked: list[str]) -> dict[str, Any]:
    request = pb_utils.InferenceRequest(
        model_name=model, requested_output_names=asked, inputs=inputs
    )
    response = request.exec()
    if response.has_error():
        raise RuntimeError(response.error().message())
    return {tensor.name(): tensor.as_numpy()[0] for tensor in response.output_tensors()}


def _tokens(found: dict[str, Any]) -> Any:
    return found["output_ids"].reshape(-1)[: found["sequence_length"].item()].copy()
