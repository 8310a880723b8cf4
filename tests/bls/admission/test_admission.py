"""Admission decides which sequences start, wait, are rejected, or reserve draft blocks."""

import time
from dataclasses import replace

import pytest
from scripted import SETTINGS, ids, with_engines

from tandem.bls.admission import (
    Admission,
    Reservation,
)
from tandem.bls.errors import BadRequest, Overloaded
from tandem.bls.request import Request


class Waiting:
    """Record the names of reservations in the order in which they start."""

    def __init__(self, *, max_running=2, max_waiting=2, kv_blocks=8, draft_kv_blocks=0):
        self.started = []
        self.admission = Admission(
            max_running=max_running,
            max_waiting=max_waiting,
            kv_blocks=kv_blocks,
            draft_kv_blocks=draft_kv_blocks,
        )

    def reservation(self, name, blocks=1, draft_blocks=0, priority=0):
        return Reservation(blocks, draft_blocks, lambda: self.started.append(name), priority)

    def enter(self, *reservations):
        self.admission.arrive(len(reservations)).enter(reservations)
        return reservations[0]

    def add(self, name, blocks=1, draft_blocks=0, priority=0):
        return self.enter(self.reservation(name, blocks, draft_blocks, priority))

    @property
    def present(self):
        return self.admission.running, self.admission.waiting


def test_at_most_max_requests_sequences_run_and_others_wait_in_order():
    queue = Waiting()
    first, *_ = [queue.add(name) for name in "abcd"]
    assert queue.started == ["a", "b"]
    assert queue.present == (2, 2)
    queue.admission.release(first)
    assert queue.started == ["a", "b", "c"]
    assert queue.present == (2, 1)


def test_the_load_includes_sequences_that_will_start_soon_but_none_that_must_wait():
    queue = Waiting(max_running=2, max_waiting=9)
    assert queue.admission.load == 0
    queue.admission.arrive(1)
    assert queue.admission.load == 1
    queue.add("a")
    assert queue.admission.load == 2
    queue.add("b")
    queue.add("c")
    assert queue.admission.load == 2


def test_a_request_may_have_as_many_prompts_as_an_idle_server_holds():
    queue = Waiting(max_running=2, max_waiting=2)
    queue.enter(*map(queue.reservation, "abcd"))
    assert queue.present == (2, 2)


def test_a_sequence_starts_only_when_its_blocks_are_free():
    queue = Waiting(max_running=9, kv_blocks=8)
    five = queue.add("five", 5)
    queue.add("four", 4)
    assert queue.started == ["five"]
    assert queue.admission.kv_reserved == 5 / 8
    queue.admission.release(five)
    assert queue.started == ["five", "four"]
    assert queue.admission.kv_reserved == 4 / 8


def test_short_prompts_do_not_overtake_a_long_one():
    queue = Waiting(max_running=9, kv_blocks=8)
    queue.add("five", 5)
    queue.add("four", 4)
    queue.add("one", 1)
    assert queue.started == ["five"]


def test_urgent_sequences_start_first_and_equal_ones_in_order():
    queue = Waiting(max_running=1, max_waiting=9)
    running = queue.add("running")
    for name, priority in (("b1", 1), ("a1", 0), ("b2", 1), ("first", -100), ("a2", 0)):
        queue.add(name, priority=priority)
    for _ in range(6):
        queue.admission.release(running)
        running = next(iter(queue.admission._running), None)
    assert queue.started == ["running", "first", "a1", "a2", "b1", "b2"]


def test_the_least_urgent_sequence_starts_before_urgent_ones_that_arrive_much_later(monkeypatch):
    queue = Waiting(max_running=1, max_waiting=2)
    running = queue.add("running")
    queue.add("patient", priority=100)
    later = time.monotonic_ns() + 2_001 * 10**9
    monkeypatch.setattr(time, "monotonic_ns", lambda: later)
    queue.add("urgent", priority=-100)
    queue.admission.release(running)
    assert queue.started == ["running", "patient"]


def test_a_sequence_larger_than_the_cache_decodes_alone():
    queue = Waiting(max_running=9, kv_blocks=8)
    huge = queue.add("huge", 100)
    queue.add("one", 1)
    assert queue.started == ["huge"]
    assert queue.admission.kv_reserved == 1
    queue.admission.release(huge)
    assert queue.started == ["huge", "one"]
    assert queue.admission.kv_reserved == 1 / 8


def test_reserved_kv_blocks_are_zero_without_a_cache():
    assert Waiting(kv_blocks=0).admission.kv_reserved == 0


def test_a_full_queue_rejects_a_request_before_tokenization():
    queue = Waiting()
    for name in "abcd":
        queue.add(name)
    with pytest.raises(
        Overloaded,
        match=r"^the server is full: 2 sequences are running and 2 are waiting; "
        r"try again later$",
    ):
        queue.admission.arrive(1)
    assert queue.present == (2, 2)


def test_arrivals_count_toward_the_queue_limit_before_tokenization():
    queue = Waiting()
    arrivals = [queue.admission.arrive(1) for _ in range(4)]
    assert queue.present == (0, 4)
    with pytest.raises(Overloaded):
        queue.admission.arrive(1)
    arrivals[2].leave()
    arrivals[2].leave()
    assert queue.present == (0, 3)
    queue.admission.arrive(1)
    with pytest.raises(Overloaded):
        queue.admission.arrive(1)


