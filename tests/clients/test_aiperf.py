"""NVIDIA's aiperf can measure streamed chats."""

import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from .conftest import API_KEY

REQUESTS, LENGTH = 12, 24
DRAFTS = "vllm:spec_decode_num_drafts_total"


class Profile(NamedTuple):
    """The output and files of aiperf, and the gateway's counters for aiperf's requests."""

    printed: str
    folder: Path
    counted: Counter[str]

    @property
    def results(self):
        return json.loads((self.folder / "profile_export_aiperf.json").read_text())


@pytest.fixture(scope="module")
def profile(run, gateway, pair, tmp_path_factory):
    folder = tmp_path_factory.mktemp("aiperf")
    before = gateway.counters()
    printed = run(
        "aiperf",
        "profile",
        *("--model", "bls_stream"),
        *("--url", gateway.url),
        *("--api-key", API_KEY),
        *("--endpoint-type", "chat", "--streaming"),
        *("--tokenizer", pair / "target"),
        *("--prompt-corpus", "coding"),
        *("--prompt-input-tokens-mean", 32),
        *("--prompt-output-tokens-mean", LENGTH),
        *("--extra-inputs", "temperature:0", "ignore_eos:true"),
        *("--request-count", REQUESTS),
        *("--concurrency", 2),
        *("--random-seed", 1),
        *("--ui-type", "none"),
        "--no-gpu-telemetry",
        *("--output-artifact-dir", folder),
    )
    return Profile(printed, folder, gateway.counters() - before)


def test_every_request_of_aiperf_is_answered(profile):
    results = profile.results
    assert results["is_complete"]
    assert results["error_summary"] == []
    assert results["request_count"]["avg"] == REQUESTS
    assert results["usage_completion_tokens"]["sum"] == REQUESTS * LENGTH


def test_aiperfs_speculation_table_equals_the_gateways_counters(profile):
    assert "Spec Decode" in profile.printed
    assert "Draft Acceptance Rate (%)" in profile.printed
    results, counted = profile.results, profile.counted
    drafted = counted["vllm:spec_decode_num_draft_tokens_total"]
    accepted = counted["vllm:spec_decode_num_accepted_tokens_total"]
    assert 0 < accepted < drafted
    histogram = results["pooled_spec_decode_acceptance_histogram"]
    assert sum(histogram.values()) == counted[DRAFTS]
    assert sum(int(length) * rounds for length, rounds in histogram.items()) == accepted
    rate = results["spec_decode_overall_draft_acceptance_rate"]["avg"]
    assert rate == pytest.approx(100 * accepted / drafted)


def test_aiperf_reads_the_gateways_counters(profile):
    exported = json.loads((profile.folder / "server_metrics_export.json").read_text())
    (series,) = exported["metrics"][DRAFTS.removesuffix("_total")]["series"]
    assert series["stats"]["total"] == profile.counted[DRAFTS]
