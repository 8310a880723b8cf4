"""Errors in a profile are reported in one line, before any server starts."""

import json

import pytest
from profile_files import engines, load, profile, rejection

from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment


def test_the_error_for_an_unknown_key_suggests_the_nearest(folder):
    text = "name: test\nengines:\n  target:\n    checkpoint: target\n    max_draft_lenn: 4\n"
    assert rejection(folder, text) == (
        "profile.yaml:5: engines.target.max_draft_lenn: unknown key; did you mean 'max_draft_len'?"
    )


def test_the_error_for_an_unknown_key_lists_the_known_keys(folder):
    assert rejection(folder, profile(admission={"zzz": 1})) == (
        "profile.yaml:2: admission.zzz: unknown key; choose one of: max_requests, max_queue, "
        "max_queue_bytes"
    )


def test_the_error_for_a_wrong_type_quotes_the_value(folder):
    assert "profile.yaml:2: admission.max_queue: must be a valid integer; got 'four'" in rejection(
        folder, profile(admission={"max_queue": "four"})
    )


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"engines": {"target": []}}, "engines.target: must be a mapping; got []"),
        ({"engines": 5}, "engines: must be a mapping; got 5"),
        (profile(decoding=5), "decoding: must be a mapping; got 5"),
        (profile(entries=3), "entries: must be a list; got 3"),
        ({"engines": engines(checkpoint=None)}, "target.checkpoint: must be a path; got None"),
        ({"engines": engines(lora_adapters=[])}, "lora_adapters: must be a mapping; got []"),
        (
            {"engines": engines(lora_adapters={1: "x"})},
            "_adapters.1: must be a valid string; got 1",
        ),
    ],
)
def test_the_error_for_a_wrong_type_uses_the_terms_of_yaml(folder, wrong, line):
    assert line in rejection(folder, {"name": "test"} | wrong)


def test_invalid_yaml_is_rejected_with_its_line(folder):
    assert rejection(folder, "name: test\nengines: [") == (
        "profile.yaml:2 isn't YAML: while parsing a flow node expected the node content, but "
        "found '<stream end>'"
    )


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("2024-99-99", "'2024-99-99' isn't of type timestamp"),
        ("!!timestamp x", "'x' isn't of type timestamp"),
        ("!!bool x", "'x' isn't of type bool"),
        ("!!int ''", "'' isn't of type int"),
    ],
)
def test_a_value_that_yaml_cannot_convert_is_rejected_with_its_line(folder, value, reason):
    wrong = f"max_batch_size: 1\nname: {value}\n"
    assert rejection(folder, wrong) == f"profile.yaml:2 isn't YAML: {reason}"


def test_characters_that_json_writes_as_two_escapes_are_read(folder):
    (folder / "target").rename(folder / "\N{ROCKET}")
    assert load(folder, json.dumps(profile(engines=engines(checkpoint="\N{ROCKET}"))))


def test_half_a_surrogate_pair_in_a_profile_is_rejected(folder):
    wrong = r'name: "\ud83d"'
    assert rejection(folder, wrong).startswith("profile.yaml:1 isn't YAML: ")


def test_the_home_folder_of_an_unknown_user_is_rejected(folder):
    wrong = profile(engines=engines(checkpoint="~stranger/x"))
    assert "checkpoint: must be in a known home folder; got '~stranger/x'" in rejection(
        folder, wrong
    )


def test_a_repeated_key_is_rejected_with_its_line(folder):
    assert rejection(folder, "name: test\nadmission: {}\nname: again\n") == (
        "profile.yaml:3 isn't YAML: key 'name' is repeated"
    )


def test_the_error_for_an_unknown_kind_lists_the_known_kinds(folder):
    assert rejection(folder, profile(engines=engines(kind="pytorch"))) == (
        "profile.yaml:4: engines.target.kind: must be one of torch, llamacpp, "
        "emulated, tensorrtllm, llmapi, vllm, remote; got 'pytorch'"
    )


def test_the_error_for_a_relative_path_names_the_profile_folder(folder):
    (folder / "copies").mkdir()
    text = rejection(folder / "copies", profile())
    assert text.endswith(f"; 'target' is relative to the profile's folder, {folder}/copies")
    assert "is relative" not in rejection(folder, profile(engines=engines(checkpoint="/nowhere")))


def test_an_empty_profile_is_rejected(folder):
    assert rejection(folder, "# nothing yet\n") == (
        "profile.yaml is empty; a profile needs name and engines.target"
    )


@pytest.mark.parametrize("draft_len", [0, -1, "atuo"])
def test_draft_len_must_be_at_least_1_or_auto(folder, draft_len):
    text = rejection(folder, profile(decoding={"draft_len": draft_len}))
    assert "decoding.draft_len: must be an integer of at least 1, or auto" in text


def test_a_profile_that_is_nested_too_deep_is_rejected(tmp_path):
    path = tmp_path / "deep.yaml"
    path.write_text("[" * 9999)
    with pytest.raises(TandemError, match=r"deep\.yaml isn't YAML"):
        deployment.load(path)
