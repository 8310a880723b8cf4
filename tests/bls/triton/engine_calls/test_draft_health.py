"""A draft engine is paused after failures, even if probes or logging fail too."""

import pytest
import triton_python_backend_utils as triton
from scripted import SETTINGS, Health

from tandem.bls.admission import Reservation
from tandem.bls.errors import EngineCallError, RejectedByEngine
from tandem.bls.triton import engine_calls as module
from tandem.bls.triton.calls import Calls
from tandem.bls.triton.engine_calls import DraftEngineHealth, EngineClient, SequenceDraftHealth

FAILED = EngineCallError("draft", "it fell over")


@pytest.fixture
def probes(monkeypatch):
    """The started probes. A test calls a probe to run it."""
    begun = []
    monkeypatch.setattr(module, "run_in_background", lambda work, rejected: begun.append(work))
    return begun


@pytest.fixture
def health():
    return DraftEngineHealth(EngineClient("draft", SETTINGS.draft, SETTINGS, Calls()), pause=0)


def test_repeated_failures_are_logged_and_probed_once(health, probes, pb):
    health.failed(FAILED)
    health.failed(FAILED)
    assert not health.available
    assert len(probes) == 1
    assert len(pb.Logger.lines) == 1


def test_each_consequence_of_a_rejection_is_logged_once(health, pb):
    error = RejectedByEngine("draft", "too long")
    for _ in range(2):
        health.rejected(error, "drafting ahead")
    for _ in range(2):
        health.rejected(error)
    assert len(pb.Logger.lines) == 2


def test_drafts_resume_when_a_probe_succeeds(health, probes, pb):
    errors = ["still down", "still down"]

    def answer(_):
        assert not health.available
        if errors:
            raise triton.TritonModelException(errors.pop())
        return triton.InferenceResponse([triton.Tensor("output_ids", None)])

    pb.InferenceRequest.answer = answer
    health.failed(FAILED)
    probes[0]()
    assert health.available
    assert errors == []


def test_a_probe_is_repeated_after_an_unexpected_error(health, probes, pb):
    errors = [RuntimeError("nobody knows this one")]

    def answer(_):
        if errors:
            raise errors.pop()
        return triton.InferenceResponse([triton.Tensor("output_ids", None)])

    pb.InferenceRequest.answer = answer
    health.failed(FAILED)
    probes[0]()
    assert health.available


def test_a_logging_error_stops_neither_requests_nor_probes(health, probes, pb, capsys):
    """Logging uses shared memory, which may be full."""
    pb.Logger.full = True
    health.failed(FAILED)
    assert len(probes) == 1
    health.rejected(RejectedByEngine("draft", "too long"), "drafting ahead")
    lines = capsys.readouterr().err
    assert "it fell over" in lines
    assert "a request continues without drafting ahead: model 'draft' failed: too long" in lines


def test_a_sequence_needs_reserved_draft_blocks_to_use_the_draft_model():
    reservation, health = Reservation(1, 1), Health(patience=1)
    draft = SequenceDraftHealth(reservation, health)
    assert not draft.available
    reservation.has_draft_blocks = True
    assert draft.available
    draft.failed(EngineCallError("draft", "it fell over"))
    assert health.failures == 1
    assert not draft.available
