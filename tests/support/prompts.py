"""The demo's prompts, grouped by kind."""

import json
from pathlib import Path

ROWS = [
    json.loads(line)
    for line in Path(__file__).parents[2].joinpath("demo", "prompts.jsonl").read_text().splitlines()
]
COMPLETIONS = [row["prompt"] for row in ROWS if row["kind"] == "completion"]
EDITS = [row["prompt"] for row in ROWS if row["kind"] == "edit"]
