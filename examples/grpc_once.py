"""Requests a complete answer over gRPC with NVIDIA's client.

Run `python examples/grpc_once.py "def main():"`. It needs `tritonclient[grpc]` and a server.
"""

import argparse

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import InferenceServerClient, InferInput


def tensor(name: str, dtype: str, values: NDArray) -> InferInput:
    """Return an input tensor. values: one row per prompt."""
    made = InferInput(name, values.shape, dtype)
    made.set_data_from_numpy(values)
    return made


def main() -> None:
    """Send a prompt, and print the output and the acceptance rate."""
    parser = argparse.ArgumentParser(description="Request a single response over gRPC.")
    parser.add_argument("prompt", nargs="?", default="def main():")
    parser.add_argument("--url", default="127.0.0.1:8001", help="HOST:PORT of Triton's gRPC port")
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()

    inputs = [
        tensor("text_input", "BYTES", np.array([[options.prompt.encode()]], dtype=object)),
        tensor("max_tokens", "INT32", np.array([[options.max_tokens]], dtype=np.int32)),
    ]
    with InferenceServerClient(options.url) as client:
        answer = client.infer("bls", inputs)
    print(answer.as_numpy("text_output")[0].decode())
    print(f"[acceptance rate {answer.as_numpy('acceptance_rate').item():.0%}]")


if __name__ == "__main__":
    main()
