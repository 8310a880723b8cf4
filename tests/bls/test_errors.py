"""Engine errors contain the model's name, a message and a code."""

from tandem.bls.errors import (
    BadRequest,
    Cancelled,
    DeadlineExceeded,
    EngineCallError,
    EngineTimeout,
    EngineUnavailable,
    Overloaded,
)
from tandem.contract.errors import split_class


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
    assert [split_class(line)[0] for line in lines] == [
        *("overloaded", "deadline_exceeded", "model_timeout"),
        *("model_unavailable", "model_unavailable", None, None, None),
    ]
