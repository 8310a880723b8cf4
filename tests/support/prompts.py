"""The demo's prompts, grouped by kind."""

import json

from paths import ROOT

ROWS = [
    json.loads(line)
    for line in (ROOT / "tandem" / "demo" / "prompts.jsonl").read_text().splitlines()
]
COMPLETIONS = [row["prompt"] for row in ROWS if row["kind"] == "completion"]
EDITS = [row["prompt"] for row in ROWS if row["kind"] == "edit"]
