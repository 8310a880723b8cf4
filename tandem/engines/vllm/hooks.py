"""Checks that this vLLM has the functions that the plug-in overrides. Doesn't import vLLM."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tandem.engines.errors import LoadError

TESTED = ("0.27.1", "0.32.0")
# The parameters, after `self`, of each function that the plug-in overrides or replaces.
HOOKS = {
    "get_grammar_bitmask": ("scheduler_output",),
    "_update_after_schedule": ("scheduler_output",),
    "_update_request_with_output": ("request", "new_token_ids", "is_stale"),
    "_get_spec_decode_draft_probs": ("spec_decode_metadata",),
}
# The first parameters, after `self`, of the methods of `KVCacheManager` that sessions replace.
SESSION_HOOKS = {
    "get_computed_blocks": ("request",),
    "allocate_slots": ("request", "num_new_tokens", "num_new_computed_tokens"),
    "free": ("request",),
}


def check_hooks(version: str, *owners: type) -> None:
    """Raise a one-line LoadError if a hook is missing or its parameters differ from HOOKS.

    owners: vLLM's classes; each hook is a method of one of them.
    """
    for name, expected in HOOKS.items():
        hook = next((getattr(owner, name) for owner in owners if hasattr(owner, name)), None)
        parameters = _parameters(hook)
        if parameters != expected:
            raise LoadError(
                f"vLLM {version} isn't supported: {name} "
                + (f"has the parameters {', '.join(parameters)}" if hook else "is missing")
                + f"; install vLLM {' or '.join(TESTED)}"
            )


def why_no_sessions(manager: Any) -> str | None:
    """Return why this `KVCacheManager` can't keep blocks for a text's next call, or None."""
    for name, expected in SESSION_HOOKS.items():
        parameters = _parameters(getattr(type(manager), name, None))
        if parameters[: len(expected)] != expected:
            return f"its KVCacheManager.{name} is different"
    kinds: Any = getattr(getattr(manager, "coordinator", None), "single_type_managers", ())
    if [type(kind).__name__ for kind in kinds] != ["FullAttentionManager"]:
        return "the model has more than full attention"
    fields = "req_to_blocks", "num_cached_block", "block_size"
    missing = [name for name in fields if not hasattr(kinds[0], name)]
    return f"its FullAttentionManager has no {missing[0]}" if missing else None


def _parameters(function: Callable[..., Any] | None) -> tuple[str, ...]:
    """Return the names of a method's parameters, without `self`."""
    return () if function is None else tuple(inspect.signature(function).parameters)[1:]
