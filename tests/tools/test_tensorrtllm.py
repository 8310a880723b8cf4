"""Profiles of kind `tensorrtllm` are checked, and rendered as NVIDIA documents."""

import json
from contextlib import contextmanager
from pathlib import Path

import pytest
from error_lines import error_line
from golden import check_golden
from google.protobuf import text_format
from llamas import TENSORRT_PROFILES
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from tandem.engines import kinds
from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment
from tandem.tools.triton import repository
from tandem.tools.trtllm import check_built_engines, trt_engines

CONTRACT = json.loads(
    (Path(__file__).parents[1] / "data" / "tensorrt_llm_contract.json").read_text()
)
NVIDIA = CONTRACT["models"]["tensorrt_llm"]
PAIR = "llama-2-7b-13b"
LARGE = "llama-3.1-405b"


def rendered(path, output):
    repository.render(deployment.load(path), output)
    return {
        folder.parent.name: text_format.Parse(folder.read_text(), ModelConfig())
        for folder in output.glob("*/config.pbtxt")
    }


def parameters(config):
    return {name: value.string_value for name, value in config.parameters.items()}


def declared(tensor):
    """Convert a rendered tensor to the format of the contract file."""
    facts = {
        "name": tensor.name,
        "data_type": DataType.Name(tensor.data_type),
        "dims": list(tensor.dims),
    }
    if tensor.HasField("reshape"):
        facts["reshape"] = list(tensor.reshape.shape)
    for flag in ("optional", "allow_ragged_batch"):
        if getattr(tensor, flag, False):
            facts[flag] = True
    return facts


def contract(tensors, logits="TYPE_FP32"):
    """Return NVIDIA's tensors. logits: data type of tensors whose type the deployment chooses."""
    chosen = [t | ({"data_type": logits} if "note" in t else {}) for t in tensors]
    return [{k: v for k, v in t.items() if k not in ("note", "since")} for t in chosen]


def by_name(tensors):
    return sorted(tensors, key=lambda tensor: tensor["name"])


@pytest.mark.parametrize("name", TENSORRT_PROFILES)
def test_rendered_engines_equal_the_golden_files(name, shipped, models, tmp_path):
    configs = rendered(shipped(name), tmp_path / "repository")
    for engine in {"draft", "target"} & configs.keys():
        text = (tmp_path / "repository" / engine / "config.pbtxt").read_text()
        check_golden(f"{name}/{engine}.pbtxt", text.replace(str(tmp_path), ""))


@pytest.mark.parametrize("name", TENSORRT_PROFILES)
def test_rendered_tensors_match_nvidias_model(name, shipped, tmp_path):
    configs = rendered(shipped(name), tmp_path / "repository")
    for engine in {"draft", "target"} & configs.keys():
        config = configs[engine]
        assert by_name(map(declared, config.input)) == by_name(contract(NVIDIA["input"]))
        assert by_name(map(declared, config.output)) == by_name(contract(NVIDIA["output"]))


def test_logits_tensors_use_the_data_type_of_the_engine(changed, tmp_path):
    half = {f"engines.{engine}.build.logits_dtype": "float16" for engine in ("draft", "target")}
    config = rendered(changed(PAIR, half), tmp_path / "repository")["target"]
    expected = by_name(contract(NVIDIA["input"], "TYPE_FP16"))
    assert by_name(map(declared, config.input)) == expected
    expected = by_name(contract(NVIDIA["output"], "TYPE_FP16"))
    assert by_name(map(declared, config.output)) == expected


@pytest.mark.parametrize("name", TENSORRT_PROFILES)
def test_rendered_parameters_use_nvidias_names(name, shipped, tmp_path):
    configs = rendered(shipped(name), tmp_path / "repository")
    config = configs["target"]
    assert config.backend == "tensorrtllm"
    assert not config.model_transaction_policy.decoupled
    assert parameters(config).keys() <= set(NVIDIA["parameters"])
    assert parameters(config)["enable_kv_cache_reuse"] == "true"
    assert parameters(config)["enable_chunked_context"] == "true"
    # The backend requires these parameters to load the model.
    needed = {"gpt_model_type", "guided_decoding_backend", "tokenizer_dir"}
    assert {*needed, "xgrammar_tokenizer_info_path"} <= parameters(config).keys()


def test_rendered_engine_folders_contain_no_python_code(shipped, tmp_path):
    rendered(shipped(PAIR), tmp_path / "repository")
    assert list((tmp_path / "repository" / "target" / "1").iterdir()) == []


def test_the_loop_knows_the_capabilities_of_the_engines(changed):
    settings = deployment.load(
        changed(LARGE, {"engines.draft.run.exclude_input_in_output": False})
    ).loop_settings()
    target, draft = settings.target, settings.draft
    assert (target.excludes_input, draft.excludes_input) == (True, False)
    assert target.capabilities == draft.capabilities == kinds.TENSORRTLLM
    assert (target.max_seq_len, target.max_draft_len) == (131072, 10)
    assert (target.kv_cache_tokens, target.kv_block_tokens) == (131072, 32)
    assert not settings.shared_logits
    assert settings.drafter == "draft_model"


@contextmanager
def vocabulary(checkpoint, size):
    """Change the vocabulary size of a shared checkpoint."""
    config = checkpoint / "config.json"
    facts = config.read_text()
    config.write_text(json.dumps(json.loads(facts) | {"vocab_size": size}))
    try:
        yield
    finally:
        config.write_text(facts)


