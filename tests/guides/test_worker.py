"""A malicious guide is rejected and crashes only the process that checks it."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import tokenizer_kinds
from hostile_guides import CRASHING, ENDLESS, large
from live_triton import alive, eventually
from small_guides import END, is_cached, matcher

from tandem.contract.guide import Guide
from tandem.guides import compiler as compiler_module
from tandem.guides.compiler import GuideCompiler
from tandem.guides.errors import GuideError, GuideUndecided
from tandem.guides.worker import Worker

SMALL = Guide("regex", "[a-z]+")
HEAVY = Guide(*ENDLESS["all patterns"])


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer_kinds.write(tokenizer_kinds.byte_level(), folder)
    return folder


@pytest.fixture(scope="module")
def worker(tokenizer_dir):
    made = Worker(4, tokenizer_dir, tokenizer_kinds.byte_level().get_vocab_size(), [END])
    yield made
    made.close()


@pytest.fixture
def fresh(tokenizer_dir):
    size = tokenizer_kinds.byte_level().get_vocab_size()
    made = GuideCompiler(tokenizer_dir, size, [END])
    yield made
    made.close()


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def paused_copy(worker_pid):
    """Return the process id of a worker's copy, which is paused once its limits are set."""
    assert eventually(lambda: children(worker_pid))
    [copy] = children(worker_pid)
    limits, ours = (Path(f"/proc/{pid}/limits") for pid in (copy, worker_pid))
    assert eventually(lambda: limits.read_text() != ours.read_text())
    os.kill(copy, signal.SIGSTOP)
    return copy


@contextmanager
def compiling(worker, monkeypatch):
    """Compile a heavy guide until the context ends. The copy is paused.

    Yields the process ids of the worker and of its copy, and the error that the guide gets.
    """
    failed = []

    def compile_heavy():
        try:
            worker.try_out(HEAVY)
        except GuideError as error:
            failed.append(type(error))

    monkeypatch.setattr(worker, "cpu_seconds", 60)
    worker.try_out(SMALL)
    pid = worker._process.pid
    thread = threading.Thread(target=compile_heavy)
    thread.start()
    copy = paused_copy(pid)
    yield pid, copy, failed
    if alive(copy):
        os.kill(copy, signal.SIGKILL)
    thread.join()


@pytest.mark.parametrize("name", CRASHING)
def test_a_guide_that_crashes_its_process_is_rejected(name):
    with pytest.raises(GuideError, match="too deep or too large to compile"):
        matcher(*CRASHING[name])
    assert matcher("regex", name).peek_forced(1)


@pytest.mark.parametrize("name", ENDLESS)
def test_a_guide_that_takes_too_long_to_compile_is_rejected_permanently(name, fresh, monkeypatch):
    fresh._workers[1].cpu_seconds = 0.5
    monkeypatch.setattr(compiler_module, "ATTEMPT_SECONDS", (0.1, 0.5))
    guide = Guide(*ENDLESS[name])
    with pytest.raises(GuideError, match=r"longer than 0\.5 s to compile") as rejected:
        fresh.matcher(guide, [END])
    assert rejected.type is GuideError
    assert is_cached(fresh, guide)


@pytest.mark.heavy
def test_a_guide_that_takes_all_memory_is_rejected(worker, monkeypatch):
    monkeypatch.setattr(worker, "cpu_seconds", 300)
    with pytest.raises(GuideError, match="too deep or too large to compile"):
        worker.try_out(Guide(*ENDLESS["intersections"]))
    assert worker.try_out(SMALL)


@pytest.mark.parametrize(
    ("text", "why"),
    [("{2,1}", "nothing"), ('{"multipleOf": -1}', "greater than 0"), ('{"not": {}}', "Unimpl")],
)
def test_an_invalid_guide_is_rejected_with_the_reason(worker, text, why):
    guide = Guide("json_schema", text) if text[1] == '"' else Guide("regex", f"a{text}\\")
    with pytest.raises(GuideError, match=why):
        worker.try_out(guide)


def test_a_guide_with_half_a_surrogate_pair_is_rejected(worker):
    with pytest.raises(GuideError, match="surrogates not allowed"):
        worker.try_out(Guide("regex", "a\ud800"))


def test_a_small_guide_does_not_wait_for_a_slow_one(fresh):
    def compile_heavy():
        with pytest.raises(GuideError):
            fresh.matcher(HEAVY, [END])

    slow = fresh._workers[1]
    slow.cpu_seconds = 60
    heavy = threading.Thread(target=compile_heavy)
    heavy.start()
    assert eventually(lambda: slow._process)
    paused_copy(slow._process.pid)
    assert fresh.matcher(SMALL, [END]).walk([])
    assert heavy.is_alive()
    fresh.close()  # ends the slow compilation
    heavy.join()


