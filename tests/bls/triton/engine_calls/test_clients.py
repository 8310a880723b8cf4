"""The timeout of a draft call grows with the length of the context."""

from dataclasses import replace

import pytest
from scripted import SETTINGS, ids

from tandem.bls.ports import EngineCall
from tandem.bls.triton.calls import Calls
from tandem.bls.triton.engine_calls import EngineClient


def timeout_of(context_length, *, target_timeout):
    draft = replace(SETTINGS.draft, timeout=5.0)
    target = replace(SETTINGS.target, timeout=target_timeout)
    settings = replace(SETTINGS, draft=draft, target=target)
    call = EngineCall("draft", ids(*[1] * context_length), 1, seed=0)
    return EngineClient("draft", draft, settings, Calls()).timeout_of(call)


@pytest.mark.parametrize(
    ("context", "seconds"),
    [(1, 5.0), (2_048, 5.0), (4_096, 10.0), (20_480, 50.0), (100_000, 60.0)],
)
def test_the_draft_timeout_grows_with_the_context(context, seconds):
    assert timeout_of(context, target_timeout=60.0) == seconds


def test_the_draft_timeout_is_at_least_the_timeout_in_the_profile():
    assert timeout_of(100_000, target_timeout=2.0) == 5.0
