"""The vLLM engine passes the right arguments and reports failures. Runs without vLLM."""

import json
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from engine_harness import GREEDY, Harness

from tandem.engines.engine import EngineRequest, SamplingParams, Words
from tandem.engines.errors import EndedError, LoadError, UnsupportedError
from tandem.engines.vllm.arguments import (
    engine_arguments,
    environment,
    reject_unsupported,
    sampling_arguments,
)
from tandem.engines.vllm.engine import VllmEngine
from tandem.engines.vllm.hooks import HOOKS, check_hooks
from tandem.engines.vllm.sessions import Sessions
from tandem.engines.vllm.settings import VllmSettings


def settings(**changes):
    given = {"model": "/m", "vocab_size": 131, "max_seq_len": 256, "kv_cache_tokens": 4096}
    return VllmSettings(**given | changes)


def call(**asked):
    ids = np.array([5, 6], np.int32)
    return EngineRequest(
        **{"request_id": "r", "input_ids": ids, "max_new_tokens": 4, "sampling": GREEDY} | asked
    )


def test_a_target_verifies_drafts_with_vllms_rejection_sampler():
    arguments = engine_arguments(settings(max_draft_len=10))
    assert arguments["speculative_config"]["method"] == "custom_class"
    assert arguments["speculative_config"]["num_speculative_tokens"] == 10
    assert arguments["async_scheduling"] is False
    assert arguments["load_format"] == "safetensors"  # pickled weights can run code
    assert arguments["num_gpu_blocks_override"] == 4096 // 32 + 1


def test_vllms_speculation_settings_are_passed_on():
    own = {"method": "ngram", "num_speculative_tokens": 4}
    assert engine_arguments(settings(speculative_config=own))["speculative_config"] == own
    assert "speculative_config" not in engine_arguments(settings())


def test_prompt_lookup_inside_vllm_needs_no_proposer():
    asked = {"method": "prompt_lookup", "num_speculative_tokens": 12}
    ours = settings(speculative_config=asked)
    assert engine_arguments(ours) == engine_arguments(settings(max_draft_len=12))
    assert ours.copy_len == 12


def test_prompt_lookup_may_be_added_to_any_method_of_vllm():
    own = {"method": "ngram", "num_speculative_tokens": 4}
    both = settings(speculative_config=own | {"prompt_lookup_num_tokens": 8})
    assert engine_arguments(both)["speculative_config"] == own
    assert both.copy_len == 8
    assert settings(speculative_config=own).copy_len == settings().copy_len == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt_lookup_num_tokens": 0}, "must be an integer of at least 1; got 0"),
        ({"prompt_lookup_num_tokens": "8"}, "must be an integer of at least 1; got '8'"),
        ({"method": "prompt_lookup"}, "is for other methods; set num_speculative_tokens"),
        ({"draft_sample_method": "probabilistic"}, "requires draft_sample_method: greedy"),
    ],
)
def test_copies_that_cannot_be_added_are_rejected(changes, words):
    own = {"method": "draft_model", "model": "/d", "num_speculative_tokens": 4}
    own |= {"prompt_lookup_num_tokens": 8}
    with pytest.raises(LoadError, match=rf"speculative_config\.prompt_lookup_num_tokens {words}"):
        settings(speculative_config=own | changes)


def test_extra_vllm_arguments_are_passed_on_unless_other_keys_set_them():
    arguments = engine_arguments(settings(arguments={"quantization": "fp8"}))
    assert arguments["quantization"] == "fp8"
    with pytest.raises(LoadError, match="max_model_len is set from other keys of the profile"):
        settings(arguments={"max_model_len": 5})


def test_max_lora_rank_allows_the_largest_adapter(tmp_path):
    for name, rank in {"a": 4, "b": 33}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_model.safetensors").touch()
        config = {"peft_type": "LORA", "r": rank}
        (tmp_path / name / "adapter_config.json").write_text(json.dumps(config))
    adapters = (str(tmp_path / "a"), str(tmp_path / "b"))
    arguments = engine_arguments(settings(lora_adapters=adapters))
    assert (arguments["enable_lora"], arguments["max_loras"]) == (True, 2)
    assert arguments["max_lora_rank"] == 64  # the next larger rank that vLLM supports
    assert "enable_lora" not in engine_arguments(settings())


