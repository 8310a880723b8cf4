"""What an engine's failure says, of which model, and under which code."""

from tandem.bls.errors import (
    Cancelled,
    EngineCallError,
    EngineRefused,
    EngineTimeout,
    EngineUnavailable,
)


def told(error):
    return str(error), error.model, error.what, error.code


def test_an_engines_failure_names_the_model_and_has_its_words():
    failed = "model 'draft' failed: "
    assert told(EngineCallError("draft", "it fell over")) == (
        failed + "it fell over",
        "draft",
        "it fell over",
        "INTERNAL",
    )
    assert told(EngineCallError("draft", "full", "UNAVAILABLE"))[-1] == "UNAVAILABLE"


def test_a_time_out_says_how_long_it_waited():
    what = "no answer within 2.5 s"
    failed = f"model 'target' failed: {what}"
    assert told(EngineTimeout("target", 2.5)) == (failed, "target", what, "INTERNAL")


def test_an_engine_that_is_called_no_more_is_unavailable():
    failed = "model 'target' failed: it hangs"
    assert told(EngineUnavailable("target", "it hangs")) == (
        failed,
        "target",
        "it hangs",
        "UNAVAILABLE",
    )


def test_a_refusal_is_the_requests_fault_unless_the_engine_says_otherwise():
    failed = "model 'draft' failed: too long"
    assert told(EngineRefused("draft", "too long")) == (failed, "draft", "too long", "INVALID_ARG")
    assert told(EngineRefused("draft", "too long", "INTERNAL"))[-1] == "INTERNAL"


def test_a_cancelled_request_says_so():
    assert str(Cancelled()) == "the request was cancelled"
