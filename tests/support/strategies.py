"""Requests and languages for property tests of the loop."""

from collections.abc import Callable, Sequence

from hypothesis import strategies as st
from scripted import END, Language, ids

from tandem.bls.request import Request

languages = st.builds(Language, st.integers(0, 10**6), st.sampled_from([2, 10, 50]))


def requests_of(
    request_of: Callable[..., Request], *, drafters: Sequence[str], max_min_tokens: int
) -> st.SearchStrategy[Request]:
    """Return a strategy for requests with all options that affect the output.

    request_of: creates a request from these options, with defaults for other options.
    """
    return st.builds(
        request_of,
        prompt_ids=st.lists(st.integers(0, 5), min_size=1, max_size=8).map(lambda t: ids(*t)),
        max_tokens=st.integers(1, 40),
        min_tokens=st.integers(0, max_min_tokens),
        draft_len=st.integers(1, 8),
        prompt_lookup_num_tokens=st.integers(1, 10),
        max_matching_ngram_size=st.integers(1, 4),
        drafter=st.sampled_from(drafters),
        stop_strings=st.lists(st.text("ab é", min_size=1, max_size=4), max_size=2).map(tuple),
        end_ids=st.sampled_from([(END, 6), (END,), ()]),
        stream=st.booleans(),
    )
