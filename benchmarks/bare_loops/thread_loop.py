"""A minimal loop on a thread, which blocks in `exec` twice per round."""

from __future__ import annotations

import threading
from typing import Any

import triton_python_backend_utils as pb_utils
from hops import BareRounds


class TritonPythonModel:
    """Returns the duration of its rounds in seconds, in total and by part."""

    def execute(self, requests: list[Any]) -> None:
        """Run the rounds of each request on a separate thread."""
        for request in requests:
            threading.Thread(target=self._answer, args=(request,), daemon=True).start()

    def _answer(self, request: Any) -> None:
        sender = request.get_response_sender()
        sender.send(self._play(request), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _play(self, request: Any) -> Any:
        rounds = BareRounds(request).play()
        call = next(rounds)
        try:
            while True:
                call = rounds.send(call.exec())
        except StopIteration as ended:
            return ended.value
