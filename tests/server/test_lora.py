"""LoRA adapters on a live server give the output of the merged model with every drafter."""

import pytest
import yaml
from adapters import generate
from checkpoints import write_adapter, write_pair
from entries import ask_one, rejection
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from tandem.tools.profiles import deployment

from .conftest import gateway_to, openai_client, serving

pytestmark = pytest.mark.heavy
PROMPT = "def add(a, b):\n    return a"
LENGTH = 40
DRAFTERS = ("none", "draft_model", "prompt_lookup", "hybrid")


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """A server with two adapters, and the model without an adapter and merged with each."""
    folder = tmp_path_factory.mktemp("lora")
    write_pair(folder)
    models = [AutoModelForCausalLM.from_pretrained(folder / "target") for _ in range(3)]
    write_adapter(folder / "sql", models[1], seed=1, targets=("q_proj", "v_proj", "down_proj"))
    write_adapter(folder / "legal", models[2], seed=2, targets=("k_proj", "gate_proj"))
    draft = AutoModelForCausalLM.from_pretrained(folder / "draft")
    write_adapter(folder / "draft-sql", draft, seed=1, targets=("q_proj", "v_proj", "down_proj"))
    profile = {
        "name": "lora",
        "engines": {
            "target": {
                "checkpoint": "target",
                "threads": 1,
                "lora_adapters": {"sql": "sql", "legal": "legal"},
            },
            "draft": {
                "checkpoint": "draft",
                "threads": 1,
                "lora_adapters": {"sql": "draft-sql"},
            },
        },
        "tokenizer": {"folder": "tokenizer"},
        "entries": [{"name": "bls_stream", "kind": "stream"}, {"name": "bls", "kind": "forward"}],
    }
    (folder / "profile.yaml").write_text(yaml.safe_dump(profile))
    with serving(deployment.load(folder / "profile.yaml"), folder) as running:
        yield running, models, folder / "tokenizer"


def asked(name, **values):
    return {"max_tokens": LENGTH, "end_id": -1, **({"lora_name": name} if name else {}), **values}


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_drafter_gives_the_merged_models_output(adapted, drafter):
    server, models, folder = adapted
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(PROMPT).ids
    for name, model in zip((None, "sql", "legal"), models, strict=True):
        answer = ask_one(server, "bls", PROMPT, **asked(name, drafter=drafter))
        assert answer.ids == generate(model, ids, LENGTH)


def test_a_seed_gives_the_same_output_with_every_drafter(adapted):
    server, _, _ = adapted
    sampled = asked("sql", temperature=0.8, seed=3)
    texts = {tuple(ask_one(server, "bls", PROMPT, drafter=d, **sampled).ids) for d in DRAFTERS}
    assert len(texts) == 1


def test_the_error_for_an_unknown_adapter_lists_the_known_adapters(adapted):
    assert rejection(adapted[0], "bls", **asked("sq")) == (
        "input 'lora_name': 'sq' isn't known; choose one of: legal, sql"
    )


def test_a_gateway_serves_each_adapter_as_a_model(adapted):
    server, _, tokenizer = adapted
    with gateway_to(server, tokenizer) as url, openai_client(url) as client:
        listed = {model.id: model for model in client.models.list()}
        assert listed["sql"].parent == "bls_stream"
        answer = client.completions.create(
            model="sql", prompt=PROMPT, max_tokens=LENGTH, temperature=0
        )
    expected = ask_one(server, "bls", PROMPT, max_tokens=LENGTH, lora_name="sql")
    assert answer.choices[0].text == expected.text
