"""Profiles and commands support custom drafters."""

from pathlib import Path

import pytest
import yaml

from tandem.tools import cli as command
from tandem.tools.benchmark.measured_server import measured_server
from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment
from tandem.tools.triton import repository

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = (ROOT / "examples" / "drafters" / "repeat.py").read_text()
EMULATED = {
    "kind": "emulated",
    "tokenizer": str(ROOT / "demo" / "tokenizer"),
    "language": {"alpha": 0.8},
}
TARGET = EMULATED | {"max_draft_len": 16}


@pytest.fixture
def profile(tmp_path):
    """A function that writes a profile with the example's drafter and returns its path."""

    def write(drafters=({"module": "repeat.py"},), engines=None, **sections):
        (tmp_path / "repeat.py").write_text(EXAMPLE)
        path = tmp_path / "profile.yaml"
        profile = {
            "name": "own",
            "engines": engines or {"target": TARGET, "draft": EMULATED},
            "drafters": list(drafters),
        }
        path.write_text(yaml.safe_dump(profile | sections))
        return path

    return write


@pytest.fixture
def rejection(profile):
    """A function that returns the one-line error of a profile."""

    def reject(*drafters, **sections):
        with pytest.raises(TandemError) as rejected:
            deployment.load(profile(drafters, **sections))
        text = str(rejected.value)
        assert "\n" not in text
        return text.partition(": ")[2]

    return reject


def test_a_custom_drafter_can_be_requested_or_be_the_default(profile):
    planned = deployment.load(profile())
    assert planned.drafters == ("draft_model", "prompt_lookup", "hybrid", "repeat", "none")
    planned = deployment.load(profile(engines={"target": TARGET}, decoding={"drafter": "repeat"}))
    assert planned.drafters == ("prompt_lookup", "repeat", "none")
    assert planned.loop_settings().drafter == "repeat"


def test_a_profile_overrides_settings_of_a_custom_drafter(profile):
    planned = deployment.load(profile([{"module": "repeat.py", "settings": {"period": 2}}]))
    [module] = planned.loop_settings().drafter_modules
    assert (module.file, module.settings) == ("repeat.py", {"period": 2})


@pytest.mark.parametrize("link", [True, False])
def test_the_file_of_a_custom_drafter_is_rendered_with_the_loop(profile, tmp_path, link):
    planned = deployment.load(profile())
    output = tmp_path / "repository"
    repository.render(planned, output, link=link)
    [copied] = output.glob("*/1/drafters/*")
    assert copied == output / "bls_stream" / "1" / "drafters" / "repeat.py"
    assert copied.read_text() == EXAMPLE
    assert copied.is_symlink() == link


def test_commands_accept_custom_drafters_and_list_them_in_errors(profile, monkeypatch, capsys):
    path = str(profile())
    measured_server(deployment.load(Path(path))).check_drafter("repeat")
    for verb in ("bench", "perf", "summarize"):
        assert command.main([verb, "--profile", path, "--drafter", "oracle"]) == 1
        line = capsys.readouterr().err
        assert (
            "--drafter must be one of draft_model, prompt_lookup, hybrid, repeat, none for own"
            in line
        )


def test_the_error_for_a_missing_module_names_the_searched_folder(rejection, tmp_path):
    assert rejection({"module": "nowhere.py"}) == (
        f"drafters.0.module: {tmp_path}/nowhere.py isn't a file; 'nowhere.py' is relative to the "
        f"profile's folder, {tmp_path}"
    )


def test_two_drafters_with_the_same_name_are_rejected(rejection, tmp_path):
    (tmp_path / "again.py").write_text(EXAMPLE)
    line = rejection({"module": "repeat.py"}, {"module": "again.py"})
    assert line.startswith("drafters.1.module: drafter 'repeat' already exists")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "repeat.py").write_text(EXAMPLE.replace('"repeat"', '"other"'))
    line = rejection({"module": "repeat.py"}, {"module": "sub/repeat.py"})
    assert line.startswith(
        "drafters.1.module: file name repeat.py is already used by another drafter"
    )


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"perod": 2}, "drafters.0.settings: setting 'perod' isn't known; choose one of: period"),
        (
            {"period": "two"},
            "drafters.0.settings.period: must be a valid integer; got 'two'",
        ),
        ({"period": 0}, "drafters.0.settings: ValueError: period must be at least 1; got 0"),
    ],
)
def test_invalid_drafter_settings_are_rejected(rejection, settings, line):
    assert rejection({"module": "repeat.py", "settings": settings}).startswith(line)


def test_a_drafter_that_samples_from_a_draft_model_requires_one(rejection, tmp_path):
    samples = EXAMPLE.replace("module=__name__,", "module=__name__, samples_from_draft_model=True,")
    (tmp_path / "samples.py").write_text(samples)
    line = rejection(
        {"module": "samples.py"}, engines={"target": TARGET}, decoding={"drafter": "repeat"}
    )
    assert line.startswith("decoding.drafter: 'repeat' needs engines.draft")
