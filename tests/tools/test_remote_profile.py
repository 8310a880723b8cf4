"""Profiles with remote engines are checked against the running servers."""

import json
import re

import pytest
import yaml
from paths import TOKENIZER
from remote_replicas import Replica

from tandem.contract import engine as tensors
from tandem.tools.commands.doctor import examine_profile
from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment
from tandem.tools.triton import repository

EMULATED = {"kind": "emulated", "tokenizer": str(TOKENIZER), "language": {"alpha": 0.8}}


@pytest.fixture
def profile(tmp_path):
    """A function that writes a profile and returns its path."""

    def write(name, **engines):
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"name": name, "engines": engines}))
        return path

    return write


@pytest.fixture
def facts(profile):
    """What a server says about its emulated target."""
    models = repository.models(deployment.load(profile("pool", target=EMULATED)))
    [text] = [model.parameters["facts"] for model in models if model.name == "target"]
    return json.loads(text)


@pytest.fixture
def pool(facts):
    """A server of these facts."""
    replica = Replica()
    replica.facts = json.dumps(facts)
    yield replica
    replica.server.stop(0)


@pytest.fixture
def loop(profile, pool):
    """The path of a profile whose draft is on that server."""
    return profile("loop", target=EMULATED, draft={"kind": "remote", "url": pool.url, "model": "m"})


def rejection(path):
    with pytest.raises(TandemError) as caught:
        deployment.load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_remote_draft_takes_its_size_from_the_server(loop, pool, facts):
    planned = deployment.load(loop)
    assert planned.draft.vocab_size == facts["vocab_size"]
    assert json.loads(planned.draft.parameters["expected"]) == facts


def test_another_vocabulary_is_rejected(loop, pool, facts):
    pool.facts = json.dumps(facts | {"vocabulary": "other"})
    assert "engines.draft.tokenizer: " in rejection(loop)
    assert rejection(loop).endswith("isn't the tokenizer of the engine; set the engine's own")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"facts": ""}, "isn't one of Tandem's engines, or is from an earlier version"),
        ({"facts": "{}"}, "the engine is from another version"),
        ({"inputs": tensors.NVIDIA_INPUTS}, "use the same version of Tandem"),
    ],
)
def test_another_version_is_rejected(loop, pool, change, message):
    vars(pool).update(change)
    assert message in rejection(loop)


def test_a_server_that_is_not_reachable_is_named(loop, pool):
    pool.server.stop(0).wait()
    assert re.search(rf"engines.draft.url: can't reach model 'm' at {pool.url}: ", rejection(loop))


def test_doctor_checks_all_replicas_and_the_profile(profile, pool, facts, capsys):
    other = Replica()
    other.facts = json.dumps(facts | {"max_seq_len": 64})
    gone = Replica()
    gone.server.stop(0).wait()
    urls = [pool.url, other.url, gone.url]
    draft = {"kind": "remote", "url": urls, "model": "m"}
    found = {f.subject: f for f in examine_profile(profile("loop", target=EMULATED, draft=draft))}
    other.server.stop(0)
    assert found[f"draft at {pool.url}"].good
    assert "all replicas must be equal" in found[f"draft at {other.url}"].fix
    assert f"can't reach model 'm' at {gone.url}" in found[f"draft at {gone.url}"].fix
    assert found["profile"].good


def test_doctor_reports_a_profile_that_does_not_fit(loop, pool, facts):
    pool.facts = json.dumps(facts | {"vocabulary": "other"})
    *_, last = examine_profile(loop)
    assert not last.good
    assert "isn't the tokenizer of the engine" in last.fix
