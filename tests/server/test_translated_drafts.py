"""A draft model can have its own vocabulary: here, the target's with ids in reverse order."""

import json
import shutil

import pytest
from entries import ask, said
from prompts import COMPLETIONS
from safetensors.torch import load_file, save_file
from tokenizer_kinds import renumbered, write
from tokenizers import Tokenizer

from tandem.tools.profiles import deployment

from .conftest import serving

pytestmark = pytest.mark.heavy
SOME = COMPLETIONS[::8]
LENGTH = 32
DRAFTED = {"drafter": "draft_model", "num_draft_tokens": 4, "max_tokens": LENGTH}


@pytest.fixture(scope="module")
def translating(embedded, tmp_path_factory):
    """The pair of `server`, but the draft's vocabulary has its ids in reverse order."""
    folder, draft = tmp_path_factory.mktemp("translating"), embedded.profile.engines.draft
    shutil.copytree(draft.checkpoint, folder / "draft")
    own = Tokenizer.from_file(str(embedded.tokenizer.folder / "tokenizer.json"))
    write(renumbered(own), folder / "draft", eos_token="<|endoftext|>")
    weights = load_file(folder / "draft" / "model.safetensors")
    name = "model.embed_tokens.weight"
    weights[name] = weights[name].flip(0)
    save_file(weights, folder / "draft" / "model.safetensors", {"format": "pt"})
    for file in ("config.json", "generation_config.json"):
        config = json.loads((folder / "draft" / file).read_text())
        end = own.get_vocab_size() - 1
        config |= {"eos_token_id": end, "pad_token_id": end}
        (folder / "draft" / file).write_text(json.dumps(config))
    changed = draft.model_copy(update={"checkpoint": folder / "draft"})
    engines = embedded.profile.engines.model_copy(update={"draft": changed})
    planned = deployment.check(embedded.profile.model_copy(update={"engines": engines}))
    with serving(planned, folder) as running:
        yield running


def test_translated_drafts_have_the_acceptance_rate_of_untranslated_drafts(server, translating):
    translated = ask(translating, "bls", SOME, **DRAFTED)
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
