"""More requests than there is room for: who waits, who is refused, and what it costs."""

from functools import partial

import pytest
from crowd import Crowd, answers_of, controls, metric, prompts_of, wrong
from entries import OUTPUTS, stream
from live_triton import eventually
from metrics import Change, computed, scrape
from scale import first_of

from tandem.contract.entry import FIRST_SCHEDULED_TIME_NS

PROMPTS = prompts_of(40)
MANY = PROMPTS * 5
QUEUE = 120
REFUSED = len(MANY) - QUEUE - 8
# With 24 new tokens and 4 draft tokens a prompt of PROMPTS may come to need 2 blocks of 32.
SMALL_CACHE = {"max_seq_len": 512, "kv_cache_tokens": 8 * 2 * 32}
ROOM_FOR_EIGHT = {
    "requests": {"admission": {"max_requests": 8, "max_queue": QUEUE}},
    "KV tokens": {
        "admission": {"max_queue": QUEUE},
        "engines": {"target": SMALL_CACHE, "draft": SMALL_CACHE},
    },
}
ROOM_FOR_EIGHT |= {
    f"{name} of two loops": sections | {"instances": 2} for name, sections in ROOM_FOR_EIGHT.items()
}


@pytest.fixture(
    scope="module", params=first_of("KV tokens", *sorted(ROOM_FOR_EIGHT.keys() - {"KV tokens"}))
)
def small(request, fallible):
    """A server with room for 8 sequences, and for 120 that wait."""
    with fallible(**ROOM_FOR_EIGHT[request.param]) as running:
        yield running


def waiting(server):
    return metric(server, "tandem_requests_waiting")


def running(server):
    return metric(server, "tandem_requests_running")


def present(server):
    """One look at both: between two, who waits may start."""
    gauges = ("tandem_requests_waiting", "tandem_requests_running")
    return sum(value for (name, _), value in scrape(server).items() if name in gauges)


def begun(server, prompt, **values):
    """When a request was given room, by the loop's clock."""
    outputs = (*OUTPUTS, FIRST_SCHEDULED_TIME_NS)
    *_, last = stream(
        server, prompt, end_id=-1, return_perf_metrics=True, outputs=outputs, **values
    )
    return int(last.number(FIRST_SCHEDULED_TIME_NS))


def test_those_over_the_limit_are_refused_at_once_and_the_rest_answered(small):
    expected = controls(small, PROMPTS) * 5
    change = Change(small)
    before = computed(small)
    with Crowd(small, len(MANY)) as crowd:
        with small.faults.of("target", "hold"):  # nobody gets on before all have come
            asked = crowd.ask(MANY)
            assert eventually(lambda: sum(future.done() for future in asked) == REFUSED)
            assert eventually(lambda: waiting(small) == QUEUE and running(small) == 8)
        answers = answers_of(asked)
    errors = [answer.error for answer in answers if answer.error]
    assert len(errors) == REFUSED
    assert all(error.startswith("overloaded: ") and "\n" not in error for error in errors)
    served = [
        (answer, said) for answer, said in zip(answers, expected, strict=True) if not answer.error
    ]
    assert wrong([answer for answer, _ in served], [said for _, said in served]) == []
    change.until_ended(len(served))

    # What had been computed was there again when a request had its next turn. Now and then it is
    # not: the blocks of who has just ended are younger than those of who waits for a thread. One
    # sequence too many has more computed again than all of them say.
    recomputed = change.of("tandem_recomputed_tokens_total")
    assert recomputed <= sum(len(answer.ids) for answer, _ in served) / 4
    prompts = sum(len(prompt) for prompt in MANY)  # bytes: no token is shorter
    rounds = sum(answer.rounds + answer.draft_tokens for answer, _ in served)
    assert computed(small) - before <= prompts + rounds


@pytest.mark.parametrize("small", ["KV tokens"], indirect=True)  # a long answer takes them all
def test_those_who_wait_start_in_the_order_of_their_coming(small):
    with Crowd(small, 9) as crowd, small.faults.of("target", "hold"):
        asked = []
        for number, prompt in enumerate(PROMPTS[:9]):
            length = 450 if number % 3 == 0 else 24
            asked.append(crowd.run(partial(begun, small, prompt, max_tokens=length)))
            assert eventually(lambda number=number: present(small) > number)
    times = [future.result() for future in asked]
    first, *others = sorted(range(9), key=times.__getitem__)
    # The short ones between two long ones run side by side.
    assert [first, *(number // 3 for number in others)] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert (others[2], others[5]) == (3, 6)


def test_a_request_that_waits_ends_at_its_time_out(small):
    with Crowd(small, 9) as crowd, small.faults.of("target", "hold"):
        held = crowd.ask(PROMPTS[:8], max_tokens=24)
        assert eventually(lambda: running(small) == 8)
        [late] = answers_of(crowd.ask(PROMPTS[8:9], timeout=200_000))
        line = "the request took longer than 0.2 s, which is its time-out"
        assert late.error == f"deadline_exceeded: {line}"
        assert eventually(lambda: waiting(small) == 0)
        small.faults.end("target")
        assert not any(answer.error for answer in answers_of(held))


@pytest.mark.heavy
def test_a_small_draft_cache_keeps_nobody_waiting(fallible):
    room_for_two = {"draft": {"max_seq_len": 512, "kv_cache_tokens": 512}}  # of 4 x 8 x 32 tokens
    with fallible(engines=room_for_two) as server:
        expected = controls(server, PROMPTS[:4], max_tokens=200)
        with Crowd(server, 4) as crowd, server.faults.of("target", "hold"):
            asked = crowd.ask(PROMPTS[:4], max_tokens=200)
            assert eventually(lambda: running(server) == 4)
            server.faults.end("target")
            answers = answers_of(asked)
        assert wrong(answers, expected) == []
        assert any(answer.draft_tokens for answer in answers)
