"""The llamacpp engine: drafts never change the output, and a broken file gives its reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from engine_harness import VOCAB, branch_call, prompt, wrong
from ggufs import write_gguf

from tandem.engines.engine import SamplingParams
from tandem.engines.errors import LoadError
from tandem.engines.llamacpp.settings import LlamaCppSettings

pytest.importorskip("xllamacpp", reason="no xllamacpp: the extra 'gguf'")


@pytest.fixture(scope="module")
def engine(make_llamacpp):
    return make_llamacpp()


@pytest.mark.parametrize("sampling", [SamplingParams(top_k=1), SamplingParams(seed=5)])
def test_logits_have_the_same_bits_with_and_without_drafts(engine, sampling):
    ids = prompt(1, 30)
    plain = engine.call(ids, 9, sampling=sampling, return_generation_logits=True)
    drafted = engine.call(
        ids, 9, drafts=plain.tokens[:8], sampling=sampling, return_generation_logits=True
    )
    assert drafted.tokens == plain.tokens
    assert np.array_equal(drafted.last.generation_logits, plain.last.generation_logits)


def test_logits_do_not_depend_on_drafts_threads_or_other_texts_in_a_long_context(make_llamacpp):
    sizes = {"max_seq_len": 512, "kv_cache_tokens": 4096}
    ids, wanted = prompt(3, 400), {"return_generation_logits": True}
    alone = make_llamacpp(threads=1, **sizes).call(ids, 9, **wanted)
    shared = make_llamacpp(threads=2, **sizes)
    shared.call(prompt(4, 300), 5)
    plain = shared.call(ids, 9, **wanted)
    drafted = shared.call(ids, 9, drafts=alone.tokens[:8], **wanted)
    for result in (plain, drafted):
        assert np.array_equal(result.last.generation_logits, alone.last.generation_logits)


def rounds(texts, answers, round_number):
    """Yield each running text's next call: its tokens so far, and drafts that are partly wrong."""
    for i, (ids, answer) in enumerate(zip(texts, answers, strict=True)):
        done = 4 * (round_number - i)  # a new text arrives in each round
        if 0 <= done < len(answer) - 1:
            right = (round_number + i) % 5
            drafts = [*answer[done : done + right], *wrong(answer[done + right : done + 4])]
            yield i, done, [*ids, *answer[:done]], drafts


@pytest.mark.parametrize("window", [0, 32])
def test_logits_do_not_depend_on_texts_that_run_at_the_same_time_or_ran_before(
    make_llamacpp, monkeypatch, tmp_path, window
):
    architecture = "gemma2" if window else "llama"
    write_gguf(
        tmp_path / "model.gguf", seed=7, vocab=VOCAB, architecture=architecture, window=window
    )
    folder = str(tmp_path)
    wanted, size = {"return_generation_logits": True}, 41
    texts = [prompt(seed, 30 + 7 * (seed % 5)) for seed in range(40)]
    texts += [[*text[:20], *prompt(seed, 30)] for seed, text in enumerate(texts[20:], 40)]
    alone = make_llamacpp(checkpoint=folder)
    plain = [alone.call(ids, size, **wanted) for ids in texts]
    answers = [outcome.tokens for outcome in plain]
    engine = make_llamacpp(checkpoint=folder, max_seq_len=128, kv_cache_tokens=2048)
    cache, moves = engine.engine._model.cache, []
    compact = cache.compact
    monkeypatch.setattr(cache, "compact", lambda: moves.append(compact()))
    for number in range(len(texts) + 10):
        running = [
            (i, done, engine.start(ids, 5, drafts=drafts, request_id=f"{i}", **wanted))
            for i, done, ids, drafts in rounds(texts, answers, number)
        ]
        for i, done, call in running:
            outcome = call.wait()
            end = done + len(outcome.tokens)
            assert outcome.tokens == answers[i][done:end]
            logits = plain[i].last.generation_logits[done:end]
            assert np.array_equal(outcome.last.generation_logits[: end - done], logits), (i, done)
    assert 2 < len(moves) < 20


