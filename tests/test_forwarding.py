"""Which ids are those of requests that a program of ours forwards."""

import pytest

from tandem.contract.forwarding import fresh_forwarded, is_forwarded


def test_ids_of_forwarded_requests_are_known_and_differ():
    one, other = fresh_forwarded(), fresh_forwarded()
    assert one != other
    assert is_forwarded(one)
    assert is_forwarded(other)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda request_id: "",
        lambda request_id: "look",
        lambda request_id: f"{request_id}\n",
        lambda request_id: f"{request_id}\n{request_id}",
        lambda request_id: f"a{request_id}",
        lambda request_id: request_id.upper(),
        lambda request_id: request_id[:-1],
        lambda request_id: request_id + "é" * 40_000,
    ],
)
def test_what_a_client_calls_its_own_request_is_none_of_them(wrong):
    assert not is_forwarded(wrong(fresh_forwarded()))
