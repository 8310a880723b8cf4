"""`tandem run` accepts documented command lines, and reports errors in others."""

import json
import shlex

import pytest
from error_lines import error_line

from tandem.contract import entry
from tandem.tools import cli as command
from tandem.tools.client.dataset import read_prompts
from tandem.tools.commands import run, run_options
from tandem.tools.commands.command_line import make_parser
from tandem.tools.errors import TandemError
from tandem.tools.triton import repository
from tandem.tools.triton.launch import launch_command

BLOG = """--tokenizer_dir tokenizer --draft_engine_dir ./draft --engine_dir ./target \
--draft_target_model_config = "[10,[0,1,2,3,4,5,6,7],[0,1,2,3,4,5,6,7], False]" \
--kv_cache_free_gpu_memory_fraction=0.35 --max_output_len=1024 --kv_cache_enable_block_reuse \
--input_text="Implement a program to find the common elements in two arrays without using any \
extra data structures." """
DRAFT_TARGET = """--tokenizer_dir tokenizer --draft_engine_dir ./draft --engine_dir ./target \
--draft_target_model_config="[4,[0],[1],True]" --max_output_len=256 --kv_cache_enable_block_reuse \
--kv_cache_free_gpu_memory_fraction=0.4 --output_generation_logits \
--input_text="How does Draft-Sampling work?" """
LOOKUP = """--tokenizer_dir tokenizer --engine_dir ./target --prompt_lookup_config="[10,2,[0]]" \
--max_output_len=256 --kv_cache_enable_block_reuse --input_text="How does Draft-Sampling work?" """
PAIR = "--engine-dir target --draft-engine-dir draft --tokenizer-dir tokenizer"
ALONE = "--engine-dir target --tokenizer-dir tokenizer"


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    """A working directory with a tokenizer, a target and a draft, on a machine without a GPU."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(run_options, "count_gpus", lambda: 0)
    return folder


def options(line):
    return make_parser("run").read(shlex.split(line))


def plan(line):
    given = options(line if "--input" in line else f"{line} --input-text x")
    return run_options.make_deployment(given, run_options.read_drafting(given))


def rejection(line):
    return error_line(TandemError, plan, line)


def build(folder, *, tp_size=1, pp_size=1, max_draft_len=10, vocab_size=300, mode=2, **settings):
    """Write an engine folder with the files that trtllm-build writes."""
    plugins = {"use_paged_context_fmha": True, "tokens_per_block": 64, "gemm_plugin": "bfloat16"}
    config = {
        "pretrained_config": {
            "vocab_size": vocab_size,
            "logits_dtype": "float16",
            "mapping": {"tp_size": tp_size, "pp_size": pp_size},
        },
        "build_config": {
            "max_batch_size": 4,
            "max_seq_len": 4800,
            "max_num_tokens": 8192,
            "max_draft_len": max_draft_len,
            "speculative_decoding_mode": mode,
            "gather_generation_logits": False,
            **settings,
            "plugin_config": plugins,
        },
    }
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture
def built(here):
    """A pair of built engines, instead of checkpoints."""
    build(here / "target", tp_size=2)
    build(here / "draft", max_draft_len=0, mode=1, gather_generation_logits=True)
    return here


def test_nvidias_documented_draft_target_command_works(capsys):
    given = options(DRAFT_TARGET)
    drafting = run_options.read_drafting(given)
    assert drafting.inputs == {
        entry.DRAFTER: "draft_model",
        entry.NUM_DRAFT_TOKENS: 4,
        entry.USE_DRAFT_LOGITS: True,
    }
    assert given.max_output_len == 256
    assert given.input_text == ["How does Draft-Sampling work?"]
    planned = run_options.make_deployment(given, drafting)
    assert planned.drafters[0] == "hybrid"
    note = capsys.readouterr().err.splitlines()[0]
    assert note == "tandem: PyTorch sees no GPU; using the CPU for [0, 1]"


def test_nvidias_documented_prompt_lookup_command_works():
    given = options(LOOKUP)
    drafting = run_options.read_drafting(given)
    assert drafting.inputs == {
        entry.DRAFTER: "prompt_lookup",
        entry.PROMPT_LOOKUP_NUM_TOKENS: 10,
        entry.MAX_MATCHING_NGRAM_SIZE: 2,
    }
    assert run_options.make_deployment(given, drafting).draft is None


def test_using_both_config_strings_selects_hybrid():
    line = f'{PAIR} --draft-target-model-config "[4,[0],[1],False]" --prompt-lookup-config'
    given = options(f'{line} "[10,2,[1]]" --input-text x')
    assert run_options.read_drafting(given).inputs == {
        entry.DRAFTER: "hybrid",
        entry.NUM_DRAFT_TOKENS: 4,
        entry.USE_DRAFT_LOGITS: False,
        entry.PROMPT_LOOKUP_NUM_TOKENS: 10,
        entry.MAX_MATCHING_NGRAM_SIZE: 2,
    }
    plan(f'{line} "[10,2,[1]]"')
    assert "must have the target devices of --draft-target-model-config, [1]; got [0]" in rejection(
        f'{line} "[10,2,[0]]"'
    )


def test_no_drafts_are_made_without_a_config_string():
    assert run_options.read_drafting(options(f"{ALONE} --input-text x")).drafter == "none"


@pytest.mark.parametrize("tp_size", [4, 1])
def test_device_lists_must_have_tp_size_entries(here, tp_size):
    build(here / "target", tp_size=tp_size)
    build(here / "draft", tp_size=tp_size, max_draft_len=0, mode=1)
    assert rejection(BLOG).startswith(
        f"--draft-target-model-config: must list tp_size {tp_size} * pp_size 1 / num_nodes 1 GPUs; "
        "got 8; "
    )


def test_device_lists_must_have_an_entry_for_each_pipeline_stage(built):
    build(built / "target", tp_size=2, pp_size=2)
    line = f'{ALONE} --prompt-lookup-config "[10,2,[{{}}]]"'
    assert plan(line.format("0,1,2,3")).profile.engines.target.device_ids == (0, 1, 2, 3)
    assert "pp_size 2 / num_nodes 1 GPUs; got 2" in rejection(line.format("0,1"))


def test_a_checkpoint_runs_on_one_device():
    assert "target runs on one device, because it isn't a TensorRT engine; got [4, " in rejection(
        f'{ALONE} --prompt-lookup-config "[10,2,[4,5,6,7]]"'
    )


@pytest.mark.parametrize(
    "strings",
    ['--prompt-lookup-config "[17,2,[0]]"', '--draft-target-model-config "[17,[0],[1],True]"'],
)
def test_a_draft_longer_than_max_draft_len_is_rejected(strings):
    engines = PAIR if "draft-target" in strings else ALONE
    option = strings.partition(" ")[0]
    assert rejection(f"{engines} {strings}") == (
        f"{option}: must be at most 16, which is engines.target.max_draft_len; got 17"
    )


def test_built_engines_are_served_with_the_settings_in_their_config(built, capsys):
    line = f'{PAIR} --draft-target-model-config "[4,[2],[0,1],True]"'
    planned = plan(f"{line} --kv-cache-free-gpu-memory-fraction 0.35")
    assert capsys.readouterr().err == ""
    profile = planned.profile
    target, draft = profile.engines.target, profile.engines.draft
    assert (target.kind, draft.kind) == ("tensorrtllm", "tensorrtllm")
    assert (target.engine_dir, draft.engine_dir) == (built / "target", built / "draft")
    assert (target.tp_size, target.device_ids) == (2, (0, 1))
    assert (draft.tp_size, draft.device_ids) == (1, (2,))
    assert (target.max_draft_len, draft.max_draft_len) == (10, 0)
    assert target.run.kv_cache_free_gpu_mem_fraction == 0.35
    assert target.run.max_tokens_in_paged_kv_cache == 4800
    settings = planned.loop_settings()
    assert (settings.draft_len, settings.use_draft_logits) == (4, True)
    assert (settings.target.vocab_size, settings.target.max_seq_len) == (300, 4800)
    assert (settings.target.kv_block_tokens, settings.target.logits_dtype) == (64, "FP16")


def test_built_engines_are_rendered_and_launched(built):
    planned = plan(f'{PAIR} --draft-target-model-config "[4,[2],[0,1],True]"')
    models = {model.name: model for model in repository.models(planned)}
    parameters = models["target"].parameters
    assert models["target"].backend == models["draft"].backend == "tensorrtllm"
    assert parameters["gpt_model_path"] == str(built / "target")
    assert parameters["gpu_device_ids"] == "0,1"
    assert parameters["kv_cache_free_gpu_mem_fraction"] == "0.9"
    launched = launch_command(planned.profile, ["tritonserver"], [])
    assert "TRTLLM_ORCHESTRATOR=1" in launched
    assert [word[-3:] for word in launched if "cuda" in word] == ["0:0", "1:0", "2:0"]


def test_prompt_lookup_with_a_built_engine_needs_one_process(built):
    build(built / "target")
    planned = plan(f'{ALONE} --prompt-lookup-config "[10,2,[3]]"')
    assert planned.drafters == ("prompt_lookup", "none")
    assert launch_command(planned.profile, ["tritonserver"], [])[0] == "tritonserver"
    assert "at most 10, which" in rejection(f'{ALONE} --prompt-lookup-config "[12,2,[0]]"')


def test_a_built_engine_that_cannot_verify_decodes_without_drafts(built):
    build(built / "target", max_draft_len=0, mode=1)
    assert plan(ALONE).drafters == ("none",)
    for mode in (1, 4):  # speculative decoding modes: none and Medusa
        build(built / "target", mode=mode)
        assert (
            "target can't verify drafts; build it with --speculative_decoding_mode="
            in rejection(f'{ALONE} --prompt-lookup-config "[10,2,[0]]"')
        )


def test_a_built_engine_accepts_drafts_up_to_its_maximum(built):
    build(built / "target", max_draft_len=2)
    plan(f'{ALONE} --prompt-lookup-config "[2,2,[0]]"')
    plan(ALONE)


def test_end_ids_are_read_from_the_tokenizer_folder(built):
    config = built / "tokenizer" / "generation_config.json"
    config.write_text(json.dumps({"eos_token_id": [5, 6]}))
    build(built / "target")
    assert plan(ALONE).end_ids == (5, 6)


@pytest.mark.parametrize(
    ("engine", "settings", "message"),
    [
        (
            "draft",
            {"gather_generation_logits": False},
            "--draft-engine-dir: build.gather_generation_logits: must be true, because",
        ),
        ("target", {"max_seq_len": None}, "--engine-dir: build.max_seq_len: is missing"),
        (
            "target",
            {"max_seq_len": 5},
            "--engine-dir: build.max_draft_len: must be less than max_seq_len 5",
        ),
        ("draft", {"vocab_size": 200}, "--draft-engine-dir: vocab_size in "),
    ],
)
def test_unsuitable_built_engines_are_rejected(built, engine, settings, message):
    build(built / "target")
    build(built / "draft", max_draft_len=0, mode=1, **{"gather_generation_logits": True} | settings)
    if engine == "target":
        build(built / "draft", max_draft_len=0, mode=1, gather_generation_logits=True)
        build(built / "target", **settings)
    assert rejection(f'{PAIR} --draft-target-model-config "[4,[0],[0],True]"').startswith(message)


def test_built_engines_need_a_tokenizer(built):
    build(built / "target")
    assert rejection("--engine-dir target").startswith("--tokenizer-dir: ")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--draft-engine-dir draft", "--draft-engine-dir needs --draft-target-model-config"),
        ('--draft-target-model-config "[4,[0],[1],True]"', "needs --draft-engine-dir"),
        (
            '--prompt-lookup-config "[a,2,[0]]"',
            "must have the form [prompt_lookup_num_tokens, max",
        ),
        ("--engine-dir .", ". has neither a Hugging Face checkpoint nor a built engine"),
        ("--tokenizer-dir absent", "/absent has no tokenizer.json; create it with"),
    ],
)
def test_impossible_options_are_rejected_in_one_line(more, message):
    assert message in rejection(f"{ALONE} {more}")


def test_device_lists_are_respected_on_a_machine_with_gpus(monkeypatch, capsys):
    monkeypatch.setattr(run_options, "count_gpus", lambda: 2)
    planned = plan(f'{PAIR} --draft-target-model-config "[4,[0],[1],True]"')
    engines = planned.profile.engines
    assert (engines.draft.device, engines.target.device) == ("cuda:0", "cuda:1")
    assert capsys.readouterr().err == ""
    assert rejection(f'{ALONE} --prompt-lookup-config "[10,2,[2]]"') == (
        "devices must be among [0, 1], which PyTorch sees; got 2"
    )


def test_a_memory_fraction_that_has_no_effect_is_reported(capsys):
    plan(f"{ALONE} --kv-cache-free-gpu-memory-fraction 0.4")
    (note,) = capsys.readouterr().err.splitlines()
    assert note.startswith("tandem: --kv-cache-free-gpu-memory-fraction has no effect")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine-dir", "x"], "one of the arguments --input-text --input-file is required"),
        (["--input-text", "x"], "the following arguments are required: --engine-dir"),
        (["--max-output-len", "0"], "must be a whole number of at least 1; got '0'"),
        (["--kv-cache-free-gpu-memory-fraction", "2"], "must be between 0 and 1; got 2"),
    ],
)
def test_the_error_names_an_invalid_option(arguments, message, capsys):
    assert command.main(["run", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_prompts_can_be_repeated_options_or_several_values():
    assert options(f"{ALONE} --input-text a b --input_text c").input_text == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("prompts.txt", "one\n\n{two}\n", ["one", "{two}"]),
        ("p.jsonl", '{"prompt": "a\\nb"}\n{"text": "\u2028c"}\n', ["a\nb", "\u2028c"]),
        ("windows.txt", "\ufeffone\r\ntwo\r\n", ["one", "two"]),
        ("windows.jsonl", '\ufeff{"prompt": "a"}\r\n', ["a"]),
    ],
)
def test_prompts_can_be_read_from_a_file(here, name, text, expected):
    (here / name).write_text(text)
    assert [prompt.text for prompt in read_prompts(here / name)] == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\nx\n', ":2: Invalid JSON: "),
        ("[1]", ":1: must be an object; got "),
        ('{"prompt": 1}', ":1: prompt: must be a valid string; got 1"),
        ("\n", "p.jsonl is empty"),
    ],
)
def test_the_error_names_a_line_that_is_not_a_prompt(here, text, message):
    (here / "p.jsonl").write_text(text)
    with pytest.raises(TandemError, match=message):
        read_prompts(here / "p.jsonl")


def test_options_can_be_spelled_with_underscores():
    given = options("--engine_dir=a_b --input_text c_d")
    assert (str(given.engine_dir), given.input_text) == ("a_b", ["c_d"])
    given = make_parser("perf").read(["--max_tokens=5", "--", "--e_f"])
    assert (given.max_tokens, given.more) == (5, ["--e_f"])


def test_the_output_has_nvidias_documented_format():
    assert run.as_run_py_prints(0, "ask", "say") == (
        'Input [Text 0]: "ask"\nOutput [Text 0 Beam 0]: "say"'
    )