# Prints the cores of the main thread, and the cores of the threads that are bound to one each.
PRINT_CORES = """
import os, sys
from pathlib import Path
from tandem.engines.kinds import load_engine

values = {"engine": "llamacpp", "checkpoint": sys.argv[1], "threads": sys.argv[2]}
values |= {"max_seq_len": "64", "kv_cache_tokens": "256"}
config = {"parameters": {name: {"string_value": value} for name, value in values.items()}}
engine = load_engine(config, Path())
threads = [os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")]
bound = [core for cores in threads if len(cores) == 1 for core in cores]
print(len(os.sched_getaffinity(0)), *bound)
print(os.environ["GOMP_SPINCOUNT"])
"""


def printed_cores(folder, threads, **variables):
    """Return the lines that PRINT_CORES prints. variables: of the environment, for OpenMP."""
    command = [sys.executable, "-c", PRINT_CORES, str(folder), str(threads)]
    ours = "OMP_", "GOMP_"  # another test may have set them
    kept = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    run = subprocess.run(command, check=True, capture_output=True, text=True, env=kept | variables)
    return run.stdout.splitlines()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="all threads share one core")
@pytest.mark.parametrize("per_core", [True, False])
def test_each_thread_stays_on_its_core_if_there_is_one_per_core(gguf_folder, per_core):
    cores = len(os.sched_getaffinity(0))
    line, _ = printed_cores(gguf_folder, 0 if per_core else cores + 1)
    of_main, *bound = map(int, line.split())
    assert of_main == cores
    assert len(bound) == len(set(bound)) == (cores if per_core else 0)


@pytest.mark.parametrize("name", ["OMP_PLACES", "GOMP_CPU_AFFINITY"])
def test_threads_that_the_user_places_on_one_core_do_not_spin_against_each_other(gguf_folder, name):
    """They would take forty times as long."""
    core = min(os.sched_getaffinity(0))
    place = {"OMP_PLACES": f"{{{core}}}", "GOMP_CPU_AFFINITY": str(core)}[name]
    _, spins = printed_cores(gguf_folder, 0, **{name: place})
    assert int(spins) == 300


def test_branches_equal_plain_drafts_after_their_outcomes(engine):
    ids = prompt(2, 20)
    found = engine.call(ids, **branch_call([5, 6], 2, 4)).last.branches
    assert len(found.lengths) == 6
    for (accepted, token), row in zip(found.outcomes.tolist(), found.ids.tolist(), strict=True):
        assert row == engine.tokens([*ids, *[5, 6][:accepted], token], 4)


def test_texts_and_branches_can_move_within_the_cache_in_each_step(engine, make_llamacpp):
    moving = make_llamacpp()
    moves = 0
    cache = moving.engine._model.cache

    def move(_: int) -> None:
        nonlocal moves
        moves += 1
        cache.compact()

    cache.make_room = move
    for ids in (prompt(1, 30), prompt(2, 20), [*prompt(1, 30)[:25], 9, 8, 7]):
        asked = branch_call([5, 6], [3, 2, 1], [2, 5, 4])
        for _ in range(2):
            found, wanted = (each.call(ids, **asked).last.branches for each in (moving, engine))
            assert np.array_equal(found.ids, wanted.ids)
        assert moving.tokens(ids, 12) == engine.tokens(ids, 12)
    assert moves > 40


def test_texts_still_share_the_cells_of_a_prefix_after_they_have_moved(engine, make_llamacpp):
    shared = make_llamacpp()
    texts = [[*prompt(1, 100), *prompt(seed, 20)] for seed in range(2, 8)]
    expected = [engine.tokens(ids, 5) for ids in texts]
    assert [shared.tokens(ids, 5) for ids in texts] == expected
    cache = shared.engine._model.cache
    used = cache._used
    cache.compact()
    assert cache._used <= used < 300
    assert [shared.computed(ids, 5) for ids in texts] == [5] * 6
    assert [shared.tokens(ids, 5) for ids in texts] == expected


