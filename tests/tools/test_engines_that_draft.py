"""Profiles support engines that draft by themselves."""

import json

import pytest
from checkpoints import write_tokenizer
from error_lines import error_line
from profile_files import plan

from tandem.engines import kinds
from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment

SHIPPED = "llama-3.1-8b-llmapi"


def parameters_of(planned):
    """Return the decoded parameters of the target's model."""
    parameters = dict(planned.target.parameters)
    texts = ("engine", "checkpoint", "device", "dtype", "model")
    return {
        name: value if name in texts else json.loads(value) for name, value in parameters.items()
    }


LOOKUP = {
    "prompt_lookup_num_tokens": 10,
    "max_matching_ngram_size": 3,
}


def test_engine_is_the_only_drafter_that_the_loop_offers(folder):
    settings = plan(folder, kind="llmapi", prompt_lookup={}).loop_settings()
    assert settings.drafter == "engine"
    assert settings.drafters == ("engine",)
    assert settings.target.max_draft_len == 0


def test_an_llmapi_target_gets_its_model_and_lookup_settings(folder):
    planned = plan(folder, kind="llmapi", prompt_lookup=LOOKUP, max_batch_size=8)
    parameters = parameters_of(planned)
    assert parameters["speculative_config"] == {
        "decoding_type": "NGram",
        "max_draft_len": 10,
        "max_matching_ngram_size": 3,
        "is_use_oldest": False,
        "is_public_pool": False,
    }
    assert parameters["engine"] == "llmapi"
    assert parameters["model"] == str(folder / "target")
    assert parameters["max_batch_size"] == 8
    assert parameters["max_seq_len"] == planned.target.max_seq_len == 1024 - 10
    assert parameters["kv_cache_tokens"] == 16 * 1024
    assert planned.target.capabilities == kinds.LLMAPI_SPECULATIVE


def test_an_llmapi_model_can_be_outside_the_checkpoint_folder(folder):
    (folder / "target" / "model.safetensors").unlink()
    parameters = parameters_of(plan(folder, kind="llmapi", model="meta-llama/x"))
    assert parameters["model"] == "meta-llama/x"


def test_an_llmapi_target_can_use_a_draft_model(folder):
    planned = plan(folder, kind="llmapi", draft={"checkpoint": "draft", "draft_len": 5})
    parameters = parameters_of(planned)
    assert parameters["speculative_config"] == {
        "decoding_type": "Draft_Target",
        "max_draft_len": 5,
        "speculative_model": str(folder / "draft"),
    }


def test_an_llmapi_target_passes_on_speculative_config_and_llm_args(folder):
    config = {"decoding_type": "MTP", "num_nextn_predict_layers": 3}
    llm_args = {"moe_expert_parallel_size": 2}
    planned = plan(folder, kind="llmapi", speculative_config=config, llm_args=llm_args)
    assert parameters_of(planned)["speculative_config"] == config
    assert parameters_of(planned)["llm_args"] == llm_args
    assert planned.target.max_seq_len == 1024 - 3
    assert planned.target.capabilities == kinds.LLMAPI_SPECULATIVE


def test_an_llmapi_target_can_run_without_speculation(folder):
    planned = plan(folder, kind="llmapi")
    assert planned.target.capabilities == kinds.LLMAPI
    assert planned.loop_settings().drafters == ("none",)
    assert planned.target.max_seq_len == 1024


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (
            {"prompt_lookup": {}, "draft": {"checkpoint": "draft"}},
            "engines.target.draft: set prompt_lookup or draft, not both",
        ),
        (
            {"speculative_config": {"decoding_type": "NGram"}},
            "engines.target: speculative_config.max_draft_len must be at least 1",
        ),
        (
            {"llm_args": {"dtype": "float16"}},
            "engines.target: llm_args.dtype is set from other keys of the profile; remove it",
        ),
        (
            {"max_seq_len": 5, "prompt_lookup": {}},
            "engines.target.max_seq_len: must be more than the longest draft, 4 tokens; got 5",
        ),
        ({"enable_block_reuse": "yes"}, "engines.target.enable_block_reuse: must be"),
    ],
)
def test_conflicting_settings_are_rejected_with_their_key(folder, target, words):
    assert words in error_line(TandemError, plan, folder, kind="llmapi", **target)


def test_a_draft_model_with_another_vocabulary_is_rejected(folder):
    write_tokenizer(folder / "target")
    write_tokenizer(folder / "draft", size=280)
    assert "engines.target.draft.checkpoint" in error_line(
        TandemError, plan, folder, kind="llmapi", draft={"checkpoint": "draft"}
    )


def test_the_shipped_llmapi_profile_speculates_as_documented(shipped):
    planned = deployment.load(shipped(SHIPPED))
    config = parameters_of(planned)["speculative_config"]
    assert config["decoding_type"] == "NGram"
    assert (config["max_draft_len"], config["max_matching_ngram_size"]) == (4, 2)
    assert config["is_public_pool"] is False
    assert planned.loop_settings().drafter == "engine"


def test_an_engine_that_drafts_by_itself_has_no_baseline_entry(shipped):
    path = shipped(SHIPPED)
    control = "  - {name: ensemble, kind: forward, drafter: none}\n\nadmission"
    path.write_text(path.read_text().replace("\nadmission", control))
    line = error_line(TandemError, deployment.load, path)
    assert "entries.2.drafter: must be one of engine with these engines; got 'none'" in line
