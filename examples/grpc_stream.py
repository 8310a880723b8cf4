"""Streams an answer over gRPC with NVIDIA's client.

Run `python examples/grpc_stream.py "def main():"`. It needs `tritonclient[grpc]` and a server.
"""

import argparse
import queue

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import InferenceServerClient, InferInput


def tensor(name: str, dtype: str, values: NDArray) -> InferInput:
    """Return an input tensor. values: one row per prompt."""
    made = InferInput(name, values.shape, dtype)
    made.set_data_from_numpy(values)
    return made


def main() -> None:
    """Send a prompt, print each chunk as it arrives, then print the finish reason."""
    parser = argparse.ArgumentParser(description="Stream a response over gRPC.")
    parser.add_argument("prompt", nargs="?", default="def main():")
    parser.add_argument("--url", default="127.0.0.1:8001", help="HOST:PORT of Triton's gRPC port")
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()

    inputs = [
        tensor("text_input", "BYTES", np.array([[options.prompt.encode()]], dtype=object)),
        tensor("max_tokens", "INT32", np.array([[options.max_tokens]], dtype=np.int32)),
        tensor("stream", "BOOL", np.array([[True]])),
    ]
    chunks: queue.Queue = queue.Queue()
    with InferenceServerClient(options.url) as client:
        client.start_stream(lambda result, error: chunks.put((result, error)))
        client.async_stream_infer("bls_stream", inputs)
        reason = None
        while reason is None:  # the last chunk has the finish reason
            result, error = chunks.get()
            if error is not None:
                raise SystemExit(f"grpc_stream: {error.message()}")
            print(result.as_numpy("text_output")[0].decode(), end="", flush=True)
            reason = result.as_numpy("finish_reason")
        client.stop_stream()
    print(f"\n[{reason[0].decode()}]")


if __name__ == "__main__":
    main()
