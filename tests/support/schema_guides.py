"""What comes of schemas as guides: texts that are drawn by them, and why they are refused."""

import json

import numpy as np
import pytest
from small_guides import END, OTHER_END, allowed, matcher, spelled

from tandem.guides.errors import GuideError

LONGEST = 300  # tokens; what is longer is given up


def drawn(schema, seed, wishes=(), kind="json_schema"):
    """The text of tokens drawn one by one among those that may come; None for a long one.

    wishes: texts that mostly come where they may.
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
    """Why a schema is refused, alone, in a grammar, and where only a reference makes it one."""
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
