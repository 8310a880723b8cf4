"""Samples random texts from schemas, and returns the errors of rejected schemas."""

import json

import numpy as np
import pytest
from small_guides import END, OTHER_END, allowed, matcher, spelled

from tandem.guides.errors import GuideError

LONGEST = 300  # maximum number of tokens; longer texts are discarded


def drawn(schema, seed, wishes=(), kind="json_schema"):
    """Return a random text that a guide allows, or None if the text gets too long.

    wishes: texts that are usually chosen if the guide allows them.
    """
    guide = schema if isinstance(schema, str) else json.dumps(schema)
    it, rng, text, left = matcher(kind, guide), np.random.default_rng(seed), b"", b""
    for _ in range(LONGEST):
        if it.complete:
            return text
        may = allowed(it.walk([]).masks[0])
        left = left or (rng.choice(wishes).encode() if wishes else b"")
        wished = []
        if left:
            wished = [token for token in may if spelled(token) and left.startswith(spelled(token))]
        followed = bool(wished) and rng.random() < 0.95
        token = int(rng.choice(wished if followed else may))
        left = left[len(spelled(token)) :] if followed else b""
        if token in (END, OTHER_END):
            return text
        it.advance([token])
        text += spelled(token)
    return None


def rejected(schema):
    """Return the error of a schema, which is the same alone, in a grammar, and by reference."""
    errors = []
    for whole in (schema, {"items": schema}, {"$ref": "#/x", "x": schema}):
        for kind, guide in (
            ("json_schema", json.dumps(whole)),
            ("lark_grammar", f"start: %json {json.dumps(whole)}"),
        ):
            with pytest.raises(GuideError) as caught:
                matcher(kind, guide)
            errors.append(str(caught.value).removeprefix("at 1(14): "))
    [one] = set(errors)
    return one
