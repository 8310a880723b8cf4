"""Requests above the limits wait or are rejected."""

from contextlib import ExitStack
from functools import partial

import pytest
from benchmarks.soak.processes import is_at_rest
from crowd import Crowd, answers_of, ask, controls, prompts_of, wrong
from entries import OUTPUTS, rejection, stream, streaming
from live_triton import eventually
from metrics import Change, computed, scrape, settle, total

from tandem.contract.entry import FIRST_SCHEDULED_TIME_NS

PROMPTS = prompts_of(40)
RUNNING, QUEUE = 8, 12  # limits of the shared server
TOKENIZER_CALLS = 4  # maximum number of concurrent calls
TIMED_OUT = "deadline_exceeded: the request exceeded its timeout of 0.2 s"


@pytest.fixture(autouse=True)
def left_as_found(request):
    yield
    if "emulated" in request.fixturenames:
        server = request.getfixturevalue("emulated")
        server.faults.end("target")
        server.faults.end("preprocessing")
        assert eventually(lambda: is_at_rest(server))


def waiting(server):
    return total(server, "tandem_requests_waiting")


def running(server):
    return total(server, "tandem_requests_running")


def test_only_requests_over_the_limit_are_rejected(emulated):
    rejected = 6
    prompts = PROMPTS[: RUNNING + QUEUE + rejected]
    expected = controls(emulated, prompts)
    settle(emulated)  # a sequence leaves its place only after its last response
    with Crowd(emulated, len(prompts)) as crowd:
        with emulated.faults.inject("target", "hold"):
            asked = crowd.ask(prompts)
            assert eventually(lambda: sum(future.done() for future in asked) == rejected)
            assert eventually(lambda: waiting(emulated) == QUEUE and running(emulated) == RUNNING)
        answers = answers_of(asked)
    errors = [answer.error for answer in answers if answer.error]
    assert len(errors) == rejected
    assert all(error.startswith("overloaded: ") and "\n" not in error for error in errors)
    for answer, said in zip(answers, expected, strict=True):
        assert answer.error or answer.said == said


def test_a_waiting_request_ends_at_its_timeout(emulated):
    with Crowd(emulated, RUNNING + 1) as crowd, emulated.faults.inject("target", "hold"):
        held = crowd.ask(PROMPTS[:RUNNING])
        assert eventually(lambda: running(emulated) == RUNNING)
        assert ask(emulated, PROMPTS[-1], timeout=200_000).error == TIMED_OUT
        assert eventually(lambda: waiting(emulated) == 0)
        emulated.faults.end("target")
        assert not any(answer.error for answer in answers_of(held))


def test_a_full_queue_rejects_requests_while_the_tokenizer_hangs(emulated):
    present = RUNNING + QUEUE
    with Crowd(emulated, present) as crowd, emulated.faults.inject("preprocessing", "hold"):
        asked = crowd.ask([f"prompt {n}" for n in range(present)])
        assert eventually(lambda: waiting(emulated) == present)
        line = rejection(emulated, "bls", "one more", max_tokens=4)
        counts = f"0 sequences are running and {present} are waiting"
        assert line.startswith(f"overloaded: the server is full: {counts}")
        emulated.faults.end("preprocessing")
        assert not any(answer.error for answer in answers_of(asked))


def test_requests_waiting_for_the_tokenizer_can_time_out_or_be_cancelled(emulated):
    waits = TOKENIZER_CALLS + 1
    values = {"max_tokens": 4, "end_id": -1}
    with Crowd(emulated, waits) as crowd, emulated.faults.inject("preprocessing", "hold"):
        held = crowd.ask(PROMPTS[:waits])
        assert eventually(lambda: waiting(emulated) == waits)
        assert ask(emulated, "late", timeout=200_000).error == TIMED_OUT
        with streaming(emulated, "a", **values), streaming(emulated, "b", **values):
            assert eventually(lambda: waiting(emulated) == waits + 2)
        assert eventually(lambda: waiting(emulated) == waits)
        emulated.faults.end("preprocessing")
        assert not any(answer.error for answer in answers_of(held))


def test_urgent_requests_start_first(emulated):
    priorities = {"b": 1, "a": 0, "c": 100, "first": -100}
    with Crowd(emulated, RUNNING + 4) as crowd, emulated.faults.inject("target", "hold"):
        held = crowd.ask(PROMPTS[:RUNNING])
        assert eventually(lambda: running(emulated) == RUNNING)
        asked = {}
        for name, priority in priorities.items():
            asked[name] = crowd.run(partial(start_of, emulated, name, 24, priority=priority))
            assert eventually(lambda: waiting(emulated) == len(asked))
        emulated.faults.end("target")
        answers_of(held)
    assert sorted(asked, key=lambda name: asked[name].result()) == ["first", "a", "b", "c"]


def start_of(server, prompt, length, **values):
    """Return the time at which a request starts to decode."""
    outputs = (*OUTPUTS, FIRST_SCHEDULED_TIME_NS)
    asked = {"end_id": -1, "return_perf_metrics": True, "max_tokens": length, **values}
    *_, last = stream(server, prompt, outputs=outputs, **asked)
    return int(last.number(FIRST_SCHEDULED_TIME_NS))


LONG = 400  # tokens of an answer
ROOM_FOR_LONG_ANSWERS = 3  # at their full length


