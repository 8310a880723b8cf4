"""Run `bls.triton` without Triton: tests/support provides `triton_python_backend_utils`."""

import threading

import pytest
import triton_python_backend_utils as triton


@pytest.fixture(autouse=True)
def pb(monkeypatch):
    """The stand-in for Triton, reset for each test. Threads of earlier tests can't change it."""
    init = threading.Thread.__init__

    def init_for_the_test_of_its_maker(thread, *args, **kwargs):
        init(thread, *args, **kwargs)
        thread.owner = triton.owner_of(threading.current_thread())

    monkeypatch.setattr(threading.Thread, "__init__", init_for_the_test_of_its_maker)
    triton.reset()
    yield triton
    triton.reset()
