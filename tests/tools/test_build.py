"""`tandem build`: the commands in NVIDIA's documentation, and the checks before them."""

import json
import re
from pathlib import Path

import pytest
from checkpoints import write_tokenizer
from golden import check_golden
from llamas import SIZES, TENSORRT_PROFILES

from tandem.tools.cli import main
from tandem.tools.commands.build import check_steps
from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment
from tandem.tools.trtllm.engines import trt_engines
from tandem.tools.trtllm.memory import check_memory, share_of
from tandem.tools.trtllm.shape import read_shape
from tandem.tools.trtllm.steps import engine_steps

FACTS = json.loads((Path(__file__).parents[1] / "data" / "trtllm-1.2.1-flags.json").read_text())[
    "flags"
]
FP8 = {"--dtype": "float16", "--qformat": "fp8", "--kv_cache_dtype": "fp8", "--calib_size": "512"}
LARGE = {
    "--gpt_attention_plugin": "float16",
    "--gemm_plugin": "fp8",
    "--use_paged_context_fmha": "enable",
    "--use_fused_mlp": "enable",
    "--multiple_profiles": "enable",
    "--max_batch_size": "32",
    "--max_num_tokens": "8192",
    "--max_seq_len": "131072",
}
SMALL = {
    "--gemm_plugin": "float16",
    "--use_paged_context_fmha": "enable",
    "--max_batch_size": "4",
    "--max_input_len": "3200",
    "--max_seq_len": "4800",
}
VERIFIES = {"--speculative_decoding_mode": "draft_tokens_external", "--max_draft_len": "10"}
LOW_LATENCY = {"--low_latency_gemm_plugin": "fp8"}
# Flags of the documentation: profile -> engine -> tool -> flags
DOCUMENTED = {
    "llama-3.1-70b": {
        "draft": (
            FP8 | {"--tp_size": "1"},
            LARGE | {"--workers": "1", "--reduce_fusion": "disable"},
        ),
        "target": (FP8 | {"--tp_size": "1"}, LARGE | VERIFIES | LOW_LATENCY | {"--workers": "1"}),
    },
    "llama-3.1-405b": {
        "draft": (
            FP8 | {"--tp_size": "4"},
            LARGE | {"--workers": "4", "--reduce_fusion": "disable"},
        ),
        "target": (FP8 | {"--tp_size": "4"}, LARGE | VERIFIES | LOW_LATENCY | {"--workers": "4"}),
    },
    "llama-2-7b-13b": {
        "draft": ({"--dtype": "float16"}, SMALL),
        "target": ({"--dtype": "float16"}, SMALL | VERIFIES),
    },
    "llama-2-13b-prompt-lookup": {"target": ({"--dtype": "float16"}, SMALL | VERIFIES)},
}


def config_of(model_type, sizes, *, tied=None, **more):
    """Return a config.json; tied: its value of tie_word_embeddings, if any."""
    layers, width, heads, kv_heads, inner, vocab = sizes
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
        "eos_token_id": 0,
        **({} if tied is None else {"tie_word_embeddings": tied}),
        **more,
    }


def engines_of(path):
    return trt_engines(deployment.load(path).profile)


def steps_of(path):
    return [s for name, engine in engines_of(path).items() for s in engine_steps(name, engine)]


def flags(step):
    """A command's flags: name -> value, None for a switch."""
    return {
        name: value if equals else None
        for name, equals, value in (w.partition("=") for w in step.argv if w.startswith("--"))
    }


@pytest.mark.parametrize("name", TENSORRT_PROFILES)
def test_build_commands_equal_the_golden_files(name, shipped, models, tmp_path, capsys):
    assert main(["build", "--profile", str(shipped(name))]) == 0
    printed = capsys.readouterr().out
    plan = printed.replace(str(models), "/models").replace(str(tmp_path), "")
    check_golden(f"{name}/build.sh", plan)


@pytest.mark.parametrize("name", TENSORRT_PROFILES)
def test_build_commands_do_not_require_the_checkpoints(name, capsys):
    assert main(["build", "--profile", name]) == 0
    printed = capsys.readouterr()
    check_golden(f"{name}/build.sh", printed.out)
    assert "no folder /models/Llama-" in printed.err


