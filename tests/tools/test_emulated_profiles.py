"""Emulated profiles use published speeds, and errors in emulated profiles are reported."""

import pytest
import yaml
from paths import BENCHMARKS, PROFILES
from profile_files import load

from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment

LANGUAGE = {"alpha": 0.8}


SHIPPED = (*PROFILES.glob("emulated-*.yaml"), *BENCHMARKS.glob("*-drafter.yaml"))


@pytest.mark.parametrize("path", sorted(SHIPPED), ids=lambda p: p.stem)
def test_every_emulated_profile_can_be_deployed(path):
    planned = deployment.load(path)
    assert planned.profile.name == path.stem
    assert planned.target.parameters["engine"] == "emulated"
    assert planned.drafters[0] == "hybrid"
    assert planned.target.max_draft_len == 32


def test_target_and_draft_with_different_languages_are_rejected(tmp_path):
    profile = yaml.safe_load((PROFILES / "emulated-zero.yaml").read_text())
    for engine in profile["engines"].values():
        engine["tokenizer"] = str(PROFILES.parent / "demo" / "tokenizer")
    profile["engines"]["draft"]["language"] = {"alpha": 0.7}
    with pytest.raises(
        TandemError, match=r"engines\.draft\.language: must be the same as the target's"
    ):
        load(tmp_path, profile)


def plan(folder, **changes):
    """Return the deployment of emulated engines. changes: settings of the target."""
    engine = {"kind": "emulated", "tokenizer": "tokenizer", "language": LANGUAGE}
    engines = {"target": engine | changes, "draft": engine}
    return load(folder, {"name": "test", "engines": engines})


def test_the_vocabulary_can_be_larger_than_the_tokenizer(folder):
    size = plan(folder).tokenizer.size
    assert plan(folder).target.vocab_size == size
    padded = plan(folder, vocab_size=128_256)
    assert padded.target.vocab_size == 128_256
    assert int(padded.target.parameters["high_id"]) <= size


def test_emulated_engines_never_emit_special_tokens(folder):
    planned = plan(folder)
    low, high = (int(planned.target.parameters[name]) for name in ("low_id", "high_id"))
    assert not any(low <= end < high for end in planned.end_ids)
    assert high - low >= planned.tokenizer.size - 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 5}, r"engines\.target\.vocab_size: must be at least 300, the tokens of"),
        ({"step": 5}, r"engines\.target\.step: unknown key; did you mean 'step_ms'"),
        (
            {"language": {"alpha": 2.0}},
            r"engines\.target\.language\.alpha: must be at most 1; got 2\.0",
        ),
        ({"tokenizer": "nowhere"}, r"engines\.target\.tokenizer: .*nowhere has no tokenizer\.json"),
        (
            {"language": LANGUAGE | {"hard_alpha": 0.5, "stay_easy": 1.0, "stay_hard": 1.0}},
            r"engines\.target: stay_easy and stay_hard must not both be 1",
        ),
    ],
)
def test_an_invalid_setting_is_reported_with_its_key(folder, changes, message):
    with pytest.raises(TandemError, match=message):
        plan(folder, **changes)