@pytest.fixture(scope="module")
def crowded(fallible):
    """A server whose KV cache holds three long answers, and the beginnings of six."""
    engine = {"max_seq_len": 1024, "kv_cache_tokens": ROOM_FOR_LONG_ANSWERS * (LONG + 200)}
    decoding = {"draft_len": 4, "draft_ahead": False}
    with fallible(engine=engine, step_ms={"target": 10}, decoding=decoding) as server:
        yield server


def test_long_answers_start_together_and_wait_for_kv_blocks_as_they_grow(crowded):
    count = 2 * ROOM_FOR_LONG_ANSWERS
    expected = controls(crowded, PROMPTS[:count], max_tokens=LONG)
    change = Change(crowded)
    with Crowd(crowded, count) as crowd:
        with crowded.faults.inject("target", "hold"):
            asked = crowd.ask(PROMPTS[:count], max_tokens=LONG)
            assert eventually(lambda: running(crowded) == count)
        assert eventually(lambda: waiting(crowded) > 0)
        answers = answers_of(asked)
    assert wrong(answers, expected) == []
    change.until_ended(count)
    assert eventually(lambda: is_at_rest(crowded))


def test_a_sequence_that_waits_for_kv_blocks_can_be_cancelled(crowded):
    count = 2 * ROOM_FOR_LONG_ANSWERS
    with ExitStack() as streams:
        for prompt in PROMPTS[:count]:
            values = {"max_tokens": LONG, "end_id": -1}
            streams.enter_context(streaming(crowded, prompt, **values))
        assert eventually(lambda: waiting(crowded) > 0)
        with crowded.faults.inject("target", "hold"):  # so none of them ends by itself
            streams.close()
            assert eventually(lambda: waiting(crowded) == 0)
    assert eventually(lambda: is_at_rest(crowded))
    assert not ask(crowded, PROMPTS[0]).error


# With 24 new tokens and 4 draft tokens, each prompt of PROMPTS needs 2 blocks of 32 tokens.
SMALL_CACHE = {"engine": {"max_seq_len": 512, "kv_cache_tokens": RUNNING * 2 * 32}}
LONG_QUEUE = 120
ROOM_FOR_EIGHT = {
    "requests": {"admission": {"max_requests": RUNNING, "max_queue": LONG_QUEUE}},
    "KV tokens": {"admission": {"max_queue": LONG_QUEUE}} | SMALL_CACHE,
}


@pytest.fixture(scope="module", params=ROOM_FOR_EIGHT)
def small(request, fallible):
    """A server that runs up to 8 sequences and queues up to 120."""
    decoding = {"draft_len": 4, "draft_ahead": False}
    with fallible(decoding=decoding, **ROOM_FOR_EIGHT[request.param]) as server:
        yield server


@pytest.mark.heavy
def test_queued_requests_get_correct_answers_with_little_recomputation(small):
    prompts = PROMPTS * 5
    rejected = len(prompts) - LONG_QUEUE - RUNNING
    expected = controls(small, PROMPTS) * 5
    change = Change(small)
    before = computed(small)
    with Crowd(small, len(prompts)) as crowd:
        with small.faults.inject("target", "hold"):
            asked = crowd.ask(prompts)
            assert eventually(lambda: sum(future.done() for future in asked) == rejected)
            assert eventually(lambda: waiting(small) == LONG_QUEUE and running(small) == RUNNING)
        answers = answers_of(asked)
    served = [
        (answer, said) for answer, said in zip(answers, expected, strict=True) if not answer.error
    ]
    assert len(served) == LONG_QUEUE + RUNNING
    assert wrong([answer for answer, _ in served], [said for _, said in served]) == []
    change.until_ended(len(served))
    # A request usually finds its KV blocks in its next round. But the cache may have evicted these
    # blocks, because blocks of ended sequences were used more recently.
    recomputed = change.of("tandem_recomputed_tokens_total")
    assert recomputed <= sum(len(answer.ids) for answer, _ in served) / 4
    length = sum(len(prompt) for prompt in prompts)  # an upper bound in bytes
    rounds = sum(answer.rounds + answer.draft_tokens for answer, _ in served)
    assert computed(small) - before <= length + rounds + recomputed


@pytest.mark.heavy
@pytest.mark.parametrize("small", ["KV tokens"], indirect=True)
def test_waiting_requests_start_in_order_of_arrival(small):
    """A long request leaves no room for another one, and short ones don't overtake it."""

    def present():  # one scrape, because a waiting request may start between two scrapes
        gauges = ("tandem_requests_waiting", "tandem_requests_running")
        return sum(value for (name, _), value in scrape(small).items() if name in gauges)

    with Crowd(small, 9) as crowd, small.faults.inject("target", "hold"):
        asked = []
        for number, prompt in enumerate(PROMPTS[:9]):
            length = 450 if number % 3 == 0 else 24
            asked.append(crowd.run(partial(start_of, small, prompt, length)))
            assert eventually(lambda number=number: present() > number)
    times = [future.result() for future in asked]
    first, *others = sorted(range(9), key=times.__getitem__)
    # The short requests between two long requests run at the same time.
    assert [first, *(number // 3 for number in others)] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert (others[2], others[5]) == (3, 6)