def test_settings_are_checked_even_if_checkpoints_are_missing(changed, models, capsys):
    path = changed("llama-3.1-405b", {"engines.target.device_ids": [0, 1]})
    path.write_text(path.read_text().replace(str(models), "/absent"))
    assert main(["build", "--profile", str(path)]) == 1
    assert (
        "engines.target.device_ids: must list tp_size 4 * pp_size 1 / num_nodes 1 GPUs"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("name", TENSORRT_PROFILES)
def test_every_documented_nvidia_flag_is_set(name, shipped):
    for engine, documented in DOCUMENTED[name].items():
        steps = [step for step in steps_of(shipped(name)) if step.engine == engine]
        for step, wanted in zip(steps, documented, strict=True):
            assert wanted.items() <= flags(step).items()


@pytest.mark.parametrize("name", TENSORRT_PROFILES)
def test_every_flag_exists_in_nvidias_tools(name, shipped):
    for step in steps_of(shipped(name)):
        for flag, value in flags(step).items():
            allowed = FACTS[step.tool][flag]
            assert allowed is None or value in allowed or (value is None and allowed == [])


def test_every_setting_becomes_a_flag_of_nvidias_tools(changed):
    """The settings include some that no shipped profile has."""
    path = changed(
        "llama-3.1-70b",
        {
            "engines.target.build.gather_context_logits": True,
            "engines.target.convert.calib_dataset": "/data/calibration",
            "engines.target.convert.kv_cache_dtype": "int8",
            "engines.target.build.low_latency_gemm_plugin": "disable",
            "engines.target.build.max_input_len": 100,
            "engines.target.build.lora_plugin": "auto",
            "engines.target.build.lora_target_modules": ["attn_q", "attn_v"],
            "engines.target.build.max_lora_rank": 16,
        },
    )
    for step in steps_of(path):
        assert flags(step).keys() <= FACTS[step.tool].keys()
    convert, trtllm_build = (flags(s) for s in steps_of(path) if s.engine == "target")
    assert convert["--calib_dataset"] == "/data/calibration"
    assert trtllm_build["--gather_context_logits"] is None
    argv = next(step.argv for step in steps_of(path) if "--lora_target_modules" in step.argv)
    assert "--lora_target_modules attn_q attn_v" in " ".join(argv)


@pytest.mark.parametrize("draft", ["Llama-3.2-1B", "Llama-3.2-3B", "Llama-3.1-8B"])
def test_replacing_the_draft_model_changes_only_folders(draft, shipped):
    for name in ("llama-3.1-70b", "llama-3.1-405b"):
        before = [flags(step) for step in steps_of(shipped(name))]
        text = shipped(name).read_text()
        [chosen] = re.findall(r"/(Llama-3\.\d-\dB)-Instruct # draft", text)
        after = [flags(step) for step in steps_of(shipped(name, {chosen: draft}))]
        folders = {"--model_dir"}
        for one, other in zip(before, after, strict=True):
            assert {k for k in one if one[k] != other[k]} <= folders


def test_a_larger_draft_fits_with_a_larger_memory_fraction(shipped):
    path = shipped("llama-3.1-70b", {"Llama-3.2-1B": "Llama-3.1-8B"})
    with pytest.raises(TandemError, match="GPU 0: the KV cache of target needs"):
        memory_of(path)
    text = path.read_text().replace("gpu_mem_fraction: 0.35", "gpu_mem_fraction: 0.45")
    path.write_text(text)
    assert len(memory_of(path)) == 1


def memory_of(path):
    return [*check_memory(engines_of(path))]


@pytest.mark.parametrize("name", TENSORRT_PROFILES)
def test_shipped_profiles_fit_their_gpus(name, shipped):
    for line in memory_of(shipped(name)):
        assert re.match(r"GPU \d: (needs )?\d+\.\d (of 140\.4 )?GiB", line)


def of_the_target(settings):
    return {f"engines.target.{key}": value for key, value in settings.items()}


def over(tp, pp):
    """Settings of a target that is split over GPUs."""
    return of_the_target({"tp_size": tp, "pp_size": pp, "device_ids": [*range(tp * pp)]})


def as_target(models, path, config):
    """Make a profile's target a checkpoint with this config.json."""
    folder = models / f"{config['model_type']}-{config.get('hidden_size')}"
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config))
    path.write_text(path.read_text().replace(str(models / "Llama-2-13b-hf"), str(folder)))
    return path


