"""Errors are recognized in Triton's log."""

import pytest

from tandem.tools.triton.status import TritonLog

TRACEBACK = (
    'E1120 10:20:34.538102 21010 background.py:20] "tandem: the decoding loop failed\\n'
    'Traceback (most recent call last):\\n"\n'
)


@pytest.mark.parametrize(
    ("text", "transient"),
    [
        ("what():  boost::interprocess::lock_exception\n", True),
        ("failed to start HTTP service: Unavailable - Socket '[::1]:1' already in use \n", True),
        ("tandem: engine 'target' has loaded\n", True),
        (
            (
                "tandem: engine 'target' has loaded\n"
                "I1120 10:20:34.5 1 model_lifecycle.cc:839] \"successfully loaded 'target'\"\n"
            ),
            False,
        ),
        (TRACEBACK, False),
    ],
)
def test_transient_failures_are_distinguished_from_failed_models(tmp_path, text, transient):
    path = tmp_path / "log"
    path.write_text(text)
    assert TritonLog(path).failed_transiently is transient


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        (TRACEBACK, True),
        ('W1120 10:20:34.5 1 health.py:3] "tandem: requests continue without drafts: x"\n', False),
        ("", False),
    ],
)
def test_a_log_with_a_traceback_is_recognized(tmp_path, text, holds):
    path = tmp_path / "log"
    path.write_text(text)
    assert TritonLog(path).has_tracebacks is holds


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        (r"TritonModelException: no folder x\n\nAt:\n  /y/model.py(58): run\n", "no folder x"),
        (
            r"SomeError: wrong config:\n    ValueError: 3\n\nAt:\n",
            "SomeError: wrong config: ValueError: 3",
        ),
    ],
)
def test_the_reason_of_a_failed_load_has_no_status_or_traceback(tmp_path, reason, line):
    path = tmp_path / "log"
    failed = f"\"failed to load 'target' version 1: Internal: {reason}\""
    path.write_text(f"E1120 10:20:34.5 1 model_lifecycle.cc:642] {failed}\n")
    assert TritonLog(path).failure == f"model 'target' failed to load: {line}"
