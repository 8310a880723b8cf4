"""The profile of a small server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def write_profile(pair: Path, file: Path, **sections: Any) -> Path:
    """Write the profile of a small server on what `checkpoints.write_pair` wrote to `pair`."""
    engine = {"threads": 1, "max_seq_len": 512, "kv_cache_tokens": 32768}
    profile = {
        "name": "small",
        "engines": {
            "target": {**engine, "checkpoint": str(pair / "target"), "max_draft_len": 8},
            "draft": {**engine, "checkpoint": str(pair / "draft")},
        },
        "tokenizer": {"folder": str(pair / "tokenizer")},
    }
    for section, keys in sections.pop("engines", {}).items():
        profile["engines"][section] |= keys
    # Drafts that nobody asked otherwise for do not depend on what took how long.
    profile["decoding"] = {"draft_len": 4} | sections.pop("decoding", {})
    file.write_text(yaml.safe_dump(profile | sections))
    return file