def test_a_failed_move_loses_no_answer(engine, make_llamacpp, monkeypatch):
    broken = make_llamacpp()
    texts = [prompt(seed, 30) for seed in range(2, 5)]
    for ids in texts:
        broken.tokens(ids, 5)
    cache = broken.engine._model.cache
    monkeypatch.setattr(cache, "_copy", lambda _: np.zeros(1, np.uint8))
    with pytest.raises(RuntimeError, match="can't move a text"):
        cache.compact()
    monkeypatch.undo()
    assert [broken.tokens(ids, 5) for ids in texts] == [engine.tokens(ids, 5) for ids in texts]


def test_dropped_tokens_hold_a_limited_number_of_cells(make_llamacpp):
    """Attention passes over all cells up to the last one in use."""
    engine, ids = make_llamacpp(), prompt(1, 30)
    drafts = wrong(engine.tokens(ids, 8))
    for _ in range(300):
        engine.tokens(ids, 9, drafts=drafts)
    assert engine.engine._model.cache._used < 1200


def test_more_calls_than_fit_into_the_cache_wait_and_all_finish(make_llamacpp):
    small = make_llamacpp(kv_cache_tokens=256)
    prompts = [prompt(seed, 60) for seed in range(20)]
    calls = [small.start(ids, 20) for ids in prompts]
    outputs = [call.wait() for call in calls]
    assert [len(outcome.tokens) for outcome in outputs] == [20] * 20
    assert {outcome.error for outcome in outputs} == {None}


def test_a_new_text_replaces_the_oldest_if_llamacpp_has_no_sequence_left(
    engine, make_llamacpp, monkeypatch
):
    monkeypatch.setattr("tandem.engines.llamacpp.engine.SEQUENCES", 4)
    small = make_llamacpp(kv_cache_tokens=4096)
    texts = [prompt(seed, 20) for seed in range(10)]
    assert [small.tokens(ids, 5) for ids in texts] == [engine.tokens(ids, 5) for ids in texts]


@pytest.mark.parametrize(
    "sizes",
    [
        {"max_batch_tokens": 1, "max_draft_len": 0},
        {"max_batch_tokens": 16},
        {"kv_cache_tokens": 64},
    ],
)
def test_small_batches_and_small_caches_have_the_same_output(engine, make_llamacpp, sizes):
    ids = prompt(8, 40)
    assert make_llamacpp(max_seq_len=64, **sizes).tokens(ids, 5) == engine.tokens(ids, 5)


def test_a_prefix_of_a_text_longer_than_the_sliding_window_is_reused_only_if_it_is_complete(
    make_llamacpp, tmp_path
):
    """When the engine moves a text, llama.cpp copies only the last window."""
    write_gguf(tmp_path / "model.gguf", seed=7, vocab=VOCAB, architecture="gemma2", window=32)
    folder, wanted = str(tmp_path), {"return_generation_logits": True}
    busy = make_llamacpp(checkpoint=folder, kv_cache_tokens=1024)
    fresh = make_llamacpp(checkpoint=folder, kv_cache_tokens=8192)
    for seed in range(1, 5):
        busy.call(prompt(seed, 200), 4)
        for earlier in range(max(1, seed - 2), seed + 1):
            ids = [*prompt(earlier, 200)[:100], *prompt(10 * seed + earlier, 30)]
            found, right = busy.call(ids, 3, **wanted), fresh.call(ids, 3, **wanted)
            assert np.array_equal(found.last.generation_logits, right.last.generation_logits)


def test_branches_replace_old_texts_if_llamacpp_has_no_sequence_left(make_llamacpp, monkeypatch):
    monkeypatch.setattr("tandem.engines.llamacpp.engine.SEQUENCES", 8)
    monkeypatch.setattr("tandem.engines.stepping.kv_cache.STALE_SECONDS", 0.0)
    engine = make_llamacpp(kv_cache_tokens=4096)
    for first in range(10, 20):
        engine.tokens([first, 9], 2)
    found = engine.call(prompt(2, 20), **branch_call([5, 6], 2, 4)).last.branches
    assert len(found.lengths) == 6


