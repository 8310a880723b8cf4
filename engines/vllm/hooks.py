"""Checks that this vLLM has the functions that the plug-in overrides. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tandem.engines.errors import LoadError

TESTED = ("0.27.1", "0.32.0")
# The parameters of each function that the plug-in overrides or replaces, after `self`.
HOOKS = {
    "Scheduler.get_grammar_bitmask": ("scheduler_output",),
    "Scheduler._update_after_schedule": ("scheduler_output",),
    "Scheduler._update_request_with_output": ("request", "new_token_ids", "is_stale"),
    "GPUModelRunner._get_spec_decode_draft_probs": ("spec_decode_metadata",),
}


def check_hooks(version: str, found: Mapping[str, Callable[..., Any] | None]) -> None:
    """Raise LoadError, in one line, if a hook is missing or has other parameters than expected."""
    for name, expected in HOOKS.items():
        hook = found.get(name)
        parameters = () if hook is None else tuple(inspect.signature(hook).parameters)[1:]
        if parameters != expected:
            was = f"has parameters {', '.join(parameters)}" if hook else "is missing"
            raise LoadError(
                f"vLLM {version} can't verify drafts: {name} {was}; install vLLM "
                f"{' or '.join(TESTED)}"
            )
