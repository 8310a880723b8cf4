"""Emulated engines with other times than their profile's."""

from __future__ import annotations

from tandem.tools.profiles.engines.emulated import EmulatedDraft
from tandem.tools.profiles.profile import Profile


def slowed(profile: Profile, *, times: float = 1.0, batch_slope: float | None = None) -> Profile:
    """Return a profile whose emulated engines are slower; another one is returned as it is.

    times: what each of their steps takes that many times as long. What a machine takes beside its
    engines then weighs less by that factor, as it would on a faster machine. batch_slope: the part
    by which each other call under way makes a step longer; None: as the profile says.
    """
    changed = {}
    for name, engine in profile.engines:
        if isinstance(engine, EmulatedDraft):
            figures = {
                "step_ms": engine.step_ms * times,
                "prefill_ms_per_token": engine.prefill_ms_per_token * times,
                "batch_slope": engine.batch_slope if batch_slope is None else batch_slope,
            }
            changed[name] = engine.model_copy(update=figures)
    return profile.model_copy(update={"engines": profile.engines.model_copy(update=changed)})
