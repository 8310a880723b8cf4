"""A request that can't start gets a one-line error."""

from types import SimpleNamespace

import pytest
from receivers import Panic

from tandem.bls.errors import BadRequest, Cancelled
from tandem.bls.triton.requests import fail_on_error


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (BadRequest("send some text"), ["send some text"]),
        (Panic("boom"), ["internal error while starting the request; see the server's log"]),
        (Cancelled(), []),
    ],
)
def test_the_client_gets_the_reason_for_a_failed_start(error, lines):
    messages = []
    with fail_on_error(SimpleNamespace(fail=lambda failure: messages.append(str(failure)))):
        raise error
    assert messages == lines
