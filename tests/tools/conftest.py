"""Fixtures for tests of profiles and of TensorRT deployments."""

import pytest
import yaml
from checkpoints import write_empty, write_tokenizer
from llamas import profile_over, write_llamas


@pytest.fixture
def folder(tmp_path):
    """A folder for a profile, with a target, a draft and their shared tokenizer."""
    size = write_tokenizer(tmp_path / "tokenizer")
    for name in ("target", "draft"):
        write_empty(tmp_path / name, size, architectures=["LlamaForCausalLM"], model_type="llama")
    return tmp_path


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A folder of Llama checkpoints without weights."""
    folder = tmp_path_factory.mktemp("models")
    write_llamas(folder)
    return folder


@pytest.fixture
def shipped(models, tmp_path):
    """A function that writes a shipped profile with existing checkpoints and other changes."""
    return lambda name, changes={}: profile_over(models, name, tmp_path, changes)


@pytest.fixture
def changed(shipped):
    """A function that writes a shipped profile with changed settings (dotted path -> value)."""

    def write(name, settings):
        path = shipped(name)
        profile = yaml.safe_load(path.read_text())
        for place, value in settings.items():
            *sections, key = place.split(".")
            part = profile
            for section in sections:
                part[section] = dict(
                    part.get(section, {})
                )  # so that a change doesn't affect other uses of a YAML anchor
                part = part[section]
            part[key] = value
        path.write_text(yaml.safe_dump(profile, sort_keys=False))
        return path

    return write