def test_max_batch_tokens_must_be_large_enough_for_drafts():
    with pytest.raises(LoadError, match=r"max_batch_tokens must be greater than 512 .*; got 512"):
        settings(max_batch_size=32, max_draft_len=8, max_batch_tokens=512)
    own = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_num_tokens": 8}
    with pytest.raises(LoadError, match=r"max_batch_tokens must be greater than 512 .*; got 512"):
        settings(max_batch_size=32, speculative_config=own, max_batch_tokens=512)


def test_threads_also_limit_vllms_ngram_proposer():
    limited = environment(settings(threads=3))
    assert (limited["OMP_NUM_THREADS"], limited["NUMBA_NUM_THREADS"]) == ("3", "3")
    assert "NUMBA_NUM_THREADS" not in environment(settings())


def test_device_ids_select_the_gpus():
    assert environment(settings(device_ids=(2, 3)))["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_sampling_options_are_converted_to_vllms():
    assert sampling_arguments(call(), 131)["temperature"] == 0
    sampled = SamplingParams(temperature=0.7, top_k=20, top_p=0.9, seed=2**64 - 1)
    arguments = sampling_arguments(call(sampling=sampled), 131)
    assert [arguments[name] for name in ("temperature", "top_k", "top_p")] == [0.7, 20, 0.9]
    assert arguments["seed"] == 2**63 - 1  # vLLM's seeds are signed 64-bit integers


def test_end_ids_and_stop_words_replace_vllms_own_end_of_sequence():
    plain = sampling_arguments(call(end_id=1, stop_words=Words.of((7,), (8, 9))), 131)
    assert plain["ignore_eos"] is True
    assert sorted(plain["stop_token_ids"]) == [1, 7]
    drafts = np.array([1], np.int32)
    assert "stop_token_ids" not in sampling_arguments(call(end_id=1, draft_ids=drafts), 131)


def test_stop_words_outside_the_vocabulary_are_not_sent_to_vllm():
    """vLLM rejects unknown ids, which can't be generated anyway."""
    words = Words.of((-1,), (7,), (131,))
    assert sampling_arguments(call(stop_words=words), 131)["stop_token_ids"] == [7]


def test_penalties_that_vllm_counts_differently_are_rejected():
    penalized = call(sampling=SamplingParams(top_k=1, frequency_penalty=0.5))
    reject_unsupported(penalized, drafts_itself=False)
    with pytest.raises(UnsupportedError, match="frequency_penalty isn't supported by this engine"):
        reject_unsupported(penalized, drafts_itself=True)


def test_an_unsupported_vllm_version_is_rejected_with_a_one_line_error():
    hooks = {name: eval(f"lambda self, {', '.join(HOOKS[name])}: None") for name in HOOKS}
    check_hooks("0.27.1", object, type("Scheduler", (), hooks))
    changed = hooks | {"_update_after_schedule": lambda self, output, more: None}
    with pytest.raises(LoadError, match=r"vLLM 9\.9 isn't supported: .*; install vLLM 0\.\d+"):
        check_hooks("9.9", type("Scheduler", (), changed))
    del changed["_update_after_schedule"]
    with pytest.raises(LoadError, match="_update_after_schedule is missing"):
        check_hooks("9.9", type("Scheduler", (), changed))


def kv_manager(*kinds, free=lambda self, request: None):
    """A stand-in for vLLM's KVCacheManager with managers of these classes."""
    methods = {
        "get_computed_blocks": lambda self, request: None,
        "allocate_slots": lambda self, request, num_new_tokens, num_new_computed_tokens=0: None,
        "free": free,
    }
    manager = type("KVCacheManager", (), methods)()
    made = [
        type(kind, (), {"req_to_blocks": {}, "num_cached_block": {}, "block_size": 32})()
        for kind in kinds
    ]
    manager.coordinator = SimpleNamespace(single_type_managers=made)
    return manager


def test_models_and_versions_that_cannot_have_sessions_are_logged(caplog):
    assert Sessions.start(kv_manager("FullAttentionManager"), {}) is not None
    assert not caplog.messages
    hybrid = kv_manager("FullAttentionManager", "MambaManager")
    assert Sessions.start(hybrid, {}) is None
    other = kv_manager("FullAttentionManager", free=lambda self, request_id: None)
    assert Sessions.start(other, {}) is None
    assert [message.rpartition(": ")[2] for message in caplog.messages] == [
        "the model has more than full attention",
        "its KVCacheManager.free is different",
    ]


LARGE = 300_000  # more tokens than a socket's buffer holds
STAND_IN = """#!{python}
import os, sys
from multiprocessing.connection import Connection
from tandem.engines.errors import EndedError
from tandem.engines.engine import EngineResponse
from tandem.engines.vllm.messages import Ready, Stepped, Submit
engine = Connection(int(sys.argv[-1]))
engine.recv()
engine.send(Ready("9.9"))
{work}
"""


@pytest.fixture
def stand_in(tmp_path):
    """Return a function that makes an engine whose vLLM process runs the given lines."""

    def engine(*work, **given):
        python = tmp_path / "python"
        python.write_text(STAND_IN.format(python=sys.executable, work="\n".join(work)))
        python.chmod(0o700)
        room = {"max_seq_len": 3 * LARGE, "kv_cache_tokens": 3 * LARGE}
        return VllmEngine(settings(python=str(python), **room), **given)

    return engine


@pytest.mark.parametrize(
    ("death", "line"),
    [
        ("os.kill(os.getpid(), 9)", "vLLM's process ended with status -9"),
        ("engine.send(EndedError('vLLM failed: no memory'))", "vLLM failed: no memory"),
        (
            "engine.send_bytes(b'?'); engine.recv()",
            "vLLM sent an unreadable message: invalid load key, '?'.",
        ),
        (
            "engine.send(None); engine.recv()",
            "vLLM sent an unreadable message: 'NoneType' object has no attribute 'steps'",
        ),
        ("engine.close(); import time; time.sleep(99)", "vLLM's process ended with status -9"),
    ],
    ids=["killed", "failed", "unreadable", "unknown", "silent"],
)
def test_if_vllm_dies_all_calls_fail_with_the_reason(stand_in, death, line, monkeypatch):
    monkeypatch.setattr("tandem.engines.vllm.engine.SECONDS_TO_END", 1.0)
    dead = threading.Event()
    engine = Harness(stand_in("engine.recv()", death, on_death=dead.set))
    last = engine.start([5, 6], 4).wait().last
    assert (last.error, last.code) == (line, "UNAVAILABLE")
    assert dead.wait(60)
    with pytest.raises(EndedError, match=line):
        engine.start([5, 6], 4)
    engine.engine.close()


def test_large_messages_in_both_directions_do_not_block_each_other(stand_in):
    engine = Harness(
        stand_in(
            "while isinstance(call := engine.recv(), Submit):",
            f"    answer = EngineResponse(tokens=[7] * {LARGE}, final=True)",
            "    engine.send(Stepped(1, [(call.key, answer)]))",
        )
    )
    calls = [engine.start([5] * LARGE, LARGE) for _ in range(8)]
    assert all(len(call.wait().tokens) == LARGE for call in calls)
    engine.engine.close()


def test_closing_does_not_wait_for_a_process_that_reads_nothing(stand_in, monkeypatch):
    monkeypatch.setattr("tandem.engines.vllm.engine.SECONDS_TO_END", 0.1)
    engine = Harness(stand_in("import time", "time.sleep(1000)"))
    calls = [engine.start([5] * LARGE) for _ in range(2)]
    engine.engine.close()
    assert {call.wait().error for call in calls} == {"the engine is shutting down"}


def test_a_missing_python_is_reported_in_one_line():
    with pytest.raises(LoadError, match="can't start vLLM with /none/python: No such file"):
        VllmEngine(settings(python="/none/python"))


def test_a_python_without_vllm_is_reported_in_one_line():
    with pytest.raises(LoadError, match=r"can't import vLLM: No module named 'vllm'; install vLLM"):
        VllmEngine(settings(python=sys.executable))


@pytest.mark.parametrize(("salt", "shared"), [("1", 3), ("2", 0), (None, 0)])
def test_a_session_is_only_continued_with_its_cache_salt(salt, shared):
    def request(name, ids, salt):
        made = {"request_id": name, "_all_token_ids": ids, "num_computed_tokens": 3}
        finished = {"lora_request": None, "cache_salt": salt, "is_finished": lambda: True}
        return SimpleNamespace(**made, **finished)

    manager = kv_manager("FullAttentionManager")
    manager.empty_kv_cache_blocks = ()
    type(manager).get_computed_blocks = lambda self, request: ((), 0)
    calls = {name: SimpleNamespace(text="t", cancelled=False) for name in ("a", "b")}
    [blocks] = manager.coordinator.single_type_managers
    blocks.req_to_blocks["a"] = [1]
    sessions = Sessions.start(manager, calls)
    assert sessions is not None
    manager.free(request("a", [5, 6, 7], "1"))
    assert manager.get_computed_blocks(request("b", [5, 6, 7, 8], salt))[1] == shared
