"""Request ids mark forwarded requests, and only requests with unguessable ids can be stopped."""

import uuid

import pytest

from tandem.contract.entry import can_be_stopped, is_forwarded, new_forwarded_id


def test_ids_of_forwarded_requests_are_recognized_and_unique():
    one, other = new_forwarded_id(), new_forwarded_id()
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
def test_ids_of_other_clients_are_not_recognized_as_forwarded(wrong):
    assert not is_forwarded(wrong(new_forwarded_id()))
    assert not can_be_stopped(wrong(new_forwarded_id()))


@pytest.mark.parametrize("form", [str, str.upper, lambda text: text.replace("-", "")])
def test_a_request_whose_id_is_a_random_uuid_can_be_stopped(form):
    request_id = form(str(uuid.uuid4()))
    assert can_be_stopped(request_id)
    assert not is_forwarded(request_id)
    assert not can_be_stopped(request_id[:-1])
    assert not can_be_stopped(request_id + "\n")
    assert not can_be_stopped("x" + request_id[1:])


@pytest.mark.parametrize(
    "guessable", [uuid.uuid1(), uuid.uuid5(uuid.NAMESPACE_DNS, "a.example"), uuid.UUID(int=0)]
)
def test_a_request_whose_id_can_be_guessed_cannot_be_stopped(guessable):
    assert not can_be_stopped(str(guessable))


def test_forwarded_requests_can_be_stopped():
    assert can_be_stopped(new_forwarded_id())
