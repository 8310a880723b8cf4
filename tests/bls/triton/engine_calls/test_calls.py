"""A failed call becomes an error with a code and a message that clients may see."""

import time
import weakref
from types import SimpleNamespace

import pytest

from tandem.bls.errors import (
    BadRequest,
    Cancelled,
    DeadlineExceeded,
    EngineCallError,
    EngineTimeout,
    EngineUnavailable,
    Overloaded,
    RejectedByEngine,
    ServingError,
)
from tandem.bls.triton.calls import Calls, engine_error
from tandem.contract.errors import CODES, prefix_code, split_code

REGION = "triton_python_backend_shm_region_tandem-14202-ac8fb9ed"
LOST = "Stub process 'target_0_0' is not healthy."
PREFIX = "Model target - Error when running inference: "
UNLOADED = f"{PREFIX}Failed for execute the inference request. Model 'target' is not ready."
STOPPING = f"{PREFIX}Server not ready"


@pytest.fixture
def fails(pb):
    """fails(said) returns the error of a call whose model raises or returns `said`."""

    def call(said, code="INTERNAL", *, decoupled=False):
        def answer(_):
            if isinstance(said, Exception):
                raise said
            return pb.InferenceResponse(error=pb.TritonError(said, getattr(pb.TritonError, code)))

        pb.InferenceRequest.answer = answer
        with pytest.raises(EngineCallError) as failed:
            Calls().infer("target", pb.InferenceRequest("target"), decoupled=decoupled)
        return failed.value

    return call


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("code", CODES)
def test_an_error_code_is_read_from_the_message_or_the_error(fails, code, decoupled):
    for error in (fails(prefix_code(code, "no"), decoupled=decoupled), fails("no", code)):
        assert (error.code, error.what) == (code, "no")
        assert isinstance(error, RejectedByEngine) == (code in ("INVALID_ARG", "UNSUPPORTED"))


def test_the_wrong_input_is_read_from_the_message(fails):
    error = fails(prefix_code("INVALID_ARG", "embedding_bias must be finite", "embedding_bias"))
    assert (error.field, error.what) == ("embedding_bias", "embedding_bias must be finite")
    assert fails("embedding_bias must be finite").field == ""


@pytest.mark.parametrize(
    "said",
    [
        f"Failed to increase the shared memory pool size for key '{REGION}' to 1048576 bytes.",
        f"Unable to initialize shared memory key '{REGION}' to requested size (67108864 bytes).",
        "Failed to create new mapped region for the grown shared memory region 'tandem-1'. boom",
        f"INVALID_ARG: something about {REGION}",
    ],
)
@pytest.mark.parametrize("raised", [True, False])
def test_errors_never_contain_names_of_shared_memory_regions(fails, pb, said, raised):
    error = fails(pb.TritonModelException(said) if raised else said)
    assert str(error) == (
        "model 'target' failed: Triton's shared memory (/dev/shm) is full; enlarge it, for "
        "example with docker's --shm-size"
    )
    assert any(split_code(said).line in line for line in pb.Logger.lines)


def test_stack_traces_are_removed_from_error_messages(fails):
    assert fails("it broke\n\nAt:\n  /models/x.py(3): f").what == "it broke"


def test_long_error_messages_are_cut(fails):
    assert fails("it broke " * 1000).what == ("it broke " * 1000)[:1000]


def test_a_call_without_any_response_is_an_error_even_if_it_may_be_empty():
    request = SimpleNamespace(exec=lambda *, decoupled: iter(()))
    with pytest.raises(EngineCallError, match="it ended the call without an answer"):
        Calls().infer("bls_stream", request, decoupled=True, may_be_empty=True)


def test_the_error_for_full_shared_memory_is_passed_on_unchanged(fails):
    line = "the answer does not fit into the server's shared memory (/dev/shm; docker's --shm-size)"
    assert fails(line).what == line


def test_an_error_message_without_a_known_code_is_unchanged():
    assert split_code("input 'x': wrong") == (None, "", "input 'x': wrong")
    assert split_code("INVALID: wrong") == (None, "", "INVALID: wrong")
    assert prefix_code("INTERNAL", "it broke") == "it broke"


def test_errors_have_their_documented_codes():
    codes = {
        "INVALID_ARG": [BadRequest("x"), RejectedByEngine("target", "x")],
        "UNAVAILABLE": [Overloaded("x"), EngineUnavailable("target", "x")],
        "CANCELLED": [Cancelled()],
        # Clients don't retry INTERNAL errors automatically, because a retry could take as long.
        "INTERNAL": [DeadlineExceeded("x"), EngineTimeout("target", 1), ServingError("x")],
    }
    for code, errors in codes.items():
        assert {error.code for error in errors} == {code}


@pytest.mark.parametrize("decoupled", [True, False])
def test_an_empty_response_is_an_error_unless_it_is_allowed(pb, decoupled):
    empty = pb.InferenceResponse()
    pb.InferenceRequest.answer = lambda _: empty
    request = pb.InferenceRequest("bls_stream")
    calls = Calls()
    assert calls.infer("bls_stream", request, decoupled=decoupled, may_be_empty=True) is empty
    with pytest.raises(EngineCallError, match="it ended the call without an answer"):
        calls.infer("bls_stream", request, decoupled=decoupled)


@pytest.mark.parametrize("said", [LOST, UNLOADED, STOPPING])
def test_a_model_that_died_or_is_unloaded_or_shuts_down_is_unavailable(said):
    error = engine_error("target", said)
    assert error.code == "UNAVAILABLE"
    assert error.line == f"model_unavailable: model 'target' failed: {said}"


@pytest.mark.parametrize("said", [f"it said: {LOST}", "Stub process 'target_0_0' has said no"])
def test_other_failures_have_code_internal(said):
    assert engine_error("target", said).code == "INTERNAL"


def test_an_error_with_a_code_that_tandem_does_not_know_is_internal(fails):
    assert fails("no", "UNKNOWN").code == "INTERNAL"


def test_a_calls_iterator_outlives_it_by_a_second(pb, monkeypatch):
    """Triton 2.51 crashes if it is freed while its last response arrives."""
    calls, kept = Calls(), []

    class Responses(list):
        pass

    def exec_(*, decoupled):
        responses = Responses([pb.InferenceResponse()])
        kept.append(weakref.ref(responses))
        return responses

    def call():
        calls.infer("bls_stream", SimpleNamespace(exec=exec_), decoupled=True, may_be_empty=True)

    call()
    assert kept[0]() is not None
    later = time.monotonic() + 2
    monkeypatch.setattr(time, "monotonic", lambda: later)
    call()
    assert kept[0]() is None
    assert kept[1]() is not None
