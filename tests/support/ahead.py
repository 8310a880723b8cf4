"""Requests and settings for tests of drafting ahead."""

import scripted
from hypothesis import strategies as st
from scripted import SETTINGS, with_engines
from strategies import requests_of

from tandem.bls.request import Request

AHEAD = with_engines(SETTINGS, draft={"branches": True})


def request_of(**changes) -> Request:
    return scripted.request_of(**{"max_tokens": 40, "draft_ahead": True, **changes})


requests = requests_of(request_of, drafters=["draft_model", "hybrid"], max_min_tokens=20)
fates = st.lists(
    st.sampled_from(["in time", "in time", "in time", "late", "failed", "rejected"]),
    min_size=1,
    max_size=5,
).map(tuple)