def test_the_vocabulary_is_padded_to_a_multiple_of_tp_size(changed, models):
    parallel = {"engines.target.tp_size": 4, "engines.target.device_ids": [0, 1, 2, 3]}
    path = changed("llama-2-13b-prompt-lookup", parallel)
    with vocabulary(models / "Llama-2-13b-hf", 32001):
        assert deployment.load(path).loop_settings().target.vocab_size == 32004


def test_a_shipped_profile_names_the_missing_checkpoint_files():
    path = Path(__file__).parents[2] / "tandem" / "profiles" / "llama-3.1-70b.yaml"
    place = "engines.target.checkpoint: no folder /models/Llama-3.1-70B-Instruct"
    needed = (
        "; create it with the checkpoint's config.json, generation_config.json and tokenizer*.json"
    )
    assert error_line(TandemError, deployment.load, path).endswith(place + needed)


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        (
            PAIR,
            {"engines.target.run.enable_kv_cache_reuse": False},
            "must be true; otherwise every round recomputes the whole context",
        ),
        (
            PAIR,
            {"engines.draft.build.use_paged_context_fmha": False},
            "must be true, because KV-block reuse needs it",
        ),
        (
            PAIR,
            {"engines.target.build.speculative_decoding_mode": None},
            "must be draft_tokens_external if max_draft_len is set; it is 10",
        ),
        (
            PAIR,
            {"engines.target.build.max_draft_len": 0},
            ("must be at least 1 if speculative_decoding_mode is draft_tokens_external; got 0"),
        ),
        (
            PAIR,
            {"engines.draft.build.gather_generation_logits": False},
            "must be true, because decoding.use_draft_logits needs the draft's logits",
        ),
        (
            "llama-3.1-70b",
            {"engines.target.device_ids": [0, 1, 2, 3, 4, 5, 6, 7]},
            "must list tp_size 1 * pp_size 1 / num_nodes 1 GPUs; got 8; use [0]",
        ),
        (
            LARGE,
            {"engines.draft.device_ids": [0, 1]},
            (
                "must list tp_size 4 * pp_size 1 / num_nodes 1 GPUs; got 2; list 4 of them, or "
                "change tp_size"
            ),
        ),
        (
            LARGE,
            {"engines.draft.device_ids": [0, 1, 2, 2]},
            "must list each GPU once",
        ),
        (
            LARGE,
            {"engines.target.run.enable_chunked_context": False},
            ("must be true if max_num_tokens 8192 is less than the longest context, 131071 tokens"),
        ),
        (
            LARGE,
            {"engines.target.run.max_tokens_in_paged_kv_cache": 100},
            "must be at least max_seq_len (131072); got 100",
        ),
        (
            PAIR,
            {"engines.target.convert.kv_cache_dtype": "fp8"},
            ("'fp8' needs the calibration of qformat; set qformat or remove kv_cache_dtype"),
        ),
        (
            LARGE,
            {"engines.target.num_nodes": 2, "engines.target.device_ids": [0, 1]},
            (
                "engines.target.num_nodes: must be 1 in both engines, because several nodes need "
                "leader mode, which loads one engine; got 2; set 1, or use prompt_lookup without "
                "engines.draft"
            ),
        ),
        (
            PAIR,
            {"engines.target.build.max_seq_lenn": 4},
            "unknown key; did you mean 'max_seq_len'?",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_invalid_profile_is_rejected_in_one_line(changed, name, settings, text):
    """The error begins with the path of the last setting, unless it names another setting."""
    place = "" if text.startswith("engines.") else f"{[*settings][-1]}: "
    path = changed(name, settings)
    line = error_line(TandemError, deployment.load, path).removeprefix(f"{path}:")
    assert line.partition(": ")[2] == place + text


def test_the_loop_knows_the_size_and_the_type_of_each_engines_logits(changed, models):
    path = changed(PAIR, {"engines.draft.build.logits_dtype": "float16"})
    with vocabulary(models / "Llama-2-7b-hf", 32064):
        settings = deployment.load(path).loop_settings()
    target = settings.target
    assert (target.vocab_size, settings.draft.vocab_size) == (32000, 32064)
    assert (target.logits_dtype, settings.draft.logits_dtype) == ("FP32", "FP16")
    assert not target.capabilities.samples_exactly


def engine_config(folder, **settings):
    """Write the config.json of the prompt-lookup profile's engine."""
    build = {"max_batch_size": 4, "max_seq_len": 4800, "max_num_tokens": 8192, "max_draft_len": 10}
    plugins = {"use_paged_context_fmha": True, "tokens_per_block": 32}
    model = {"logits_dtype": "float32", "mapping": {"tp_size": 1, "pp_size": 1}}
    for name, value in settings.items():
        part = next(p for p in (build, plugins, model, model["mapping"]) if name in p)
        part[name] = value
    folder.mkdir(parents=True, exist_ok=True)
    config = {"build_config": build | {"plugin_config": plugins}, "pretrained_config": model}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("setting", "value", "wanted"),
    [
        ("max_draft_len", 0, 10),
        ("max_seq_len", 2048, 4800),
        ("use_paged_context_fmha", False, True),
        ("logits_dtype", "float16", "float32"),
        ("tp_size", 2, 1),
    ],
)
def test_an_engine_built_with_other_settings_is_rejected(shipped, setting, value, wanted):
    engines = trt_engines(deployment.load(shipped("llama-2-13b-prompt-lookup")).profile)
    folder = engines["target"].engine_dir
    engine_config(folder)
    check_built_engines(engines)
    engine_config(folder, **{setting: value})
    assert error_line(TandemError, check_built_engines, engines) == (
        f"target: {folder} was built with {setting} {value}, but the profile has {wanted}; "
        "rebuild it with tandem build, or change the profile"
    )
