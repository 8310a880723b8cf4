"""A GGUF file's tokenizer is read into the cache once, and either completely or not at all."""

import os

import numpy as np
import pytest
from error_lines import error_line
from ggufs import TEMPLATE, LlamaTokenizer, write_gguf

from tandem.preprocessing.tokenizer import load_tokenizer
from tandem.tools.errors import TandemError, install_extra
from tandem.tools.models import gguf as gguf_module
from tandem.tools.models.named import find_model
from tandem.tools.profiles import deployment
from tandem.tools.profiles.engines.base import ProfileError
from tandem.tools.profiles.profile import Profile

pytest.importorskip("xllamacpp", reason="no xllamacpp: the extra 'gguf'")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(folder))
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


def test_a_file_is_converted_again_only_if_it_has_changed(file, converted, monkeypatch):
    conversions, facts = [], file.stat()
    monkeypatch.setattr(gguf_module, "_convert", lambda *given: conversions.append(given))
    assert gguf_module.convert_gguf(file) == converted
    assert conversions == []
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    assert gguf_module.convert_gguf(file) == converted
    assert len(conversions) == 1
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def test_the_weights_stay_in_the_file(file, converted):
    planned = deployment.for_checkpoints(converted, None)
    assert planned.target.parameters["engine"] == "llamacpp"
    assert (converted / "model.gguf").resolve() == file
    assert not list(converted.glob("*.safetensors"))


def test_lora_adapters_are_rejected(converted, tmp_path):
    adapters = {"lora_adapters": {"sql": str(tmp_path)}}
    target = {"kind": "llamacpp", "checkpoint": str(converted)} | adapters
    profile = Profile.model_validate({"name": "x", "engines": {"target": target}})
    with pytest.raises(ProfileError, match="applies no LoRA adapters; use kind torch"):
        deployment.check(profile)


def check_token_ids(file, folder):
    """Compare the token ids of random texts with llama.cpp's."""
    tokenizer, theirs = load_tokenizer(folder), LlamaTokenizer(file)
    random = np.random.default_rng(1)
    letters = [*"abz AZ0189.,:'\n\t  -_{}", "é", "中", "🙂", "\u200b", "  ", "ß", "\n\n", "½"]
    for size in random.integers(1, 40, 1000):
        text = "".join(random.choice(letters, size))
        assert tokenizer.encode(text, add_special_tokens=False).ids == theirs.encode(text), text


def test_token_ids_equal_llamacpps_own(file, converted):
    check_token_ids(file, converted)


def test_a_changed_file_replaces_its_old_conversion(cache, file, converted):
    before = (converted / "source.json").read_text()
    write_gguf(file, splitting="smollm")
    assert gguf_module.convert_gguf(file) == converted
    assert (converted / "source.json").read_text() != before
    assert sorted(path.name for path in cache.iterdir()) == [
        converted.name,
        f"{converted.name}.lock",
    ]
    check_token_ids(file, converted)


def test_a_failed_conversion_leaves_no_files(cache, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(range(256)) * 4)
    text = error_line(TandemError, find_model, str(broken))
    assert text.startswith(f"llama.cpp can't load {broken}: ")
    assert len(text) < 500
    assert not [path for path in cache.glob("*broken*") if path.suffix != ".lock"]


@pytest.mark.usefixtures("cache")
def test_a_truncated_file_is_reported_as_incomplete(tmp_path):
    path = tmp_path / "cut.gguf"
    write_gguf(path)
    path.write_bytes(path.read_bytes()[:-100])
    text = error_line(TandemError, find_model, str(path))
    assert text.endswith("is not within the file bounds, model is corrupted or incomplete")


def test_the_error_for_a_missing_package_names_the_extra(file, monkeypatch):
    monkeypatch.setattr(gguf_module, "PACKAGES", ("no-such-package",))
    assert error_line(TandemError, find_model, str(file)) == (
        f"can't read {file} without the package no-such-package; {install_extra('gguf')}"
    )


def test_a_later_part_of_a_split_model_is_rejected(tmp_path):
    part = tmp_path / "big-00002-of-00002.gguf"
    part.write_bytes(b"GGUF")
    assert "is a part of a split model; name its first part" in error_line(
        TandemError, find_model, str(part)
    )


def test_an_unknown_architecture_is_rejected_with_llamacpps_reason(tmp_path):
    path = tmp_path / "odd.gguf"
    write_gguf(path, architecture="nonesuch")
    assert error_line(TandemError, find_model, str(path)) == (
        f"llama.cpp can't load {path}: unknown model architecture: 'nonesuch'"
    )
