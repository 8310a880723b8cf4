"""Admission decides which sequences start, wait, are rejected, or reserve draft blocks."""

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import SETTINGS, ids, with_engines

from tandem.bls.admission import Admission, Reservation, blocks_for
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
    assert queue.admission.load() == 0
    queue.admission.arrive(1)
    assert queue.admission.load() == 1
    queue.add("a")
    assert queue.admission.load() == 2
    queue.add("b")
    queue.add("c")
    assert queue.admission.load() == 2


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
    assert blocks_for(replace(REQUEST, drafter=drafter), BLOCKS) == blocks


def test_draft_blocks_are_limited_by_the_max_seq_len_of_the_draft():
    settings = with_engines(BLOCKS, draft={"max_seq_len": 8})
    request = replace(REQUEST, drafter="draft_model")
    assert blocks_for(request, settings) == (4, 1)


@pytest.mark.parametrize(
    ("num_output_tokens", "output"),
    [(0, 256), (223, 256), (224, 512), (479, 512), (480, 768), (760, 1000), (999, 1000)],
)
def test_a_long_output_reserves_its_blocks_as_it_grows(num_output_tokens, output):
    """A round with the target alone emits up to 32 tokens."""
    request = replace(REQUEST, max_tokens=1000, drafter="none")
    settings = with_engines(BLOCKS, target={"kv_block_tokens": 1})
    assert blocks_for(request, settings, num_output_tokens) == (5 + output, 0)


def test_an_engine_that_drafts_by_itself_may_decode_a_whole_answer_in_one_call():
    request = replace(REQUEST, max_tokens=1000, drafter="engine")
    assert blocks_for(request, with_engines(BLOCKS, target={"kv_block_tokens": 1})) == (1005, 0)


def test_a_growing_sequence_goes_on_if_blocks_are_free():
    queue = Waiting(kv_blocks=8)
    first = queue.add("a", 4)
    assert queue.admission.extend(first, 4, 0)
    assert queue.admission.extend(first, 8, 0)
    assert queue.admission.kv_reserved == 1
    assert queue.present == (1, 0)


def test_a_growing_sequence_waits_without_blocks_if_none_are_free():
    queue = Waiting(max_running=9, kv_blocks=8)
    first, second, _ = queue.add("a", 4), queue.add("b", 4), queue.add("c", 3)
    assert not queue.admission.extend(first, 6, 0)
    assert queue.present == (1, 2)
    assert queue.admission.kv_reserved == 0.5
    assert queue.started == ["a", "b"]  # c fits, but came later
    queue.admission.release(second)
    assert queue.started == ["a", "b", "a"]
    assert queue.admission.kv_reserved == 6 / 8


def test_a_growing_sequence_makes_way_for_an_older_one():
    queue = Waiting(max_running=9, kv_blocks=8)
    old, young = queue.add("old", 4), queue.add("young", 3)
    assert not queue.admission.extend(old, 6, 0)
    assert queue.admission.extend(young, 3, 0)
    assert not queue.admission.extend(young, 4, 0)  # fits, but the older sequence needs more
    assert queue.started == ["old", "young", "old"]
    assert queue.present == (1, 1)


def test_a_growing_sequence_keeps_its_place_from_urgent_ones_that_wait_only_for_a_place():
    queue = Waiting(max_running=1, kv_blocks=8)
    running = queue.add("running", 2)
    queue.add("urgent", 2, priority=-100)
    assert queue.admission.extend(running, 4, 0)
    assert queue.started == ["running"]


def test_a_growing_sequence_may_take_the_whole_cache_but_no_more():
    queue = Waiting(kv_blocks=8)
    first = queue.add("a", 4)
    assert queue.admission.extend(first, 100, 0)
    assert queue.admission.extend(first, 200, 0)
    queue.admission.release(first)
    assert queue.admission.kv_reserved == 0


def test_a_growing_sequence_loses_its_draft_blocks_if_too_few_are_free():
    queue = Waiting(max_running=9, draft_kv_blocks=4)
    first, second = queue.add("a", 1, 2), queue.add("b", 1, 2)
    assert queue.admission.extend(first, 2, 3)
    assert [first.has_draft_blocks, second.has_draft_blocks] == [False, True]
    queue.admission.release(second)
    assert first.has_draft_blocks


def test_a_growing_sequence_that_waits_can_be_withdrawn():
    queue = Waiting(max_running=9, kv_blocks=8)
    first, second = queue.add("a", 4), queue.add("b", 4)
    assert not queue.admission.extend(first, 5, 0)
    assert queue.admission.remove_waiting(first)
    queue.admission.release(first)  # as at the end of every sequence
    queue.admission.release(second)
    assert queue.present == (0, 0)
    assert queue.admission.kv_reserved == 0


@given(
    sizes=st.lists(st.tuples(st.integers(1, 10), st.integers(0, 10)), min_size=1, max_size=12),
    max_running=st.integers(1, 5),
    data=st.data(),
)
def test_growing_sequences_all_end_and_never_need_more_blocks_than_there_are(
    sizes, max_running, data
):
    total = 12
    queue = Waiting(max_running=max_running, max_waiting=99, kv_blocks=total)
    sequences = [queue.add(i, first) for i, (first, _) in enumerate(sizes)]
    grows = {sequence: more for sequence, (_, more) in zip(sequences, sizes, strict=True)}
    for _ in range(1000):
        running = list(queue.admission._running)
        assert sum(sequence.blocks for sequence in running) <= total
        assert len(running) <= max_running
        if not running:
            break
        sequence = data.draw(st.sampled_from(running))
        if not grows[sequence]:
            queue.admission.release(sequence)
        elif queue.admission.extend(sequence, min(total, sequence.blocks + 1), 0):
            grows[sequence] -= 1
    assert queue.present == (0, 0)
