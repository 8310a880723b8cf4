"""Drafters of a deployment's own on a live server: one that works, and one that has a fault."""

import json
from pathlib import Path

import pytest
import yaml
from entries import ask, ask_one, refusal
from metrics import Change, scrape, until

from tandem.tools import cli as command
from tandem.tools.profiles import deployment

from .conftest import serving

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "drafters" / "repeat.py"
EMULATED = {
    "kind": "emulated",
    "tokenizer": str(ROOT / "demo" / "tokenizer"),
    "language": {"alpha": 0.8},
}
FAULTY = """
from tandem.bls.drafters.registry import DrafterKind
from tandem.bls.drafters.drafter import Drafter

DRAFTER = DrafterKind(name="faulty", description="an error", module=__name__)

class Faulty(Drafter):
    def propose(self, sequence, limit):
        raise IndexError("what was sought")
        yield

def make(request, context):
    return Faulty()
"""
PROMPTS = [f"def number_{n}(" for n in range(4)]
LENGTH = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of emulated engines, with both drafters."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "repeat.py").write_text(EXAMPLE.read_text())
    (folder / "faulty.py").write_text(FAULTY)
    profile = {
        "name": "own",
        "engines": {"target": EMULATED | {"max_draft_len": 16}},
        "decoding": {"draft_len": 8},
        "drafters": [
            {"module": "repeat.py", "settings": {"period": 3}},
            {"module": "faulty.py"},
        ],
    }
    path = folder / "profile.yaml"
    path.write_text(yaml.safe_dump(profile))
    with serving(deployment.load(path), tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def control(server):
    return ask(server, "ensemble", PROMPTS, max_tokens=LENGTH)


@pytest.mark.parametrize("drafter", ["repeat", "faulty"])
def test_text_is_the_controls(server, control, drafter):
    answers = ask(server, "bls", PROMPTS, max_tokens=LENGTH, drafter=drafter)
    assert [a.ids for a in answers] == [a.ids for a in control]
    assert [a.text for a in answers] == [a.text for a in control]
    drafted = sum(a.number("total_draft_tokens") for a in answers)
    assert (drafted > 0) == (drafter == "repeat")


def test_its_settings_and_the_requests_length_shape_its_drafts(server):
    for asked, longest in ((8, 3), (2, 2)):
        answer = ask_one(
            server,
            "bls",
            PROMPTS[0],
            max_tokens=LENGTH,
            drafter="repeat",
            num_draft_tokens=asked,
            outputs=("text_output", "spec_decode_statistics"),
        )
        statistics = json.loads(answer.outputs["spec_decode_statistics"][0])
        assert statistics["by_drafter"].keys() == {"repeat"}
        assert max(round_["num_draft_tokens"] for round_ in statistics["rounds"]) == longest


def test_metrics_have_its_name(server):
    names = {(name, dict(labels).get("drafter")) for name, labels in scrape(server)}
    assert {("tandem_rounds_total", "repeat"), ("tandem_rounds_total", "faulty")} <= names
    change = Change(server)
    answer = ask_one(server, "bls", PROMPTS[0], max_tokens=LENGTH, drafter="repeat")
    change.until_ended(1)
    drafted = change.of("spec_decode_num_draft_tokens_total", drafter="repeat")
    assert drafted == answer.number("total_draft_tokens") > 0


def test_a_fault_is_counted_and_logged_in_one_line(server):
    change = Change(server)
    ask_one(server, "bls", PROMPTS[0], max_tokens=LENGTH, drafter="faulty")
    change.until_ended(1)
    assert change.of("tandem_drafter_failures_total", drafter="faulty") == 1
    line = "drafter 'faulty' failed: IndexError: what was sought (faulty.py, line 9)"
    until(lambda: line in server.log.path.read_text())  # it gets there by a thread of its own


def test_a_request_for_an_unknown_drafter_gets_the_known_names(server):
    assert "'oracle' given, this deployment has prompt_lookup, repeat, faulty, none" in refusal(
        server, "bls", drafter="oracle", max_tokens=2
    )
    assert "'repeat' has no logits" in refusal(
        server, "bls", drafter="repeat", use_draft_logits=True, max_tokens=2
    )


def test_generate_asks_for_it(server, control, capsys):
    arguments = ["--max-tokens", str(LENGTH), "--drafter", "repeat", "--explain"]
    assert command.main(["generate", PROMPTS[0], *arguments, "--url", server.grpc_url]) == 0
    shown = capsys.readouterr()
    assert shown.out.removesuffix("\n") == control[0].text.removesuffix("\n")
    assert "repeat" in shown.err


def test_commands_that_measure_a_running_server_know_its_name(server, capsys):
    arguments = ["--url", server.grpc_url, "--drafter", "oracle"]
    assert command.main(["bench", *arguments]) == 1
    assert "does not have it; it has prompt_lookup, repeat, faulty, none" in capsys.readouterr().err
