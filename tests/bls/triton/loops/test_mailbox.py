"""Mailboxes exchange lines within one process. See test_shared_capacity for several processes."""

import queue
import uuid

import pytest

from tandem.bls.triton.loops import mailbox
from tandem.bls.triton.loops.mailbox import AddressTaken, Mailbox

PATIENCE = 30


class Neighbour:
    """A mailbox that records the lines that it receives."""

    def __init__(self):
        self.address = f"\0tandem-test-{uuid.uuid4().hex}".encode()
        self.mailbox = Mailbox(self.address)
        self._lines = queue.SimpleQueue()

    def open(self, *others):
        self.mailbox.open(self._take, lambda: [other.address for other in others])

    def _take(self, lines):
        for line in lines:
            self._lines.put(line)
            if line == "wrong":
                raise ValueError(line)

    def lines(self, count):
        return [self._lines.get(timeout=PATIENCE) for _ in range(count)]


@pytest.fixture
def pair(monkeypatch):
    monkeypatch.setattr(mailbox, "SEND_TIMEOUT", PATIENCE)  # the receiver may be slow
    sender, receiver = Neighbour(), Neighbour()
    sender.open(receiver)
    receiver.open(sender)
    yield sender, receiver
    sender.mailbox.close()
    receiver.mailbox.close()


def test_lines_that_do_not_fit_into_one_message_all_arrive(pair):
    sender, receiver = pair
    lines = [f"{number:0200}" for number in range(1000)]
    for line in lines:
        sender.mailbox.put(line)
    assert receiver.lines(1000) == lines


def test_a_message_that_raises_does_not_block_the_next(pair, pb):
    sender, receiver = pair
    sender.mailbox.put("wrong")
    assert receiver.lines(1) == ["wrong"]
    sender.mailbox.put("right")
    assert receiver.lines(1) == ["right"]
    assert any("failed to handle a message of another loop" in line for line in pb.Logger.lines)


@pytest.mark.parametrize("message", [b"", b"\xff"])
def test_invalid_messages_are_ignored(pair, message):
    sender, receiver = pair
    sender.mailbox._sending.sendto(message, receiver.address)
    sender.mailbox.put("a")
    assert receiver.lines(1) == ["a"]


def test_a_mailbox_address_in_use_cannot_be_opened_again():
    first = Neighbour()
    first.open()
    with pytest.raises(AddressTaken):
        Mailbox(first.address)
    first.mailbox.close()
