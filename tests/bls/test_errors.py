"""Engine errors contain the model's name, a message and a code."""

from tandem.bls.errors import (
    BadRequest,
    Cancelled,
    DeadlineExceeded,
    EngineCallError,
    EngineRefused,
    EngineTimeout,
    EngineUnavailable,
    Overloaded,
)
from tandem.contract.errors import class_of


def facts_of(error):
    return str(error), error.model, error.what, error.code


def test_an_engine_error_names_the_model():
    failed = "model 'draft' failed: "
    assert facts_of(EngineCallError("draft", "it fell over")) == (
        failed + "it fell over",
        "draft",
        "it fell over",
        "INTERNAL",
    )
    assert facts_of(EngineCallError("draft", "full", "UNAVAILABLE"))[-1] == "UNAVAILABLE"


def test_an_abandoned_engine_call_has_code_unavailable():
    failed = "model 'target' failed: it hangs"
    assert facts_of(EngineUnavailable("target", "it hangs")) == (
        failed,
        "target",
        "it hangs",
        "UNAVAILABLE",
    )


def test_rejected_calls_are_invalid_arguments_by_default():
    failed = "model 'draft' failed: too long"
    assert facts_of(EngineRefused("draft", "too long")) == (
        failed,
        "draft",
        "too long",
        "INVALID_ARG",
    )
    assert facts_of(EngineRefused("draft", "too long", "INTERNAL"))[-1] == "INTERNAL"


def test_error_lines_begin_with_their_error_class():
    lines = {
        "overloaded: full": Overloaded("full"),
        "deadline_exceeded: late": DeadlineExceeded("late"),
        "model_timeout: model 'target' failed: no response within 2 s": EngineTimeout("target", 2),
        "model_unavailable: model 'target' failed: lost": EngineUnavailable("target", "lost"),
        "model_unavailable: model 'target' failed: ends": EngineCallError(
            "target", "ends", "UNAVAILABLE"
        ),
        "model 'target' failed: it fell over": EngineCallError("target", "it fell over"),
        "input 'x' is missing": BadRequest("input 'x' is missing"),
        "the request was cancelled": Cancelled(),
    }
    assert [error.line for error in lines.values()] == list(lines)
    assert [class_of(line)[0] for line in lines] == [
        *("overloaded", "deadline_exceeded", "model_timeout"),
        *("model_unavailable", "model_unavailable", None, None, None),
    ]
