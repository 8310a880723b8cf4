"""A draft model can have its own vocabulary. The demo's draft is tested with reversed ids."""

import pytest
from entries import ask, said
from prompts import COMPLETIONS

from .conftest import serving

pytestmark = pytest.mark.heavy
SOME = COMPLETIONS[::8]
LENGTH = 32
DRAFTED = {"drafter": "draft_model", "num_draft_tokens": 4, "max_tokens": LENGTH}


def test_translated_drafts_have_the_acceptance_rate_of_untranslated_drafts(
    demo_pair, translating, tmp_path
):
    translated = ask(translating, "bls", SOME, **DRAFTED)
    with serving(demo_pair, tmp_path) as server:
        shared = ask(server, "bls", SOME, **DRAFTED)
    assert said(translated) == said(shared)
    rounds = [sum(answer.rounds for answer in answers) for answers in (shared, translated)]
    assert rounds[1] <= rounds[0] / 0.9
    accepted = sum(answer.accepted_tokens for answer in translated)
    assert accepted > LENGTH


@pytest.mark.parametrize(
    "values",
    [
        {"seed": 7, "temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.2},
        {"min_tokens": 28, "bad_words": [" a", "("]},
        {"stop_words": ["return", "\n\n"]},
        {"drafter": "hybrid"},
        {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "[a-z =\n]{9,40}"},
    ],
    ids="-".join,
)
def test_output_equals_the_target_alone_with_any_option(translating, values):
    prompts = SOME[:3]
    alone = ask(translating, "bls", prompts, **{**DRAFTED, **values, "drafter": "none"})
    assert said(ask(translating, "bls", prompts, **{**DRAFTED, **values})) == said(alone)
