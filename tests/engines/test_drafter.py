"""Which lookup indexes of ended calls are reused or evicted."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.engines.request import EngineRequest
from tandem.engines.torch.drafter import Drafters
from tandem.engines.torch.settings import TorchSettings


@pytest.fixture
def drafters():
    """Drafters of an engine with a KV cache of 64 tokens."""
    return Drafters(
        TorchSettings(
            checkpoint="",
            max_seq_len=64,
            kv_cache_tokens=64,
            max_draft_len=4,
            prompt_lookup_num_tokens=4,
        )
    )


def request(ids) -> EngineRequest:
    return EngineRequest("r", np.array(ids, np.int32), 8)


def test_drafters_are_evicted_if_their_indexes_exceed_the_kv_cache(drafters):
    ended = [drafters.drafter_for(request([n, *range(30)])) for n in range(3)]
    for drafter in ended:
        drafters.keep(drafter)
    again = [drafters.drafter_for(request([n, *range(40)])) for n in range(3)]
    assert [one is other for one, other in zip(ended, again, strict=True)] == [False, True, True]