# billions of parameters from the models' pages on the Hugging Face Hub, and their config.json
PUBLISHED = {
    "Mistral-7B": (7.242, config_of("mistral", (32, 4096, 32, 8, 14336, 32000))),
    "Qwen2.5-0.5B": (0.494, config_of("qwen2", (24, 896, 14, 2, 4864, 151936), tied=True)),
    "Qwen2.5-7B": (7.616, config_of("qwen2", (28, 3584, 28, 4, 18944, 152064), tied=False)),
    "Qwen3-8B": (8.191, config_of("qwen3", (36, 4096, 32, 8, 12288, 151936), head_dim=128)),
    "Phi-3-mini": (3.821, config_of("phi3", (32, 3072, 32, 32, 8192, 32064))),
    "gemma-2b": (2.506, config_of("gemma", (18, 2048, 8, 1, 16384, 256000), head_dim=256)),
    "gemma-2-9b": (9.242, config_of("gemma2", (42, 3584, 16, 8, 14336, 256000), head_dim=256)),
    "Mixtral-8x7B": (
        46.703,
        config_of("mixtral", (32, 4096, 32, 8, 14336, 32000), num_local_experts=8),
    ),
    "Qwen3-30B-A3B": (
        30.532,
        config_of(
            "qwen3_moe",
            (48, 2048, 32, 4, 6144, 151936),
            head_dim=128,
            num_experts=128,
            moe_intermediate_size=768,
            decoder_sparse_step=1,
            mlp_only_layers=[],
        ),
    ),
}
PUBLISHED |= {
    name: (
        billions,
        config_of("llama", (*sizes[:4], *sizes[5:7]), head_dim=sizes[4], tied=sizes[8]),
    )
    for name, billions in {
        "Llama-3.2-1B-Instruct": 1.236,
        "Llama-3.1-8B-Instruct": 8.030,
        "Llama-3.1-70B-Instruct": 70.554,
        "Llama-3.1-405B-Instruct": 405.853,
        "Llama-2-13b-hf": 13.016,
    }.items()
    for sizes in [SIZES[name]]
}


def share_of_target(path):
    target = engines_of(path)["target"]
    return share_of("target", target, read_shape(target.checkpoint))


@pytest.mark.parametrize("name", PUBLISHED)
def test_weight_sizes_equal_the_published_sizes(name, changed, models):
    billions, config = PUBLISHED[name]
    path = as_target(models, changed("llama-2-13b-prompt-lookup", {}), config)
    assert share_of_target(path).weights * 2**30 == pytest.approx(2e9 * billions, rel=1e-3)


@pytest.mark.parametrize(
    ("split", "heads_and_layers"),
    [
        ((1, 1), 4 * 28),
        ((2, 1), 2 * 28),
        ((4, 1), 28),
        ((8, 1), 28),
        ((8, 2), 14),
        ((1, 3), 4 * 10),
    ],
)
def test_each_gpu_holds_whole_heads_and_layers_of_the_kv_cache(
    changed, models, split, heads_and_layers
):
    """TensorRT-LLM replicates a head of the KV cache if there are more GPUs than heads."""
    path = changed("llama-2-13b-prompt-lookup", over(*split))
    as_target(models, path, PUBLISHED["Qwen2.5-7B"][1])
    tokens = engines_of(path)["target"].run.max_tokens_in_paged_kv_cache
    of_one_token = 2 * 2 * heads_and_layers * 128  # keys and values, bytes, both, width of a head
    assert share_of_target(path).kv_cache * 2**30 == pytest.approx(tokens * of_one_token)


