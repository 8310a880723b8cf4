"""Inflated checkpoints compute the same function as the small checkpoint."""

from contextlib import closing
from pathlib import Path

import pytest
import torch
from benchmarks.calls import generate, speculate
from benchmarks.inflated.checkpoint import load_inflated, write_folder
from benchmarks.inflated.inflation import inflate, inflated_config
from benchmarks.inflated.shapes import LlamaShape
from transformers import LlamaConfig, LlamaForCausalLM

from tandem.engines.torch.engine import TorchEngine
from tandem.engines.torch.settings import TorchSettings

CPU = torch.device("cpu")
OWN = LlamaShape(48, 80, 2, 6, 2, 8, 61, tie_word_embeddings=True)


@pytest.fixture(scope="module")
def base():
    """A random model of shape OWN, with the demo pair's norm epsilon."""
    torch.manual_seed(3)
    config = LlamaConfig(
        **OWN._asdict(),
        rms_norm_eps=1e-6,
        initializer_range=0.3,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    model = LlamaForCausalLM(config).eval()
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 2.0)
    return model


@pytest.mark.parametrize(
    "larger",
    [
        {},
        {"num_attention_heads": 6, "num_key_value_heads": 6},
        {"vocab_size": 100, "hidden_size": 66, "tie_word_embeddings": False},
        {
            "hidden_size": 160,
            "intermediate_size": 200,
            "num_hidden_layers": 4,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 24,
            "vocab_size": 128,
        },
    ],
    ids=lambda larger: ",".join(larger) or "nothing",
)
def test_logits_are_unchanged_and_new_tokens_are_never_chosen(base, larger):
    config = inflated_config(base.config, OWN._replace(**larger))
    model = inflate(base, config, CPU, torch.float32)
    ids = torch.randint(61, (2, 50), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        want, got = base(ids).logits, model(ids).logits
    # With a padded vocabulary and tied embeddings, all logits grow by the same small amount.
    shift = (got[..., :61] - want).mean()
    torch.testing.assert_close(got[..., :61] - shift, want, atol=2e-3, rtol=1e-4)
    assert abs(shift) < 0.05
    assert config.vocab_size == got.shape[-1]
    assert (got[..., 61:] < want.amin() - 20).all()
    sizes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    plain = LlamaForCausalLM(config)
    assert sizes == {name: tuple(weight.shape) for name, weight in plain.named_parameters()}


def test_an_inflated_model_generates_the_same_output_as_the_small_model(base, tmp_path):
    base.save_pretrained(tmp_path / "small")
    shape = OWN._replace(
        hidden_size=96, num_attention_heads=8, head_dim=12, num_hidden_layers=3, vocab_size=100
    )
    large = write_folder(tmp_path / "small", shape, tmp_path / "large")
    limits = {"max_seq_len": 64, "kv_cache_tokens": 256, "max_draft_len": 8, "threads": 1}
    with (
        closing(TorchEngine(TorchSettings(str(tmp_path / "small"), **limits), Path())) as small,
        closing(TorchEngine(TorchSettings(str(large), **limits), Path(), load_inflated)) as engine,
    ):
        for prompt in ([5, 6, 7], [60, 1], list(range(20))):
            want = generate(small, prompt, 30)
            assert generate(engine, prompt, 30) == want
            output = speculate(engine, small, prompt, 30, 4)
            assert output.tokens == want
            assert len(output.target_seconds) == 6  # every draft token is accepted
