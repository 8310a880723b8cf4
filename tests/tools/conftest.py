"""Fixtures for tests of profiles and of TensorRT deployments."""

import pytest
import yaml
from checkpoints import write_empty, write_tokenizer
from llamas import profile_over, write_llamas

from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment


@pytest.fixture
def folder(tmp_path):
    """A profile's folder with a target, a draft and the tokenizer that they share."""
    size = write_tokenizer(tmp_path / "tokenizer")
    write_empty(tmp_path / "target", size)
    write_empty(tmp_path / "draft", size)
    return tmp_path


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folders of Llama checkpoints without weights."""
    folder = tmp_path_factory.mktemp("models")
    write_llamas(folder)
    return folder


@pytest.fixture
def shipped(models, tmp_path):
    """Return the file of a shipped profile, over checkpoints that exist; texts may be replaced."""
    return lambda name, changes={}: profile_over(models, name, tmp_path, changes)


@pytest.fixture
def changed(shipped):
    """Return the file of a shipped profile with changed settings (dotted path -> value)."""

    def write(name, settings):
        path = shipped(name)
        profile = yaml.safe_load(path.read_text())
        for place, value in settings.items():
            *sections, key = place.split(".")
            part = profile
            for section in sections:
                part[section] = dict(
                    part.get(section, {})
                )  # a change does not affect other uses of an anchor
                part = part[section]
            part[key] = value
        path.write_text(yaml.safe_dump(profile, sort_keys=False))
        return path

    return write


@pytest.fixture
def refusal(changed):
    """Return the one-line error of a changed profile, without the file name."""

    def refuse(name, settings):
        path = changed(name, settings)
        with pytest.raises(TandemError) as refused:
            deployment.load(path)
        text = str(refused.value)
        assert "\n" not in text
        return text.removeprefix(f"{path}:").partition(": ")[2]

    return refuse