@pytest.mark.parametrize(
    ("name", "split", "tables"),
    [
        ("Qwen2.5-7B", (1, 1), 2),  # the embedding and the output layer
        ("Qwen2.5-7B", (4, 1), 1.25),  # only the output layer is split
        ("Qwen2.5-7B", (4, 2), 1),  # the first GPUs hold the embedding, the last the output layer
        ("Qwen2.5-0.5B", (1, 1), 1),  # one table for both
        ("Qwen2.5-0.5B", (2, 1), 1.5),  # the slices are separate tensors
    ],
)
def test_weights_per_gpu_include_the_right_embedding_tables(changed, models, name, split, tables):
    config = PUBLISHED[name][1]
    path = changed("llama-2-13b-prompt-lookup", over(*split))
    as_target(models, path, config)
    once = share_of_target(path).weights
    as_target(models, path, config | {"vocab_size": 2 * config["vocab_size"]})
    twice = share_of_target(path).weights
    table = 2 * config["vocab_size"] * config["hidden_size"] / 2**30
    assert twice - once == pytest.approx(tables * table)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "deepseek_v3", "hidden_size": 7168},
        {"model_type": "llama", "hidden_size": 4096},
        PUBLISHED["Qwen3-30B-A3B"][1] | {"decoder_sparse_step": 2},
        PUBLISHED["Qwen3-30B-A3B"][1] | {"mlp_only_layers": [0]},
        PUBLISHED["Qwen3-30B-A3B"][1] | {"num_hidden_layers": None},
        PUBLISHED["Qwen3-30B-A3B"][1] | {"moe_intermediate_size": [768, 1536]},
        PUBLISHED["Qwen3-30B-A3B"][1] | {"num_attention_heads": 0, "head_dim": None},
    ],
)
def test_memory_is_not_checked_for_unknown_architectures(changed, models, config):
    path = changed("llama-2-13b-prompt-lookup", of_the_target({"convert.qformat": "fp8"}))
    as_target(models, path, config | {"max_position_embeddings": 4096, "vocab_size": 32000})
    assert memory_of(path) == ["can't check memory: the size of target is unknown"]


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        (
            "gpu_memory_gib",
            80,
            r"GPU 0 has 80\.0 GiB but needs 95\.1 \(draft: .*; lower max_tokens_in",
        ),
        (
            "run.kv_cache_free_gpu_mem_fraction",
            0.1,
            r"GPU 0: the KV cache of target needs 20\.0 GiB, but its fraction 0\.1 leaves 6\.5",
        ),
    ],
)
def test_engines_that_do_not_fit_are_rejected(changed, capsys, setting, value, message):
    path = changed("llama-3.1-70b", of_the_target({setting: value}))
    assert main(["build", "--profile", str(path)]) == 1
    shown = capsys.readouterr()
    assert re.search(message, shown.err)
    assert shown.out == ""


def test_memory_is_not_checked_if_the_gpu_size_is_unknown(shipped):
    lines = memory_of(shipped("llama-2-7b-13b"))
    assert [line.endswith("set gpu_memory_gib to check it") for line in lines] == [True, True]


@pytest.mark.parametrize(
    ("settings", "requests", "reported"),
    [
        ({}, 1, True),
        ({"build.max_num_tokens": 131072}, 1, False),
        ({"build.max_num_tokens": 131072}, 2, True),
        ({"build.max_num_tokens": 131072, "run.enable_chunked_context": False}, 32, False),
        ({"build.max_num_tokens": 352}, 32, True),  # 11 tokens each: one token and its draft
    ],
)
def test_a_step_size_that_may_drop_draft_tokens_is_reported(changed, settings, requests, reported):
    engines = engines_of(changed("llama-3.1-70b", of_the_target(settings)))
    assert len([*check_steps(engines, requests)]) == reported


def test_a_step_too_small_for_a_draft_is_rejected(changed):
    engines = engines_of(changed("llama-3.1-70b", of_the_target({"build.max_num_tokens": 351})))
    with pytest.raises(
        TandemError,
        match="target: max_num_tokens 351 leaves 10 tokens per step for each of 32 requests",
    ):
        [*check_steps(engines, 32)]


def test_a_profile_without_tensorrt_engines_has_nothing_to_build(embedded_profile, capsys):
    assert main(["build", "--profile", str(embedded_profile)]) == 1
    assert "has no engine of kind 'tensorrtllm' to build" in capsys.readouterr().err


def test_a_checkpoint_without_a_converter_is_rejected(shipped, models, tmp_path):
    path = shipped("llama-2-13b-prompt-lookup", {"Llama-2-13b-hf": "other"})
    config = json.loads((models / "Llama-2-13b-hf" / "config.json").read_text())
    other = models / "other"
    other.mkdir(exist_ok=True)
    (other / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    (other / "tokenizer.json").write_bytes(
        (models / "Llama-2-13b-hf" / "tokenizer.json").read_bytes()
    )
    with pytest.raises(
        TandemError,
        match=r"engines\.target\.convert has no converter for model_type 'mamba' \(only for llama,",
    ):
        steps_of(path)