def test_a_guide_for_an_ended_request_is_not_compiled(fresh):
    def gone():
        raise InterruptedError

    with pytest.raises(InterruptedError):
        fresh.matcher(SMALL, [END], gone)
    assert not is_cached(fresh, SMALL)


def test_a_large_guide_is_compiled_in_a_second_attempt(fresh):
    fresh._workers[0].cpu_seconds = 0.01
    assert fresh.matcher(Guide(*large(1)), [END]).peek_forced(1)


def test_guides_are_compiled_after_a_worker_was_killed(worker):
    for _ in range(2):
        assert worker.try_out(SMALL).grammar
        pid = worker._process.pid
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda pid=pid: not alive(pid))


@pytest.mark.parametrize("which", ["worker", "copy"])
def test_a_guide_whose_process_was_killed_can_be_retried(worker, which, monkeypatch):
    with compiling(worker, monkeypatch) as (pid, copy, failed):
        os.kill(copy if which == "copy" else pid, signal.SIGKILL)
        assert eventually(lambda: not alive(copy))
    assert failed == [GuideUndecided]
    assert worker.try_out(SMALL)


def test_a_worker_is_isolated_and_has_a_low_priority(worker, monkeypatch):
    shared = os.memfd_create("triton_shm")
    os.set_inheritable(shared, True)
    with compiling(worker, monkeypatch) as (*pids, _):
        for pid in pids:
            assert os.getpriority(os.PRIO_PROCESS, pid) >= 10
            opened = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
            assert not [name for name in opened if "triton_shm" in name]
            maps = Path(f"/proc/{pid}/maps").read_text()
            assert "triton_shm" not in maps
            assert "numpy" not in maps
            assert "torch" not in maps
    os.close(shared)


LOOP = """
import json, signal, sys
from pathlib import Path
from tandem.guides.compiler import GuideCompiler
from tandem.guides.errors import GuideError
from tandem.contract.guide import Guide

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
compiler = GuideCompiler(Path(sys.argv[1]), int(sys.argv[2]), [2])
compiler._workers[0].cpu_seconds = 60  # so that no guide moves to the other worker
for guide in json.loads(sys.stdin.readline()):
    try:
        compiler.matcher(Guide(*guide), [2])
    except GuideError as error:
        print("rejected:", error, flush=True)
    else:
        print("compiled", flush=True)
"""


def loop(tokenizer_dir, *guides):
    """Start a process that ignores SIGCHLD and compiles guides in workers."""
    size = str(tokenizer_kinds.byte_level().get_vocab_size())
    command = [sys.executable, "-c", LOOP, tokenizer_dir, size]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    process.stdin.write(f"{json.dumps(guides)}\n")
    process.stdin.flush()
    return process


def test_workers_compile_guides_if_the_loop_ignores_sigchld(tokenizer_dir):
    with loop(tokenizer_dir, SMALL, CRASHING["references"], ("choice", '["a"]')) as process:
        lines = process.stdout.read().splitlines()
    rejected = "rejected: it is too deep or too large to compile; send a simpler one"
    assert lines == ["compiled", rejected, "compiled"]


def test_workers_end_with_their_loop(tokenizer_dir):
    with loop(tokenizer_dir, SMALL, HEAVY) as process:
        assert process.stdout.readline() == "compiled\n"
        workers = children(process.pid)
        assert eventually(lambda: any(map(children, workers)))
        copies = [copy for pid in workers for copy in children(pid)]
        process.kill()
    assert eventually(lambda: not any(map(alive, [*workers, *copies])))


MEMORY = r"""
import sys
from pathlib import Path
from tandem.guides import compiler as module
from tandem.contract.guide import Guide

def resident():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) / 1024

module.MAX_CACHE_BYTES = 10 * 2**20
compiler = module.GuideCompiler(Path(sys.argv[1]), int(sys.argv[2]), [2])
compiler.matcher(Guide("regex", "a"), [2])
before = resident()
for first in range(1000, 9000, 1000):
    alternatives = [rf"(\p{{L}}|{n}){{1,20}}{n}" for n in range(first, first + 200)]
    compiler.matcher(Guide("regex", "|".join(alternatives)), [2])
print(resident() - before)
"""


def test_the_cache_of_guides_stays_within_its_memory_limit(tokenizer_dir):
    """Two of eight guides of 5 MB fit; dropped guides return their memory to the system."""
    size = str(tokenizer_kinds.byte_level().get_vocab_size())
    command = [sys.executable, "-c", MEMORY, tokenizer_dir, size]
    megabytes = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert megabytes < 20
