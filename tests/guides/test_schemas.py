"""Whatever is drawn by a schema's masks is valid by it; what cannot be is refused by keyword."""

import json

import numpy as np
import pytest
from scale import scaled
from schemas import REFUSED, complaint, schema_of
from small_guides import END, OTHER_END, allowed, matcher, spelled

from tandem.guides.errors import GuideError
from tandem.guides.refusals import keywords_of

LONGEST = 300  # tokens; what is longer is given up


def drawn(schema, seed):
    """The text of tokens drawn one by one among those that may come; None for a long one."""
    it, rng, text = matcher("json_schema", json.dumps(schema)), np.random.default_rng(seed), b""
    for _ in range(LONGEST):
        if it.complete:
            return text
        token = rng.choice(allowed(it.walk([]).masks[0]))
        if token in (END, OTHER_END):
            return text
        it.advance([int(token)])
        text += spelled(int(token))
    return None


@pytest.mark.parametrize("schemas", scaled(60, 200))
def test_what_masks_let_come_is_valid(schemas):
    texts = {seed: drawn(schema_of(seed), seed) for seed in range(schemas)}
    ended = {seed: text for seed, text in texts.items() if text is not None}
    assert len(ended) > 0.85 * schemas
    wrong = [complaint(schema_of(seed), text.decode()) for seed, text in ended.items()]
    assert not any(wrong), [why for why in wrong if why][:5]


@pytest.mark.parametrize("keyword", REFUSED)
def test_what_is_not_supported_is_refused_by_its_keyword(keyword):
    with pytest.raises(GuideError) as caught:
        matcher("json_schema", json.dumps(REFUSED[keyword]))
    assert keywords_of(str(caught.value))[0] == keyword
