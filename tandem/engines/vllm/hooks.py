"""Checks that this vLLM has the functions that the plug-in overrides. Doesn't import vLLM."""

from __future__ import annotations

import inspect

from tandem.engines.errors import LoadError

TESTED = ("0.27.1", "0.32.0")
# The parameters, after `self`, of each function that the plug-in overrides or replaces.
HOOKS = {
    "get_grammar_bitmask": ("scheduler_output",),
    "_update_after_schedule": ("scheduler_output",),
    "_update_request_with_output": ("request", "new_token_ids", "is_stale"),
    "_get_spec_decode_draft_probs": ("spec_decode_metadata",),
}


def check_hooks(version: str, *owners: type) -> None:
    """Raise a one-line LoadError if a hook is missing or its parameters differ from HOOKS.

    owners: vLLM's classes; each hook is a method of one of them.
    """
    for name, expected in HOOKS.items():
        hook = next((getattr(owner, name) for owner in owners if hasattr(owner, name)), None)
        parameters = () if hook is None else tuple(inspect.signature(hook).parameters)[1:]
        if parameters != expected:
            raise LoadError(
                f"vLLM {version} isn't supported: {name} "
                + (f"has the parameters {', '.join(parameters)}" if hook else "is missing")
                + f"; install vLLM {' or '.join(TESTED)}"
            )
