"""Schemas as guides: samples texts from them, and returns the errors of rejected schemas."""

import json

import numpy as np
import pytest
from small_guides import END, OTHER_END, allowed, matcher, spelled

from tandem.guides.errors import GuideError

LONGEST = 300  # maximum tokens of a text; longer texts are discarded


def drawn(schema, seed, wishes=(), kind="json_schema"):
    """Return a text of randomly chosen allowed tokens, or None if it gets too long.

    wishes: texts that are usually chosen if they are allowed.
    """
    guide = schema if isinstance(schema, str) else json.dumps(schema)
    it, rng, text, left = matcher(kind, guide), np.random.default_rng(seed), b"", b""
    for _ in range(LONGEST):
        if it.complete:
            return text
        may = allowed(it.walk([]).masks[0])
        left = left or (rng.choice(wishes).encode() if wishes else b"")
        wished = [token for token in may if spelled(token) and left.startswith(spelled(token))]
        followed = bool(wished) and rng.random() < 0.95
        token = int(rng.choice(wished if followed else may))
        left = left[len(spelled(token)) :] if followed else b""
        if token in (END, OTHER_END):
            return text
        it.advance([token])
        text += spelled(token)
    return None


def refused(schema):
    """Return the errors of a schema alone, inside a grammar, and through a reference."""
    told = []
    for whole in (schema, {"items": schema}, {"$ref": "#/x", "x": schema}):
        for kind, guide in (
            ("json_schema", json.dumps(whole)),
            ("lark_grammar", f"start: %json {json.dumps(whole)}"),
        ):
            with pytest.raises(GuideError) as caught:
                matcher(kind, guide)
            told.append(str(caught.value).removeprefix("at 1(14): "))
    [one] = set(told)
    return one
