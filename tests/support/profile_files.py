"""Writes and loads profiles of two small checkpoints."""

from pathlib import Path
from typing import Any

import yaml
from error_lines import error_line

from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment
from tandem.tools.profiles.deployment import Deployment


def profile(**changes: Any) -> dict[str, Any]:
    """Return a valid profile. changes: sections that replace the default sections."""
    whole = {
        "name": "test",
        "engines": {
            "target": {"checkpoint": "target", "max_draft_len": 8},
            "draft": {"checkpoint": "draft"},
        },
        "tokenizer": {"folder": "tokenizer"},
    }
    return whole | changes


def engines(**target: Any) -> dict[str, Any]:
    """Return an `engines` section without a draft. target: changes to the target's settings."""
    return {"target": {"checkpoint": "target", "max_draft_len": 8} | target}


def plan(folder: Path, draft: dict[str, Any] | None = None, /, **target: Any) -> Deployment:
    """Return the deployment of a target with these settings. draft: a draft engine's settings."""
    pair = {"target": {"checkpoint": "target"} | target}
    if draft is not None:
        pair["draft"] = {"checkpoint": "draft"} | draft
    return load(folder, profile(engines=pair))


def load(folder: Path, content: dict[str, Any] | str) -> Deployment:
    """Write a profile to a folder and load it."""
    path = folder / "profile.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return deployment.load(path)


def rejection(folder: Path, content: dict[str, Any] | str) -> str:
    """Return the one-line error of an invalid profile, without the folder's path."""
    return error_line(TandemError, load, folder, content).replace(f"{folder}/", "")
