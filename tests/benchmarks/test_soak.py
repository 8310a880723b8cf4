"""The soak test detects leaks and wrong answers, and attributes errors to faults."""

import pytest
from benchmarks.soak.asking import SoakOutcome
from benchmarks.soak.clients import _right
from benchmarks.soak.faults import SECONDS_FELT, FaultInjector, PastFault
from benchmarks.soak.growth import FEW, MEMORY_MB, measure_growth, threads_at_rest
from benchmarks.soak.processes import Sample, _sum_by_model
from benchmarks.soak.questions import Question

QUESTION = Question(("a", "b"), {}, ("right", "too"))


def sample(moment=0, *, memory=100.0, threads=10, descriptors=5, lost=0, model="loop"):
    return Sample(
        float(moment),
        {model: memory},
        {model: threads},
        {model: descriptors},
        7.0,
        None,
        {"target": lost} if lost else {},
    )


def samples(memory=lambda n: 100.0, descriptors=lambda n: 5):
    return [sample(n, memory=memory(n), descriptors=descriptors(n)) for n in range(120)]


def grown(measured):
    return [one.name for one in measure_growth(measured) if not one.flat]


def left_behind(before, after):
    return [one.name for one in threads_at_rest(before, after) if not one.flat]


def test_constant_use_is_not_a_leak():
    assert grown(samples()) == []


def test_growth_during_warm_up_is_ignored():
    assert grown(samples(memory=lambda n: 100.0 + 10 * min(n, 30))) == []


def test_a_single_high_sample_is_not_a_leak():
    assert grown(samples(descriptors=lambda n: 500 if n == 110 else 10)) == []


def test_a_slow_leak_is_detected():
    a_sample = 2 * MEMORY_MB / 60
    assert grown(samples(memory=lambda n: 100.0 + a_sample * n)) == ["loop: memory, MB"]


def test_file_descriptors_that_stay_open_are_a_leak():
    assert grown(samples(descriptors=lambda n: 5 + n * 3 * FEW // 120)) == ["loop: descriptors"]


@pytest.mark.parametrize(
    ("model", "lost_before", "lost", "kept"),
    [("bls_stream", 0, 0, 0), ("bls_stream", 0, 3, 3), ("bls_stream", 2, 3, 1), ("draft", 0, 3, 0)],
)
def test_more_than_one_extra_thread_per_lost_call_is_a_leak(model, lost_before, lost, kept):
    before = sample(threads=10, lost=lost_before, model=model)
    allowed = sample(threads=10 + FEW + kept, lost=lost, model=model)
    assert left_behind(before, allowed) == []
    more = sample(threads=10 + FEW + kept + 1, lost=lost, model=model)
    assert left_behind(before, more) == [f"{model}: threads at rest"]


def test_threads_of_running_requests_are_not_a_leak():
    crowded = [sample(n, threads=10 + n) for n in range(120)]
    assert grown([*crowded, sample(120, threads=10)]) == []


def test_figures_are_summed_over_all_processes_of_a_model():
    names = {1: "triton", 2: "bls_stream", 3: "bls_stream"}
    assert _sum_by_model(names, lambda pid: 10 * pid) == {"triton": 10, "bls_stream": 50}


@pytest.mark.parametrize(
    ("outcome", "right"),
    [
        (SoakOutcome(("right", "too")), True),
        (SoakOutcome(("right", "to")), False),
        (SoakOutcome(("right",)), False),
        (SoakOutcome(("rig", ""), left=True), True),
        (SoakOutcome(("", "t0"), left=True), False),
        (SoakOutcome((), left=True), True),
    ],
)
def test_a_cancelled_response_must_be_a_prefix_of_the_baseline(outcome, right):
    assert _right(QUESTION, outcome) is right


def test_a_fault_explains_only_errors_of_its_model_while_it_lasts(tmp_path):
    injector = FaultInjector(tmp_path)
    injector._past += [PastFault("target", 10.0, 12.0), PastFault("draft", 50.0, 52.0)]
    line = "model_timeout: model 'target' failed: no response within 5 s"
    assert injector.explains(line, 11.0, 17.0)
    assert injector.explains(line, 12.0 + SECONDS_FELT, 60.0)
    assert not injector.explains(line, 1.0, 9.0)
    assert not injector.explains(line, 12.5 + SECONDS_FELT, 60.0)
    assert not injector.explains("model 'preprocessing' failed: x", 11.0, 17.0)
    assert not injector.explains("model 'draft' failed: x", 50.0, 51.0)  # only drafts fail