EXACT = ["Q4_0", "Q4_1", "Q8_0"]  # in llama.cpp, the others round differently for more tokens
TYPES = [*EXACT, "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "F16", "BF16"]


@pytest.mark.parametrize("quantization", TYPES)
def test_drafts_do_not_change_the_output_with_any_type_of_weights(
    make_llamacpp, tmp_path, quantization
):
    file = tmp_path / "model.gguf"
    write_gguf(file, seed=7, vocab=VOCAB, quantization=quantization, width=256)
    engine, ids = make_llamacpp(checkpoint=str(tmp_path)), prompt(5, 40)
    wanted = {"return_generation_logits": True}
    plain = engine.call(ids, 9, **wanted)
    drafted = engine.call(ids, 9, drafts=plain.tokens[:8], **wanted)
    assert drafted.tokens == plain.tokens
    if quantization in EXACT:
        assert np.array_equal(drafted.last.generation_logits, plain.last.generation_logits)


def test_a_split_file_is_loaded_by_its_first_part(make_llamacpp, tmp_path):
    write_gguf(tmp_path / "big.gguf", seed=7, vocab=VOCAB, tensors_per_file=8)
    parts = sorted(tmp_path.glob("big-*.gguf"))
    assert len(parts) == 3
    (tmp_path / "model.gguf").symlink_to(parts[0])
    whole, split = make_llamacpp(), make_llamacpp(checkpoint=str(tmp_path))
    assert split.tokens(prompt(6, 20), 5) == whole.tokens(prompt(6, 20), 5)


def start(folder, **settings):
    from tandem.engines.llamacpp.engine import LlamaCppEngine

    sizes = {"max_seq_len": 64, "kv_cache_tokens": 256} | settings
    return LlamaCppEngine(LlamaCppSettings(str(folder), **sizes), Path())


def test_a_file_that_cannot_be_loaded_is_rejected_with_llamacpps_reason(tmp_path):
    write_gguf(tmp_path / "model.gguf", vocab=VOCAB, architecture="nonesuch")
    with pytest.raises(LoadError, match="unknown model architecture: 'nonesuch'"):
        start(tmp_path)
    write_gguf(tmp_path / "model.gguf", vocab=VOCAB, omit="blk.1.ffn_up")
    with pytest.raises(LoadError, match=r"blk.1.ffn_up"):
        start(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(LoadError, match="can't load"):
        start(tmp_path)


def test_a_context_longer_than_the_models_is_rejected(gguf_folder):
    with pytest.raises(LoadError, match="max_seq_len must be at most 512"):
        start(gguf_folder, max_seq_len=513, kv_cache_tokens=1024)


def test_the_declared_structures_match_the_library():
    """Structures of another size would shift these defaults."""
    from tandem.engines.llamacpp import api

    library = api.open_library()
    context = library.llama_context_default_params()
    assert (context.n_ctx, context.n_threads, context.type_k, context.type_v) == (512, 4, 1, 1)
    flags = "embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full", "kv_unified"
    assert [getattr(context, flag) for flag in flags] == [False, True, True, True, True, False]
    model = library.llama_model_default_params()
    assert (model.n_gpu_layers, model.split_mode, model.lazy_mode) == (-1, 1, 1)
    assert (model.check_tensors, model.use_extra_bufts, model.no_host) == (False, True, False)


def test_a_gguf_engine_does_not_load_pytorch(gguf_folder):
    """PyTorch would take 160 MB of memory, and three seconds of processor time at the start."""
    given = {"engine": "llamacpp", "checkpoint": str(gguf_folder)}
    given |= {"max_seq_len": "64", "kv_cache_tokens": "256", "threads": "1"}
    config = {"parameters": {name: {"string_value": value} for name, value in given.items()}}
    code = "import json, pathlib, sys; from tandem.engines.kinds import load_engine"
    code += "; load_engine(json.loads(sys.argv[1]), pathlib.Path()).close()"
    code += "; sys.exit(', '.join({'torch', 'transformers'} & {*sys.modules}) or None)"
    ended = subprocess.run(
        [sys.executable, "-c", code, json.dumps(config)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_closed_engine_frees_its_model(gguf_folder):
    engine = start(gguf_folder)
    [model] = engine._loaded
    engine.close()
    assert (model._model, model._context) == (None, None)
