"""Inflated checkpoints compute the same function as the small checkpoint."""

from contextlib import closing
from pathlib import Path

import pytest
import torch
from benchmarks.calls import generate, speculate
from benchmarks.inflated.checkpoint import load_inflated, write_folder
from benchmarks.inflated.inflation import ShapeError, inflate, inflated_config
from benchmarks.inflated.shapes import SHAPES, LlamaShape
from transformers import LlamaConfig, LlamaForCausalLM

from tandem.engines.torch.engine import TorchEngine
from tandem.engines.torch.settings import TorchSettings
from tandem.tools.profiles.checkpoint import read_checkpoint

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


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"hidden_size": 40}, "hidden_size must be at least 48; got 40"),
        ({"vocab_size": 100}, "a larger vocabulary needs a larger hidden_size"),
        ({"num_key_value_heads": 3}, "num_key_value_heads must be at least 4; got 3"),
    ],
)
def test_an_impossible_shape_is_rejected(base, changed, line):
    with pytest.raises(ShapeError, match=line):
        inflated_config(base.config, OWN._replace(**changed))


@pytest.mark.parametrize("odd", [{"attention_bias": True}, {"mlp_bias": True}])
def test_unsupported_architectures_are_rejected(odd):
    with pytest.raises(ShapeError, match="only Llama checkpoints without biases"):
        inflated_config(LlamaConfig(**OWN._asdict(), **odd), OWN)


def test_a_checkpoint_with_an_untied_head_cannot_be_tied():
    base = LlamaConfig(**OWN._replace(tie_word_embeddings=False)._asdict())
    with pytest.raises(ShapeError, match="head is not its embeddings"):
        inflated_config(base, OWN)


def test_named_shapes_have_the_advertised_parameter_counts():
    with torch.device("meta"):
        sizes = {
            name: LlamaForCausalLM(LlamaConfig(**shape._asdict())).num_parameters()
            for name, shape in SHAPES.items()
        }
    billions = {name: round(size / 1e9, 1) for name, size in sizes.items()}
    assert billions["llama-3.1-8b"] == 8.0
    assert billions["llama-3.2-1b"] == 1.2
    assert billions["llama-3.2-3b"] == 3.2
    assert billions["32b"] == 32.5
    assert sizes["small-draft"] < sizes["small-target"] < 1e8


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


def test_the_config_in_the_folder_describes_the_large_checkpoint(base, tmp_path):
    base.save_pretrained(tmp_path / "small")
    shape = OWN._replace(hidden_size=96, vocab_size=100, num_hidden_layers=3)
    checkpoint = read_checkpoint(write_folder(tmp_path / "small", shape, tmp_path / "large"))
    assert checkpoint.vocab_size == 100
    assert checkpoint.kv_bytes_per_token == 2 * 4 * 3 * 2 * 8
