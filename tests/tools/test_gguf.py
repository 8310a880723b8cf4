"""A GGUF file is converted to a cached checkpoint once, and either completely or not at all."""

import os

import numpy as np
import pytest
from error_lines import error_line
from ggufs import TEMPLATE, write_gguf

from tandem.preprocessing.tokenizer import load_tokenizer
from tandem.tools.errors import TandemError, install_extra
from tandem.tools.models import gguf as gguf_module
from tandem.tools.models.named import find_model
from tandem.tools.profiles import deployment
from tandem.tools.profiles.engines.base import ProfileError
from tandem.tools.profiles.profile import Profile

pytest.importorskip("gguf", reason="no gguf: the extra 'gguf'")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(folder))
        patched.setattr(gguf_module, "has_llamacpp", lambda: False)
        yield folder / "tandem" / "gguf"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    write_gguf(path)
    return path


@pytest.fixture(scope="module")
def converted(cache, file):
    return gguf_module.convert_gguf(file)


def test_a_gguf_file_can_be_served_without_a_profile(file, converted):
    model = find_model(str(file))
    assert (model.name, model.checkpoint()) == ("small", converted)
    planned = deployment.for_checkpoints(converted, None, name=model.name)
    assert planned.loop_settings().drafter == "prompt_lookup"
    assert planned.end_ids == (0,)
    assert (converted / "chat_template.jinja").read_text() == TEMPLATE


def test_a_gguf_file_that_lacks_a_tensor_is_rejected(tmp_path, monkeypatch):
    """Transformers would fill it with random numbers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "incomplete.gguf"
    write_gguf(path, omit="blk.1.ffn_up")
    assert error_line(TandemError, gguf_module.convert_gguf, path) == (
        f"can't dequantize {path}: it lacks weights that its architecture requires: "
        "model.layers.1.mlp.up_proj.weight"
    )


def test_converted_weights_equal_the_gguf_file(file, converted):
    from gguf import GGUFReader
    from safetensors.numpy import load_file

    tensors = {t.name: t.data for t in GGUFReader(file).tensors}
    weights = load_file(converted / "model.safetensors")
    assert (weights["model.embed_tokens.weight"] == tensors["token_embd.weight"]).all()
    down = weights["model.layers.1.mlp.down_proj.weight"]
    assert (down == tensors["blk.1.ffn_down.weight"]).all()
    size = sum(w.size for w in weights.values())
    assert find_model(str(file)).num_parameters == pytest.approx(size, rel=0.01)


def test_a_file_is_converted_only_once(file, converted, monkeypatch):
    monkeypatch.setattr(gguf_module, "_run_conversion", lambda *_: pytest.fail("it was there"))
    assert gguf_module.convert_gguf(file) == converted


def test_a_changed_file_replaces_its_old_conversion(cache, file, converted, monkeypatch):
    made = []

    def dequantize(_, folder):
        made.append(folder)
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(gguf_module, "_run_conversion", dequantize)
    before = (converted / "source.json").read_text()
    facts = file.stat()
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    assert gguf_module.convert_gguf(file) == converted
    assert len(made) == 1
    assert (converted / "source.json").read_text() != before
    assert sorted(path.name for path in cache.iterdir()) == [
        converted.name,
        f"{converted.name}.lock",
    ]


def test_with_llamacpp_the_weights_stay_in_the_file(file, tmp_path, monkeypatch):
    pytest.importorskip("llama_cpp", reason="no llama_cpp: the extra 'llamacpp'")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(gguf_module, "has_llamacpp", lambda: True)
    folder = find_model(str(file)).checkpoint()
    planned = deployment.for_checkpoints(folder, None)
    assert planned.target.parameters["engine"] == "llamacpp"
    assert planned.end_ids == (0,)
    assert (folder / "model.gguf").resolve() == file
    assert not list(folder.glob("*.safetensors"))
    adapters = {"lora_adapters": {"sql": str(tmp_path)}}
    target = {"kind": "llamacpp", "checkpoint": str(folder)} | adapters
    profile = Profile.model_validate({"name": "x", "engines": {"target": target}})
    with pytest.raises(ProfileError, match="llamacpp applies no LoRA adapters"):
        deployment.check(profile)


def test_token_ids_equal_llamacpps_own(file, tmp_path, monkeypatch):
    llama_cpp = pytest.importorskip("llama_cpp", reason="no llama_cpp: the extra 'llamacpp'")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(gguf_module, "has_llamacpp", lambda: True)
    tokenizer = load_tokenizer(find_model(str(file)).checkpoint())
    theirs = llama_cpp.Llama(str(file), vocab_only=True, verbose=False)
    random = np.random.default_rng(1)
    letters = [*"abz AZ09.,'\n\t  -_{}", "é", "中", "🙂", "\u200b", "  ", "ß"]
    for size in random.integers(1, 40, 200):
        text = "".join(random.choice(letters, size))
        want = theirs.tokenize(text.encode(), add_bos=False, special=True)
        assert tokenizer.encode(text, add_special_tokens=False).ids == want, text


def test_a_failed_conversion_leaves_no_files(cache, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(range(256)) * 4)
    text = error_line(TandemError, find_model, str(broken))
    assert text.startswith(f"can't dequantize {broken}: ")
    assert len(text) < 500
    assert not [path for path in cache.glob("*broken*") if path.suffix != ".lock"]


def test_the_error_for_a_missing_package_names_the_extra(file, monkeypatch):
    monkeypatch.setattr(gguf_module, "PACKAGES", ("no-such-package",))
    assert error_line(TandemError, find_model, str(file)) == (
        f"can't read {file} without the package no-such-package; {install_extra('gguf')}"
    )


def test_one_part_of_a_split_model_is_rejected(tmp_path):
    part = tmp_path / "big-00001-of-00002.gguf"
    part.write_bytes(b"GGUF")
    assert "is one part of a split model; merge the parts first" in error_line(
        TandemError, find_model, str(part)
    )
