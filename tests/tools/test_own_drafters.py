"""Profiles and commands support custom drafters."""

import pytest
from error_lines import error_line
from paths import ROOT
from profile_files import engines, load, profile

from tandem.tools import cli as command
from tandem.tools.benchmark.load_generator import measured_server
from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment
from tandem.tools.triton import repository

EXAMPLE = (ROOT / "examples" / "drafters" / "repeat.py").read_text()


def custom(folder, *drafters, **sections):
    """Return a profile with the example's drafter, or with these drafters, for a folder."""
    (folder / "repeat.py").write_text(EXAMPLE)
    return profile(drafters=list(drafters) or [{"module": "repeat.py"}], **sections)


def line_of(folder, *drafters, **sections):
    """Return the error of a profile without the file and line that it begins with."""
    content = custom(folder, *drafters, **sections)
    return error_line(TandemError, load, folder, content).partition(": ")[2]


def test_a_custom_drafter_can_be_requested_or_be_the_default(folder):
    planned = load(folder, custom(folder))
    assert planned.drafters == ("hybrid", "draft_model", "prompt_lookup", "repeat", "none")
    planned = load(folder, custom(folder, engines=engines(), decoding={"drafter": "repeat"}))
    assert planned.drafters == ("prompt_lookup", "repeat", "none")
    assert planned.loop_settings().drafter == "repeat"


def test_the_profile_of_the_example_is_complete():
    planned = deployment.load(ROOT / "examples" / "drafters" / "repeat.yaml")
    assert planned.loop_settings().drafter == "repeat"


def test_a_profile_overrides_settings_of_a_custom_drafter(folder):
    drafter = {"module": "repeat.py", "settings": {"period": 2}}
    planned = load(folder, custom(folder, drafter))
    [module] = planned.loop_settings().drafter_modules
    assert (module.file, module.settings) == ("repeat.py", {"period": 2})


@pytest.mark.parametrize("link", [True, False])
def test_the_file_of_a_custom_drafter_is_rendered_with_the_loop(folder, tmp_path, link):
    planned = load(folder, custom(folder))
    output = tmp_path / "repository"
    repository.render(planned, output, link=link)
    [copied] = output.glob("*/1/drafters/*")
    assert copied == output / "bls_stream" / "1" / "drafters" / "repeat.py"
    assert copied.read_text() == EXAMPLE
    assert copied.is_symlink() == link


def test_commands_accept_custom_drafters_and_list_them_in_errors(folder, capsys):
    measured_server(load(folder, custom(folder))).check_drafter("repeat")
    path = str(folder / "profile.yaml")
    for verb in ("bench", "perf"):
        assert command.main([verb, "--profile", path, "--drafter", "oracle"]) == 1
        line = capsys.readouterr().err
        assert (
            "--drafter must be one of hybrid, draft_model, prompt_lookup, repeat, none for test"
            in line
        )


def test_the_error_for_a_missing_module_names_the_searched_folder(folder):
    assert line_of(folder, {"module": "nowhere.py"}) == (
        f"drafters.0.module: {folder}/nowhere.py isn't a file; 'nowhere.py' is relative to the "
        f"profile's folder, {folder}"
    )


def test_two_drafters_with_the_same_name_are_rejected(folder):
    (folder / "again.py").write_text(EXAMPLE)
    line = line_of(folder, {"module": "repeat.py"}, {"module": "again.py"})
    assert line.startswith("drafters.1.module: drafter 'repeat' already exists")
    (folder / "sub").mkdir()
    (folder / "sub" / "repeat.py").write_text(EXAMPLE.replace('"repeat"', '"other"'))
    line = line_of(folder, {"module": "repeat.py"}, {"module": "sub/repeat.py"})
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
def test_invalid_drafter_settings_are_rejected(folder, settings, line):
    assert line_of(folder, {"module": "repeat.py", "settings": settings}).startswith(line)


def test_a_drafter_that_samples_from_a_draft_model_requires_one(folder):
    samples = EXAMPLE.replace("module=__name__,", "module=__name__, samples_from_draft_model=True,")
    (folder / "samples.py").write_text(samples)
    line = line_of(
        folder, {"module": "samples.py"}, engines=engines(), decoding={"drafter": "repeat"}
    )
    assert line.startswith("decoding.drafter: 'repeat' needs engines.draft")
