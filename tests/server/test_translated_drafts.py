"""A draft model can have its own vocabulary. The demo's draft is tested with reversed ids."""

import json
import shutil

import pytest
from benchmarks.demo_models.checkpoint import load_checkpoint
from benchmarks.demo_models.corpus import DEMO
from benchmarks.demo_models.evaluate import rounds, shares
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
    """The demo's pair, which writes real text, but the draft's ids are in reverse order."""
    folder = tmp_path_factory.mktemp("translating")
    shutil.copytree(DEMO / "draft", folder / "draft")
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
    engines = embedded.profile.engines
    changed = {
        name: getattr(engines, name).model_copy(update={"checkpoint": path, "max_seq_len": 1024})
        for name, path in (("target", DEMO / "target"), ("draft", folder / "draft"))
    }
    engines = engines.model_copy(update=changed)
    planned = deployment.check(embedded.profile.model_copy(update={"engines": engines}))
    with serving(planned, folder) as running:
        yield running


def test_translated_drafts_have_the_acceptance_rate_of_untranslated_drafts(translating, tokenizer):
    answers = ask(translating, "bls", SOME, **DRAFTED)
    assert said(answers) == said(ask(translating, "ensemble", SOME, max_tokens=LENGTH))
    target, draft = load_checkpoint("target"), load_checkpoint("draft")
    untranslated = 0
    for prompt, answer in zip(SOME, answers, strict=True):
        guesses, _ = shares(target, draft, tokenizer.encode(prompt).ids, answer.ids)
        untranslated += len(rounds(answer.ids, guesses, draft_len=4))
    assert sum(answer.rounds for answer in answers) <= untranslated / 0.9
    assert sum(answer.accepted_tokens for answer in answers) > LENGTH


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
