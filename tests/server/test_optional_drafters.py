"""Lookup pools with earlier answers, and custom drafters of a deployment."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from entries import OUTPUTS, ask, ask_one, said
from live_triton import eventually
from metrics import Change, scrape, settle, total

from tandem.contract import entry

from .conftest import DOCUMENT, LINE, MAX_POOL_TOKENS, gateway_to

PROMPTS = [f"def number_{n}(" for n in range(8)]
LENGTH = 120
LOOKUP = {"drafter": "prompt_lookup", "max_tokens": LENGTH}
POOL_TOKENS = "tandem_lookup_pool_tokens"
POOLS = "/lookup_pools"


@pytest.fixture(scope="module")
def baseline(emulated):
    return ask(emulated, "ensemble", PROMPTS, max_tokens=LENGTH)


def by_pool(server, pool=None, prompt=PROMPTS[0], **values):
    """Return an answer's ids, its number of rounds, and its accepted tokens from the pool."""
    outputs = (*OUTPUTS, entry.SPEC_DECODE_STATISTICS)
    values = LOOKUP | ({"lookup_pool": pool} if pool else {}) | values
    answer = ask_one(server, "bls", prompt, outputs=outputs, **values)
    earned = json.loads(answer.outputs[entry.SPEC_DECODE_STATISTICS][0])["by_drafter"]
    copied = earned.get("lookup_pool", {}).get("num_accepted_draft_tokens", 0)
    return answer.ids, answer.rounds, copied


@pytest.mark.parametrize("pool", ["team-a", "team-b", None])
def test_documents_are_drafted_only_for_their_own_pool(emulated, pool):
    for owner, document in (("team-a", DOCUMENT), ("team-b", LINE)):
        pooled = {"lookup_pool": pool} if pool else {}
        outputs = (*OUTPUTS, entry.SPEC_DECODE_STATISTICS)
        prompt = document[: document.index(" ", 30)]
        answer = ask_one(emulated, "bls", prompt, outputs=outputs, **LOOKUP | pooled)
        statistics = json.loads(answer.outputs[entry.SPEC_DECODE_STATISTICS][0])
        first = statistics["rounds"][0]["drafter"]
        assert (first == "lookup_pool") == (pool == owner)


@pytest.mark.parametrize("drafter", ["prompt_lookup", "hybrid"])
def test_an_answer_that_its_pool_contains_takes_fewer_rounds(emulated, baseline, drafter):
    values = {"drafter": drafter, "num_draft_tokens": 4, "prompt_lookup_num_tokens": 16}
    first, rounds, copied = by_pool(emulated, f"again {drafter}", **values)
    assert copied == 0
    again, fewer, copied = by_pool(emulated, f"again {drafter}", **values)
    assert first == again == baseline[0].ids
    assert copied > LENGTH / 2
    assert fewer < rounds / 2


def test_concurrent_requests_that_share_pools_get_correct_output(emulated, baseline):
    values = LOOKUP | {"lookup_pool": "batch"}
    for _ in range(2):
        answers = ask(emulated, "bls", PROMPTS, **values)
        assert said(answers) == said(baseline)
    with ThreadPoolExecutor(16) as crowd:
        asked = crowd.map(
            lambda n: by_pool(emulated, f"crowd {n % 3}", PROMPTS[n % 8])[0], range(32)
        )
        assert list(asked) == [baseline[n % 8].ids for n in range(32)]
    settle(emulated)
    assert total(emulated, POOL_TOKENS) <= MAX_POOL_TOKENS


def test_an_operator_lists_and_empties_pools(emulated):
    headers = {"authorization": "Bearer operator"}
    with (
        gateway_to(emulated, emulated.tokenizer, operator_keys=("operator",)) as url,
        httpx2.Client(base_url=url, headers=headers) as operator,
    ):
        by_pool(emulated, "kept")
        assert eventually(lambda: by_pool(emulated, "kept")[2] > 0)  # it has joined
        before = operator.get(POOLS).json()["data"]
        by_pool(emulated, "emptied")
        assert eventually(lambda: len(operator.get(POOLS).json()["data"]) > len(before))
        (added,) = [pool for pool in operator.get(POOLS).json()["data"] if pool not in before]
        assert (added["outputs"], added["tokens"]) == (1, LENGTH)
        assert operator.delete(f"{POOLS}/{added['id']}").json()["data"] == [added]
        assert operator.delete(f"{POOLS}/{added['id']}").status_code == 404
        assert by_pool(emulated, "emptied")[2] == 0
        assert by_pool(emulated, "kept")[2] > 0


@pytest.mark.parametrize("drafter", ["repeat", "faulty"])
def test_a_custom_drafter_does_not_change_the_output(emulated, baseline, drafter):
    answers = ask(emulated, "bls", PROMPTS, max_tokens=LENGTH, drafter=drafter)
    assert said(answers) == said(baseline)
    drafted = sum(a.draft_tokens for a in answers)
    assert (drafted > 0) == (drafter == "repeat")


def test_a_custom_drafter_uses_its_settings_and_has_metrics(emulated):
    names = {(name, dict(labels).get("drafter")) for name, labels in scrape(emulated)}
    assert {("tandem_rounds_total", "repeat"), ("tandem_rounds_total", "faulty")} <= names
    for asked, longest in ((8, 3), (2, 2)):  # the drafter's period is 3
        change = Change(emulated)
        values = {"max_tokens": LENGTH, "drafter": "repeat", "num_draft_tokens": asked}
        outputs = (*OUTPUTS, entry.SPEC_DECODE_STATISTICS)
        answer = ask_one(emulated, "bls", PROMPTS[0], outputs=outputs, **values)
        statistics = json.loads(answer.outputs[entry.SPEC_DECODE_STATISTICS][0])
        assert statistics["by_drafter"].keys() == {"repeat"}
        assert max(round_["num_draft_tokens"] for round_ in statistics["rounds"]) == longest
        change.until_ended(1)
        drafted = change.of("spec_decode_num_draft_tokens_total", drafter="repeat")
        assert drafted == answer.draft_tokens > 0


def test_an_error_in_a_custom_drafter_is_counted_and_logged(emulated):
    change = Change(emulated)
    ask_one(emulated, "bls", PROMPTS[0], max_tokens=LENGTH, drafter="faulty")
    change.until_ended(1)
    assert change.of("tandem_drafter_failures_total", drafter="faulty") == 1
    line = "drafter 'faulty' failed: IndexError: what was sought (faulty.py, line 9)"
    assert eventually(lambda: line in emulated.log.path.read_text())
