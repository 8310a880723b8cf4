"""The table that shows the rounds of an answer."""

import io

from rich.console import Console

from tandem.tools.client.terminal import COLUMNS, explanation

ROUND = {
    "drafter": "prompt_lookup",
    "planned_tokens": 16,
    "stop_probability": 0.125,
    "num_draft_tokens": 16,
    "num_accepted_tokens": 15,
    "num_plain_tokens": 0,
    "num_branches": 128,
    "drafted_ahead": True,
    "draft_seconds": 0.1234,
    "target_seconds": 12.3456,
}


def test_the_table_of_rounds_fits_80_columns():
    file = io.StringIO()
    rounds = [ROUND] * 100 + [ROUND | {"num_plain_tokens": 32, "drafter": "none"}]
    Console(file=file, width=80).print(explanation({"rounds": rounds}))
    header, *rows = file.getvalue().splitlines()
    assert header.split() == " ".join(COLUMNS).split()
    assert len(rows) == len(rounds)
    assert rows[0].split() == [
        "1",
        "prompt_lookup",
        "128*",
        "16",
        "0.125",
        "16",
        "15",
        "123.4",
        "12345.6",
    ]
    assert rows[-1].split() == ["101", "none:", "32", "plain", "12345.6"]
