"""As a Triton model, an engine answers every call with a response or an error."""

from __future__ import annotations

import importlib
import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import triton_python_backend_utils as stand_in
from emulated import settings
from live_triton import eventually
from model_configs import model_config, start_arguments
from triton_python_backend_utils import Request, ResponseSender, TritonError

from tandem.contract.errors import split_code
from tandem.contract.model_parameters import encode
from tandem.engines.engine import EngineResponse
from tandem.engines.errors import ResponseError
from tandem.engines.shared_logits import SharedLogitsWriter
from tandem.tools.triton.status import TritonLog

FINAL = stand_in.TRITONSERVER_RESPONSE_COMPLETE_FINAL
PLAIN = ["output_ids", "sequence_length"]
LOGITS = [*PLAIN, "generation_logits"]


@pytest.fixture
def triton():
    """The module `engines.triton`, with a stand-in for Triton."""
    stand_in.reset()
    yield importlib.import_module("tandem.engines.triton")
    stand_in.reset()


class Scripted:
    """An engine that records its calls. The test answers through the recorded `respond`."""

    computed_tokens = 0

    def __init__(self):
        self.calls = []

    def submit(self, request, respond):
        self.calls.append((request, respond))

    def stop(self, request_id):
        pass

    def close(self):
        pass


@pytest.fixture
def begin(triton):
    """Return a function that starts a model with the given or the emulated engine."""
    made = []

    def start(engine=None, *, decoupled=False, **parameters):
        class Model(triton.EngineModel):
            def load_engine(self, model_config, folder):
                return engine or super().load_engine(model_config, folder)

        given = {"engine": "emulated", **encode(settings()), **parameters}
        policy = {"decoupled": decoupled}
        config = model_config(given, name="target", model_transaction_policy=policy)
        model = Model()
        model.initialize(start_arguments(config, Path("/nowhere/target")))
        made.append(model)
        return model

    yield start
    for model in made:
        model.finalize()


def test_tandem_up_can_read_that_an_engine_has_loaded(begin, capsys, tmp_path):
    begin()
    log = tmp_path / "log"
    log.write_text(capsys.readouterr().out)
    assert TritonLog(log).unnoticed == ["target"]


def ask(model, *, sender=None, wanted=PLAIN, decoupled=False, **given):
    """Execute one request; return the immediate response, or None, and the sender."""
    sender = sender or ResponseSender(decoupled=decoupled)
    arrays = {"input_ids": [3, 4, 5], "input_lengths": [3], "request_output_len": [4], **given}
    arrays = {name: np.array([value]) for name, value in arrays.items()}
    for name in ("input_ids", "draft_input_ids"):
        if name in arrays:
            arrays[name] = arrays[name].astype(np.int32)
    returned = model.execute([Request(sender, arrays, wanted, "r")])
    return (returned[0] if returned else None), sender


def all_fit_but(number):
    """Return a function that accepts all responses except the one with this number (from 0)."""
    numbers = itertools.count()
    return lambda _response: next(numbers) != number


def error_of(response):
    line = split_code(response.error().message()).line  # the message starts with the code
    return line, response.error().code()


def answer(**given):
    return EngineResponse(tokens=(7, 8), **given)


def test_the_computed_tokens_metric_recovers_from_a_memory_error(triton, monkeypatch):
    family, asked = stand_in.MetricFamily, itertools.count()

    def count():
        monkeypatch.setattr(family, "full", next(asked) == 0)
        return 7

    monkeypatch.setattr(triton._Counter, "_PERIOD_SECONDS", 0.001)
    counter = triton._Counter(triton.COMPUTED_TOKENS, lambda: {(("model", "target"),): count()})
    values = family.metrics.values
    assert eventually(lambda: [metric.value for metric in values()] == [7])
    counter.close()
    assert [metric.value for metric in values()] == [7]


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (
            {"request_output_len": [0]},
            TritonError.INVALID_ARG,
            "request_output_len must be at least 1; got 0",
        ),
        ({"input_ids": [999]}, TritonError.INVALID_ARG, "input_lengths must be 1"),
        ({"lora_task_id": [3]}, TritonError.UNSUPPORTED, "lora_task_id isn't supported"),
        ({"beam_width": [2]}, TritonError.UNSUPPORTED, "beam_width must be 1; got 2"),
        (
            {"repetition_penalty": [2.0]},
            TritonError.UNSUPPORTED,
            "repetition_penalty isn't",
        ),
        ({"streaming": [True]}, TritonError.UNSUPPORTED, "`decoupled: true`"),
    ],
)
def test_a_rejected_call_has_the_right_error_code(begin, given, code, words):
    response, sender = ask(begin(), **given)
    assert sender.sent == []  # execute() returned the response instead
    message, found = error_of(response)
    assert found == code
    assert words in message


def test_a_stop_request_gets_an_empty_response(begin):
    response, _ = ask(begin(), stop=[True])
    assert response.arrays["output_ids"].shape == (1, 1, 0)
    assert response.arrays["sequence_length"].tolist() == [[0]]


def test_a_crash_has_code_internal_and_shows_only_the_error_type(begin):
    class Broken(Scripted):
        def submit(self, request, respond):
            raise MemoryError("secret")

    response, _ = ask(begin(Broken()))
    assert error_of(response) == (
        "the call failed: MemoryError",
        TritonError.INTERNAL,
    )


