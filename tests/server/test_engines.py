"""The engines as those see them who call `draft` and `target` themselves."""

import queue
from pathlib import Path

import numpy as np
import pytest
from entries import ask_one
from tandem import deployment
from tritonclient import grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from contract import engine

from .conftest import serving

PROFILE = Path(__file__).resolve().parents[2] / "profiles" / "emulated-zero.yaml"
CONTEXT = list(range(40, 60))
LENGTH = 12


def request(**values):
    """A call's tensors."""
    given = {"input_ids": CONTEXT, "input_lengths": [len(CONTEXT)], "request_output_len": [LENGTH]}
    tensors = []
    for name, value in (given | values).items():
        row = np.array([value], bool if name == engine.STREAMING else np.int32)
        tensors.append(grpc.InferInput(name, row.shape, np_to_triton_dtype(row.dtype)))
        tensors[-1].set_data_from_numpy(row)
    return tensors


def tokens_of(result):
    return result.as_numpy(engine.OUTPUT_IDS).reshape(-1).tolist()


@pytest.fixture(scope="module")
def emulated():
    """A profile whose engines start at once; how they are called is the same for all kinds."""
    return deployment.load(PROFILE)


@pytest.fixture(scope="module")
def server(emulated, tmp_path_factory):
    with serving(emulated, tmp_path_factory.mktemp("plain")) as running:
        yield running


@pytest.fixture(scope="module")
def alone(server):
    """What the target says when it is asked for one answer."""
    with grpc.InferenceServerClient(server.grpc_url) as client:
        return tokens_of(client.infer("target", request(runtime_top_k=[1])))


def test_an_engine_answers_plain_requests(alone):
    assert len(alone) == LENGTH


def test_a_stream_is_refused_with_what_would_allow_it(server):
    with (
        grpc.InferenceServerClient(server.grpc_url) as client,
        pytest.raises(InferenceServerException, match="`decoupled: true`"),
    ):
        client.infer("target", request(streaming=[True]))


def test_a_decoupled_engine_streams_and_the_loop_works_over_it(emulated, server, serve, alone):
    sections = {
        name: section.model_copy(update={"decoupled": True})
        for name, section in emulated.profile.engines
    }
    engines = emulated.profile.engines.model_copy(update=sections)
    decoupled = serve(deployment.check(emulated.profile.model_copy(update={"engines": engines})))

    arrived = queue.Queue()
    with grpc.InferenceServerClient(decoupled.grpc_url) as client:
        client.start_stream(lambda result, error: arrived.put((result, error)))
        client.async_stream_infer("target", request(runtime_top_k=[1], streaming=[True]))
        answers = [arrived.get(timeout=30) for _ in range(LENGTH)]
    assert [error for _, error in answers] == [None] * LENGTH
    assert np.concatenate([tokens_of(result) for result, _ in answers]).tolist() == alone

    values = {"max_tokens": LENGTH, "end_id": -1}
    expected = ask_one(server, "ensemble", "def add(a, b):", **values)
    answer = ask_one(decoupled, "bls", "def add(a, b):", **values)
    assert answer.ids == expected.ids
    assert answer.number("num_rounds") < LENGTH
