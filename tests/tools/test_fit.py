"""Models must fit into free memory, and KV caches are sized to fit."""

import json

import pytest
from checkpoints import write_empty, write_pair, write_tokenizer
from error_lines import error_line

from tandem.tools.errors import TandemError
from tandem.tools.models import fit
from tandem.tools.models.fit import check_architecture
from tandem.tools.models.gguf import gguf_bytes
from tandem.tools.profiles import deployment
from tandem.tools.profiles.checkpoint import weight_files

COUNTS = {"target": 400_000_000, "draft": 1_000_000}


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint folder with bfloat16 weights."""
    folder = tmp_path / "checkpoint"
    write_empty(folder, write_tokenizer(folder), torch_dtype="bfloat16")
    return folder


@pytest.fixture
def planned(checkpoint, monkeypatch):
    """Two engines with 1024-token sequences, 16 KB per token, and up to 16 cached sequences."""
    config = json.loads((checkpoint / "config.json").read_text())
    shape = {"num_hidden_layers": 8, "num_attention_heads": 4, "hidden_size": 256}
    (checkpoint / "config.json").write_text(json.dumps(config | shape))
    monkeypatch.setattr(fit, "free_gpu_memory", lambda _: None)
    return deployment.for_checkpoints(checkpoint, checkpoint)


def test_models_larger_than_memory_are_rejected_with_their_sizes(planned, monkeypatch):
    monkeypatch.setattr(fit, "free_memory", lambda: 2_000_000_000)
    assert error_line(TandemError, fit.fitting_kv_caches, planned, COUNTS) == (
        "the models need about 2.6 GB of memory (1.6 GB of weights and 17 MB for 1024 tokens in "
        "target, 4 MB of weights and 17 MB for 1024 tokens in draft), and 2.0 GB are free; use "
        "smaller models"
    )


@pytest.mark.parametrize(
    ("free", "tokens"), [(4_000_000_000, 16 * 1024), (2_637_600_000, 1024), (2_872_000_000, 8191)]
)
def test_kv_caches_are_sized_to_fill_the_free_memory(planned, monkeypatch, free, tokens):
    monkeypatch.setattr(fit, "free_memory", lambda: free)
    found = fit.fitting_kv_caches(planned, COUNTS)
    assert found == pytest.approx({"target": tokens, "draft": tokens}, rel=0.01)
    served = deployment.for_checkpoints(
        planned.profile.engines.target.checkpoint, None, kv_cache_tokens=found
    )
    assert served.target.kv_cache_tokens == found["target"]


def test_the_cache_takes_twice_the_memory_on_a_gpu(planned):
    def token_bytes(deployment, *, on_gpu):
        return fit.estimate_needs(deployment, COUNTS, on_gpu=on_gpu)["target"].token_bytes

    tokens_in_bfloat16 = token_bytes(planned, on_gpu=False) // 2
    assert token_bytes(planned, on_gpu=True) == 2 * tokens_in_bfloat16


def test_part_of_the_gpu_memory_is_left_free(monkeypatch):
    for numbers, free in (([70, 100], 60), ([5, 100], 0), ([], None)):
        monkeypatch.setattr(fit, "_ask_torch", lambda _, numbers=numbers: numbers)
        assert fit.free_gpu_memory(0.9) == free
        assert fit.count_gpus() == (numbers[0] if numbers else 0)


def test_free_memory_in_a_container_respects_its_limit(tmp_path, monkeypatch):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    monkeypatch.setattr(fit, "MEMINFO", meminfo)
    monkeypatch.setattr(fit, "CGROUP", tmp_path)
    assert fit.free_memory() == 8000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("3000000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 500000\n")
    assert fit.free_memory() == 8000 * 1024
    (tmp_path / "memory.max").write_text("4000000\n")
    assert fit.free_memory() == 1_500_000


@pytest.fixture
def whole(tmp_path):
    """The folder of a small complete checkpoint, with the tokenizer."""
    write_pair(tmp_path)
    write_tokenizer(tmp_path / "target")
    return tmp_path / "target"


@pytest.mark.parametrize("single", [True, False])
def test_files_of_an_older_download_are_ignored(whole, single):
    (whole / "model-00001-of-00003.safetensors").write_bytes(b"truncated")
    if not single:
        (whole / "model.safetensors").rename(whole / "model-00001-of-00001.safetensors")
        weight_map = {"lm_head.weight": "model-00001-of-00001.safetensors"}
        index = whole / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": weight_map}))
    [used] = weight_files(whole)
    assert "00003" not in used.name


def test_all_parts_of_a_split_gguf_file_count(tmp_path):
    names = ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "a-q4-00001-of-00002.gguf", "b")
    for size, name in enumerate(names, 3):
        (tmp_path / name).write_bytes(bytes(size))
    (tmp_path / "model.gguf").symlink_to(tmp_path / names[0])
    assert gguf_bytes(tmp_path / "model.gguf") == 3 + 4
    assert gguf_bytes(tmp_path / "b") == 6


@pytest.mark.parametrize(("kind", "known"), [("llama", True), ("qwen2", True), ("gpt-9", False)])
def test_unknown_architectures_are_rejected_before_anything_is_downloaded(tmp_path, kind, known):
    write_empty(tmp_path, 100, model_type=kind)
    if known:
        check_architecture(tmp_path)
    else:
        shown = error_line(TandemError, check_architecture, tmp_path)
        assert "architecture 'gpt-9' isn't known to transformers " in shown


@pytest.mark.parametrize(
    ("device", "fits"), [("cpu", True), ("auto", False), ("cuda:0", False), ("cuda:1", True)]
)
def test_a_kv_cache_must_fit_into_the_memory_of_its_device(
    whole, tmp_path, monkeypatch, device, fits
):
    monkeypatch.setattr(fit, "free_gpu_memory", lambda _: 1_000_000_000)
    monkeypatch.setattr(fit, "free_memory", lambda: 100_000_000_000)
    profile = tmp_path / "mine.yaml"
    target = f"{{kind: torch, checkpoint: target, device: {device}, kv_cache_tokens: 10000000}}"
    profile.write_text(f"name: mine\nengines: {{target: {target}}}\n")
    loaded = deployment.load(profile)
    if fits:
        fit.check_fit(loaded)
    else:
        shown = error_line(TandemError, fit.check_fit, loaded)
        assert shown.endswith("1.0 GB are free")


@pytest.mark.parametrize(("tokens", "fits"), [("1e7", False), ("4096", True), (None, True)])
def test_a_profiles_kv_cache_must_fit_into_memory(whole, tmp_path, monkeypatch, tokens, fits):
    monkeypatch.setattr(fit, "free_gpu_memory", lambda _: None)
    monkeypatch.setattr(fit, "free_memory", lambda: 2_000_000_000)
    size = f", kv_cache_tokens: {int(float(tokens))}" if tokens else ""
    profile = tmp_path / "mine.yaml"
    profile.write_text(
        f"name: mine\nengines: {{target: {{kind: torch, checkpoint: target{size}}}}}\n"
    )
    loaded = deployment.load(profile)
    if fits:
        fit.check_fit(loaded)
    else:
        shown = error_line(TandemError, fit.check_fit, loaded)
        assert shown.startswith("engines.target.kv_cache_tokens: 10000000 tokens need 5.1 GB")