def test_a_new_request_waits_if_another_request_is_waiting():
    queue = Waiting(max_running=9, kv_blocks=8)
    queue.add("eight", 8)
    queue.add("waits", 8)
    queue.admission.arrive(1)
    with pytest.raises(Overloaded):
        queue.admission.arrive(1)


def test_a_batch_is_rejected_if_the_queue_cannot_hold_all_of_it():
    queue = Waiting(max_running=9, kv_blocks=8)
    queue.add("eight", 8)
    many = queue.admission.arrive(3)
    with pytest.raises(
        Overloaded, match=r"^the server is full: 1 sequences are running and 0 are waiting"
    ):
        many.enter([queue.reservation(name) for name in "abc"])
    assert queue.started == ["eight"]
    assert queue.present == (1, 0)


def test_part_of_a_batch_can_start_while_the_rest_waits():
    queue = Waiting(max_running=9, kv_blocks=8)
    queue.enter(
        *(
            queue.reservation(name, blocks)
            for name, blocks in zip("abcd", (4, 4, 8, 8), strict=True)
        )
    )
    assert queue.started == ["a", "b"]
    assert queue.present == (2, 2)


def test_arrivals_enter_or_leave_only_once():
    queue = Waiting()
    arrivals = queue.admission.arrive(1)
    arrivals.enter([queue.reservation("a")])
    arrivals.leave()
    assert queue.present == (1, 0)
    left = queue.admission.arrive(1)
    left.leave()
    left.enter([queue.reservation("b")])
    assert queue.started == ["a"]
    assert queue.present == (1, 0)


def test_a_batch_larger_than_the_capacity_is_a_bad_request():
    queue = Waiting()
    with pytest.raises(
        BadRequest,
        match=r"^the request has 5 prompts; the limit is 4; send "
        r"fewer per request$",
    ):
        queue.admission.arrive(5)
    assert queue.present == (0, 0)


def test_a_batch_whose_contexts_never_fit_the_queue_is_rejected():
    queue = Waiting(max_running=9, kv_blocks=8)
    arrivals = queue.admission.arrive(4)
    with pytest.raises(BadRequest, match="has 4 prompts; the limit is 3"):
        arrivals.enter([queue.reservation(name, 8) for name in "abcd"])
    assert queue.present == (0, 0)


def test_only_a_waiting_sequence_can_be_withdrawn():
    queue = Waiting(max_running=1)
    first, second = queue.add("a"), queue.add("b")
    assert not queue.admission.remove_waiting(first)
    assert queue.admission.remove_waiting(second)
    assert not queue.admission.remove_waiting(second)
    assert queue.present == (1, 0)


def test_the_next_sequence_moves_up_when_one_is_withdrawn():
    queue = Waiting(max_running=9, kv_blocks=8)
    queue.add("five", 5)
    four = queue.add("four", 4)
    queue.add("three", 3)
    queue.admission.remove_waiting(four)
    assert queue.started == ["five", "three"]


def test_sequences_do_not_wait_for_the_draft_cache():
    queue = Waiting(max_running=3, draft_kv_blocks=4)
    reservations = [queue.add(name, 1, 3) for name in "ab"]
    assert queue.started == ["a", "b"]
    assert [reservation.has_draft_blocks for reservation in reservations] == [True, False]


def test_free_draft_blocks_go_to_running_sequences_in_order():
    queue = Waiting(max_running=4, draft_kv_blocks=4)
    first, second, third, fourth = [queue.add(name, 1, 2) for name in "abcd"]
    assert [t.has_draft_blocks for t in (first, second, third, fourth)] == [
        True,
        True,
        False,
        False,
    ]
    queue.admission.release(first)
    assert [t.has_draft_blocks for t in (second, third, fourth)] == [True, True, False]
    queue.admission.release(third)
    queue.admission.release(second)
    assert fourth.has_draft_blocks
    assert queue.add("e", 1, 2).has_draft_blocks
    assert not queue.add("f", 1, 1).has_draft_blocks


def test_a_sequence_larger_than_the_draft_cache_runs_without_drafts():
    queue = Waiting(draft_kv_blocks=2)
    assert not queue.add("long", 1, 3).has_draft_blocks
    assert queue.add("short", 1, 2).has_draft_blocks


REQUEST = Request(prompt_ids=ids(*range(5)), max_tokens=7, draft_len=3, prompt_lookup_num_tokens=2)
BLOCKS = with_engines(
    SETTINGS, target={"kv_block_tokens": 4}, draft={"kv_block_tokens": 8, "max_seq_len": 100}
)


@pytest.mark.parametrize(
    ("drafter", "blocks"),
    [
        ("none", (3, 0)),  # 5 prompt tokens + 7 output tokens
        ("prompt_lookup", (4, 0)),  # + 2 copied tokens
        ("draft_model", (4, 2)),  # + 3 draft tokens
        ("hybrid", (4, 2)),
    ],
)
def test_kv_blocks_are_reserved_per_engine(drafter, blocks):
    reservation = Reservation.for_request(replace(REQUEST, drafter=drafter), BLOCKS)
    assert (reservation.blocks, reservation.draft_blocks) == blocks


def test_draft_blocks_are_limited_by_the_max_seq_len_of_the_draft():
    settings = with_engines(BLOCKS, draft={"max_seq_len": 8})
    request = replace(REQUEST, drafter="draft_model")
    assert Reservation.for_request(request, settings).draft_blocks == 1
