"""A minimal loop with asyncio, which awaits `async_exec` twice per round."""

from __future__ import annotations

from typing import Any

from hops import BareRounds


class TritonPythonModel:
    """Answers with the duration of its rounds in seconds, in total and by part."""

    async def execute(self, requests: list[Any]) -> list[Any]:
        return [await self._play(request) for request in requests]

    async def _play(self, request: Any) -> Any:
        rounds = BareRounds(request).play()
        call = next(rounds)
        try:
            while True:
                call = rounds.send(await call.async_exec())
        except StopIteration as ended:
            return ended.value