@pytest.mark.parametrize("code", ["INVALID_ARG", "UNAVAILABLE", "CANCELLED", "INTERNAL"])
def test_errors_of_the_engine_keep_their_code(begin, code):
    engine = Scripted()
    response, sender = ask(begin(engine))
    assert response is None
    engine.calls[0][1](EngineResponse(error="it went wrong", code=code))
    ((sent, flags),) = sender.sent
    assert error_of(sent) == ("it went wrong", getattr(TritonError, code))
    assert flags == FINAL


def test_calls_ended_by_shutdown_have_code_unavailable(begin):
    model = begin(step_ms="100000.0")
    response, sender = ask(model)
    assert response is None
    model.finalize()
    assert error_of(sender.sent[0][0]) == (
        "the engine is shutting down",
        TritonError.UNAVAILABLE,
    )


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_response_that_cannot_be_encoded_ends_the_call(begin, monkeypatch, triton, decoupled):
    engine = Scripted()
    _, sender = ask(begin(engine, decoupled=decoupled), decoupled=decoupled)
    monkeypatch.setattr(triton, "encode", lambda *_: 1 / 0)
    engine.calls[0][1](answer())
    ((sent, flags),) = sender.sent
    message = "failed to build its response: ZeroDivisionError"
    assert (error_of(sent), flags) == ((message, TritonError.INTERNAL), FINAL)


def test_a_stream_ends_at_a_response_that_cannot_be_encoded(begin, monkeypatch, triton):
    engine = Scripted()
    _, sender = ask(begin(engine, decoupled=True), decoupled=True, streaming=[True])
    engine.calls[0][1](answer(final=False))
    monkeypatch.setattr(triton, "encode", lambda *_: 1 / 0)
    with pytest.raises(ResponseError):  # the engine then ends the call
        engine.calls[0][1](answer(final=False))
    assert [flags for _, flags in sender.sent] == [0, FINAL]
    assert sender.sent[1][0].has_error()


def test_a_stream_response_that_cannot_be_sent_becomes_an_error(begin):
    engine = Scripted()
    sender = ResponseSender(all_fit_but(1), decoupled=True)
    ask(begin(engine, decoupled=True), sender=sender, decoupled=True, streaming=[True])
    engine.calls[0][1](answer(final=False))
    with pytest.raises(stand_in.TritonModelException):
        engine.calls[0][1](answer(final=False))
    (_, flags), (last, last_flags) = sender.sent
    assert (flags, last_flags) == (0, FINAL)
    message = "failed to send its response; see the server's log"
    assert error_of(last) == (message, TritonError.INTERNAL)


@pytest.fixture
def free(monkeypatch, triton):
    """Return a function that sets the free bytes of shared memory."""

    def say(num_bytes):
        system = SimpleNamespace(f_bavail=num_bytes, f_frsize=1)
        monkeypatch.setattr(triton.os, "statvfs", lambda _: system)

    return say


def test_a_response_too_large_for_shared_memory_is_an_error(begin, free):
    free(5 * 2**20)
    engine = Scripted()
    logits = np.zeros((2, 2**20), np.float32)
    _, sender = ask(begin(engine), wanted=LOGITS)
    engine.calls[0][1](answer(generation_logits=logits))
    message, code = error_of(sender.sent[0][0])
    assert "its response needs 8 MiB of shared memory; /dev/shm has 5 MiB free" in message
    assert code == TritonError.INTERNAL
    free(10 * 2**20)
    _, sender = ask(begin(engine), wanted=LOGITS)
    engine.calls[1][1](answer(generation_logits=logits))
    assert sender.sent[0][0].arrays["generation_logits"].shape == (1, 1, 2, 2**20)


def test_a_small_response_needs_no_free_shared_memory(begin, free):
    free(0)
    response, _ = ask(begin())
    assert not response.has_error()


def test_a_shortened_draft_gets_the_first_rows_of_its_shared_logits(begin):
    writer, engine = SharedLogitsWriter(), Scripted()
    logits = np.arange(5 * 131, dtype=np.float32).reshape(5, 131)
    ask(begin(engine), draft_input_ids=[7, 8], shared_logits_handle=writer.write(logits))
    assert engine.calls[0][0].draft_logits.tolist() == logits[:2].tolist()
    writer.close()


def test_shared_logits_that_lack_a_draft_token_are_rejected(begin):
    writer = SharedLogitsWriter()
    handle = writer.write(np.zeros((1, 131), np.float32))
    given = {"draft_input_ids": [7, 8], "shared_logits_handle": handle}
    response, _ = ask(begin(), temperature=[1.0], **given)
    assert "got [1, 131]" in error_of(response)[0]
    writer.close()


def test_masks_work_with_shared_logits(begin):
    writer = SharedLogitsWriter()
    handle = writer.write(np.zeros((2, 131), np.float32))
    legal, none = [-1] * 5, [0] * 5
    given = {"shared_logits_handle": handle, "temperature": 1.0, "seed": 3}
    rows = np.array([[0b1000, 0, 0, 0, 0], none, legal], np.int32)
    response, _ = ask(begin(), draft_input_ids=[7, 8], token_masks=rows, **given)
    assert response.arrays["output_ids"].tolist() == [[[3]]]
    writer.close()


def test_the_profile_can_include_the_prompt_in_the_output(begin):
    model = begin(exclude_input_in_output="false")
    response, _ = ask(model)
    ids = response.arrays["output_ids"].tolist()[0][0]
    assert (ids[:3], len(ids)) == ([3, 4, 5], 7)
    assert response.arrays["sequence_length"].tolist() == [[7]]
    without, _ = ask(model, exclude_input_in_output=[True])
    assert without.arrays["output_ids"].tolist() == [[ids[3:]]]
    usual, _ = ask(begin())
    assert usual.arrays["output_ids"].tolist() == [[ids[3:]]]
