"""A gateway that does nothing but pass a stream on: the least that one can cost in Python.

    python -m benchmarks.bare_gateway HOST:PORT

It takes the completions of ``benchmarks.gateway`` and nothing else. Each response of Triton becomes
one event; nothing is checked, counted or limited.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from tritonclient.grpc import InferInput, InferRequestedOutput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import np_to_triton_dtype

from tandem.contract import entry as tensors

MODEL = "bls_stream"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
BEFORE_TEXT = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"bls_stream",'
    b'"choices":[{"index":0,"text":'
)
BEHIND_TEXT = b',"logprobs":null,"finish_reason":null}]}\n\n'
LENGTH = b"content-length: "


async def main() -> None:
    """Serve until it is killed; say where."""
    connection = InferenceServerClient(sys.argv[1])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(LENGTH)[2].partition(b"\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        writer.write(HEAD)
        async for result, error in connection.stream_infer(request(body)):
            if error is not None:
                raise error
            text = result.get_response().raw_output_contents[0][4:].decode()
            writer.write(BEFORE_TEXT + json.dumps(text).encode() + BEHIND_TEXT)
            await writer.drain()
        writer.write(b"data: [DONE]\n\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(f"listens at http://127.0.0.1:{port} for {sys.argv[1]}", flush=True)  # noqa: T201
    await server.serve_forever()


async def request(body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """What the gateway asks for."""
    yield {
        "model_name": MODEL,
        "inputs": [
            _tensor(tensors.INPUT_IDS, np.array([body["prompt"]], np.int32)),
            _tensor(tensors.MAX_TOKENS, np.array([[body["max_tokens"]]], np.int32)),
            _tensor(tensors.STREAM, np.array([[True]])),
        ],
        "outputs": [InferRequestedOutput(name) for name in tensors.ANSWER_OUTPUTS],
    }


def _tensor(name: str, array: np.ndarray[Any, Any]) -> InferInput:
    given = InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
    given.set_data_from_numpy(array)
    return given


if __name__ == "__main__":
    asyncio.run(main())
