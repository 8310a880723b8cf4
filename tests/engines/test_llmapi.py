"""The llmapi engine works with a stand-in for `tensorrt_llm` that rejects unknown names."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import standin
from checkpoints import LLAMA, write_adapter_of, write_empty
from engine_harness import GREEDY, Harness
from error_lines import error_line
from live_triton import eventually
from model_configs import model_config

from tandem.engines.engine import NO_WORDS, EngineRequest, SamplingParams, Words
from tandem.engines.errors import LoadError, RequestError
from tandem.engines.kinds import load_engine
from tandem.engines.llmapi.settings import LlmApiSettings

VOCAB = 131
LOOKUP = {
    "speculative_config": '{"decoding_type": "NGram", "max_draft_len": 4, '
    '"max_matching_ngram_size": 2}'
}
DRAFT = {
    "speculative_config": '{"decoding_type": "Draft_Target", "max_draft_len": 4, '
    '"speculative_model": "/models/small"}'
}
EAGLE = {
    "decoding_type": "Eagle3",
    "max_draft_len": 3,
    "speculative_model": "/models/eagle",
    "draft_len_schedule": {"4": 3, "16": 1},
}
END = 1
CYCLE = [30, 31, 32, 33, 34, 28, 29, 30, 31]


def said_after(token: int, length: int) -> list[int]:
    """Return the stand-in's output after `token`, which repeats cycles of seven tokens."""

    def successor(token: int) -> int:
        first = token - token % 7
        return first + (token - first + 1) % min(7, VOCAB - first)

    text = itertools.accumulate(range(length), lambda last, _: successor(last), initial=token)
    return list(text)[1:]


@pytest.fixture
def package(monkeypatch):
    """The stand-in, imported as `tensorrt_llm`."""
    monkeypatch.syspath_prepend(str(Path(standin.__file__).parent))
    import tensorrt_llm

    tensorrt_llm.LLM.made.clear()
    yield tensorrt_llm
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]


@pytest.fixture
def start(package, tmp_path):
    """Return a function that starts an engine from model parameters; close all at the end."""
    write_empty(tmp_path / "model", VOCAB)
    made = []

    def begin(**parameters) -> Harness:
        given = {
            "engine": "llmapi",
            "model": str(tmp_path / "model"),
            "vocab_size": str(VOCAB),
            "max_seq_len": "256",
            "kv_cache_tokens": "4096",
            **parameters,
        }
        engine = load_engine(model_config(given), Path())
        made.append(engine)
        return Harness(engine)

    yield begin
    for engine in made:
        engine.close()


@pytest.fixture
def looker(start) -> Harness:
    """An engine that uses prompt lookup."""
    return start(**LOOKUP)


@pytest.fixture
def go_on(package):
    """An event that lets calls continue after their first step."""
    package.go_on.clear()
    yield package.go_on
    package.go_on.set()


def llm(package):
    return package.LLM.made[-1]


def test_profile_settings_reach_tensorrt_llm(start, package, tmp_path):
    start(
        tensor_parallel_size="4",
        dtype="bfloat16",
        max_batch_size="8",
        max_num_tokens="2048",
        kv_block_tokens="64",
        free_gpu_memory_fraction="0.5",
    )
    arguments = llm(package).arguments
    assert arguments.pop("kv_cache_config") == package.llmapi.llm_args.KvCacheConfig(
        enable_block_reuse=True,
        max_tokens=4096,
        free_gpu_memory_fraction=0.5,
        tokens_per_block=64,
    )
    assert arguments == {
        "model": str(tmp_path / "model"),
        "skip_tokenizer_init": True,
        "tensor_parallel_size": 4,
        "dtype": "bfloat16",
        "trust_remote_code": False,
        "max_seq_len": 256,
        "max_batch_size": 8,
        "max_num_tokens": 2048,
        "enable_chunked_prefill": True,
    }


def test_speculative_config_becomes_the_class_of_its_decoding_type(start, package):
    start(speculative_config=json.dumps(EAGLE))
    made = llm(package).arguments["speculative_config"]
    assert isinstance(made, package.llmapi.llm_args.Eagle3DecodingConfig)
    assert (made.max_draft_len, made.draft_len_schedule) == (3, {4: 3, 16: 1})
    assert llm(package).arguments["max_seq_len"] == 256 + 3


def test_decoding_types_can_be_spelled_as_in_nvidias_docs(start, package):
    start(**{name: text.replace("_T", "T") for name, text in DRAFT.items()})
    made = llm(package).arguments["speculative_config"]
    assert isinstance(made, package.llmapi.llm_args.DraftTargetDecodingConfig)


def test_advanced_sampling_is_enabled_for_sampled_requests(start, package):
    start(**DRAFT)
    assert llm(package).arguments["speculative_config"].allow_advanced_sampling


def test_decoding_type_auto_needs_no_draft_length(start, package):
    start(speculative_config='{"decoding_type": "AUTO"}')
    assert llm(package).arguments["max_seq_len"] == 256 + 5


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"decoding_type": "Medusa2", "max_draft_len": 3}, "choose one of: AUTO, Draft_Target, "),
        (EAGLE | {"max_draf": 3}, "speculative_config.max_draf: Extra inputs"),
        ({"decoding_type": "NGram"}, "max_draft_len must be at least 1"),
        ({"max_draft_len": 3}, "decoding_type must be set"),
    ],
)
def test_an_invalid_speculative_config_is_rejected_with_one_line(start, config, words):
    assert words in error_line(LoadError, start, speculative_config=json.dumps(config))


def test_extra_llm_args_reach_tensorrt_llm(start, package):
    more = {"guided_decoding_backend": "xgrammar", "kv_cache_config": {"dtype": "fp8"}}
    start(llm_args=json.dumps(more))
    arguments = llm(package).arguments
    assert arguments["guided_decoding_backend"] == "xgrammar"
    assert (arguments["kv_cache_config"].dtype, arguments["kv_cache_config"].max_tokens) == (
        "fp8",
        4096,
    )


@pytest.mark.parametrize(
    ("llm_args", "name"),
    [
        ({"max_seq_len": 9}, "llm_args.max_seq_len is set from"),
        ({"lora_config": {}}, "llm_args.lora_config is set from"),
        ({"kv_cache_config": {"max_tokens": 9}}, "llm_args.kv_cache_config.max_tokens is set from"),
        ({"kv_cache_config": 9}, "llm_args.kv_cache_config must be an object"),
    ],
)
def test_llm_args_that_other_keys_set_are_rejected(llm_args, name):
    with pytest.raises(LoadError, match=name):
        LlmApiSettings(model="x", vocab_size=9, max_seq_len=9, kv_cache_tokens=9, llm_args=llm_args)


@pytest.fixture
def adapters(tmp_path):
    """The parameter for two adapters."""
    checkpoint = tmp_path / "model"
    write_empty(checkpoint, VOCAB, **LLAMA)
    write_adapter_of(checkpoint, tmp_path / "a", "q_proj", "up_proj")
    write_adapter_of(checkpoint, tmp_path / "b", "o_proj", r=16)
    return {"lora_adapters": json.dumps([str(tmp_path / "a"), str(tmp_path / "b")])}


def every(step: int, length: int) -> list[int]:
    """Return the stand-in's output after CYCLE with an adapter, or with none if step is 1."""
    return [28 + (CYCLE[-1] - 28 + step * i) % 7 for i in range(1, length + 1)]


def test_each_call_can_use_a_different_adapter(start, adapters):
    engine = start(**adapters)
    pending = [engine.start(CYCLE, 30, request_id=str(n), lora_task_id=n) for n in (0, 1, 2)]
    assert [call.wait().tokens for call in pending] == [every(step, 30) for step in (1, 2, 3)]


def test_adapters_get_memory_for_their_modules_and_ranks(start, package, adapters):
    start(**adapters)
    assert llm(package).arguments["lora_config"] == package.llmapi.llm_args.LoraConfig(
        lora_target_modules=["attn_dense", "attn_q", "mlp_gate"],
        max_lora_rank=16,
        max_loras=2,
        max_cpu_loras=2,
    )


@pytest.fixture
def newer(package, monkeypatch):
    """Let the stand-in pretend to be a version whose CUDA graphs and drafts work with adapters."""
    monkeypatch.setattr(package, "__version__", "1.3.0rc15")


def test_cuda_graphs_are_off_in_versions_whose_graphs_ignore_adapters(start, package, adapters):
    start(**adapters, llm_args='{"cuda_graph_config": null}')
    assert llm(package).arguments["cuda_graph_config"] is None
    start(**adapters)
    assert llm(package).arguments["cuda_graph_config"] is None
    message = (
        "llm_args.cuda_graph_config: CUDA graphs of TensorRT-LLM 1.2.1 ignore LoRA adapters; "
        "remove it, or install 1.3.0rc15 or later"
    )
    with pytest.raises(LoadError, match=message):
        start(**adapters, llm_args='{"cuda_graph_config": {"max_batch_size": 8}}')


@pytest.mark.usefixtures("newer")
def test_cuda_graphs_stay_on_in_versions_whose_graphs_apply_adapters(start, package, adapters):
    start(**adapters)
    assert "cuda_graph_config" not in llm(package).arguments
    start(**adapters, llm_args='{"cuda_graph_config": {"max_batch_size": 8}}')
    assert llm(package).arguments["cuda_graph_config"] == {"max_batch_size": 8}


def test_speculation_with_adapters_is_rejected_in_version_1_2_1(start, adapters):
    reason = r"1\.2\.1 can't combine adapters with speculation; install 1\.3\.0rc15 or later"
    with pytest.raises(LoadError, match=reason):
        start(**adapters, **LOOKUP)


@pytest.mark.usefixtures("newer")
@pytest.mark.parametrize("speculation", [LOOKUP, DRAFT], ids=["prompt_lookup", "draft"])
def test_drafts_do_not_change_an_adapters_output(start, adapters, speculation):
    assert start(**adapters, **speculation).tokens(CYCLE, 30, lora_task_id=2) == every(3, 30)


def test_an_adapter_of_another_model_is_rejected(start, adapters, tmp_path):
    write_empty(tmp_path / "model", VOCAB, **LLAMA | {"intermediate_size": 64})
    with pytest.raises(LoadError, match=r"a': .*up_proj doesn't fit the checkpoint$"):
        start(**adapters)


def test_an_adapter_of_a_layer_that_tensorrt_llm_cannot_adapt_is_rejected(
    start, package, monkeypatch, adapters
):
    api, names = package.llmapi.llm_args, {"attn_q": "q_proj", "mlp_gate": "up_proj"}
    monkeypatch.setattr(api, "get_default_trtllm_modules_to_hf_modules", lambda: names)
    with pytest.raises(LoadError, match=r"b': .*o_proj isn't supported by TensorRT-LLM$"):
        start(**adapters)


def test_startup_fails_if_tensorrt_llm_cannot_load_an_adapter(
    start, package, monkeypatch, adapters
):
    def fail(*_):
        raise RuntimeError("no matrix\nat all")

    monkeypatch.setattr(package.LLM, "_check_adapter", fail)
    with pytest.raises(LoadError, match=r"a': TensorRT-LLM can't apply it: no matrix$"):
        start(**adapters)
    assert llm(package).is_shut


def test_calls_with_unknown_adapters_are_rejected(start, adapters):
    with pytest.raises(RequestError, match="lora_task_id must be between 0 and 2; got 3"):
        start(**adapters).start(CYCLE, 3, lora_task_id=3)
    with pytest.raises(RequestError, match="lora_task_id isn't supported by this engine"):
        start().start(CYCLE, 3, lora_task_id=1)


@pytest.mark.parametrize(
    "speculation",
    [{}, LOOKUP, DRAFT],
    ids=["none", "prompt_lookup", "draft"],
)
@pytest.mark.parametrize("streaming", [True, False])
def test_a_call_returns_the_complete_output(start, speculation, streaming):
    outcome = start(**speculation).call(CYCLE, 40, streaming=streaming)
    assert outcome.tokens == said_after(CYCLE[-1], 40)
    assert (len(outcome.answers) > 1) == streaming


def test_capabilities_report_whether_the_engine_drafts_by_itself(start):
    control, speculative = start(), start(**LOOKUP)
    assert not control.engine.capabilities.drafts_itself
    assert speculative.engine.capabilities.drafts_itself
    for engine in (control.engine, speculative.engine):
        assert not engine.capabilities.verifies_drafts
        assert not engine.capabilities.keyed_randomness


def test_usage_equals_the_statistics_of_tensorrt_llm(looker):
    looker.call(CYCLE, 1)  # so that the next call reuses blocks
    usage = looker.call(CYCLE, 41, return_perf_metrics=True, arrival_time_ns=10**18).last.usage
    assert usage.draft_tokens == usage.accepted_tokens == 32
    assert (usage.reused_blocks, usage.new_blocks) == (2, 3)
    assert usage.first_scheduled_time_ns == 10**18 + 5_000_000
    assert 0 < usage.first_token_time_ns <= usage.last_token_time_ns
    assert eventually(lambda: looker.engine.computed_tokens == 2 * len(CYCLE) + 1 + 41)


def test_statistics_are_missing_if_not_requested(looker):
    usage = looker.call(CYCLE, 10).last.usage
    assert (usage.draft_tokens, usage.accepted_tokens) == (0, 0)


def test_end_id_minus_one_is_sent_if_a_call_has_none(looker, package):
    looker.call(CYCLE, 3)
    assert llm(package).results[-1].sampling_params.end_id == -1


@pytest.mark.parametrize("streaming", [True, False])
def test_an_end_id_ends_the_output_and_is_omitted(looker, streaming):
    outcome = looker.call([4, 5], 20, end_id=END, streaming=streaming)
    assert outcome.tokens == [6, 0]
    assert outcome.last.final


def test_output_has_at_least_min_tokens(looker):
    sampling = SamplingParams(top_k=1, min_tokens=5)
    assert len(looker.tokens([4, 5], 20, end_id=END, sampling=sampling)) >= 5


@pytest.mark.parametrize("streaming", [True, False])
def test_stop_words_end_the_output_and_abort_the_request(looker, package, streaming):
    outcome = looker.call(CYCLE, 200, stop_words=Words.of((34, 28)), streaming=streaming)
    assert outcome.tokens == [32, 33, 34, 28]
    assert eventually(llm(package).results[-1].aborted)


def test_stop_words_of_one_token_are_passed_to_tensorrt_llm(looker, package):
    outcome = looker.call(CYCLE, 200, stop_words=Words.of((34,), (28,)))
    assert outcome.tokens == [32, 33, 34]
    result = llm(package).results[-1]
    assert (result.sampling_params.stop_token_ids, result.aborted()) == ([28, 34], False)
    assert not result._streaming


def test_stop_words_of_one_token_do_not_end_before_min_tokens(looker):
    sampling = SamplingParams(top_k=1, min_tokens=8)
    outcome = looker.call(CYCLE, 200, stop_words=Words.of((34,)), sampling=sampling)
    assert outcome.tokens == said_after(31, 10)


@pytest.mark.parametrize("stop_words", [Words.of((34, 28)), Words.of((33,), (34, 28)), NO_WORDS])
@pytest.mark.parametrize("end_id", [None, 28])
def test_token_counts_are_correct_however_a_call_ends(looker, stop_words, end_id):
    outcome = looker.call(CYCLE, 30, stop_words=stop_words, end_id=end_id, return_perf_metrics=True)
    usage = outcome.last.usage
    assert 0 <= usage.accepted_tokens <= usage.draft_tokens
    assert usage.accepted_tokens < len(outcome.tokens) + (end_id is not None)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (SamplingParams(top_k=1), {"top_k": 1}),
        (SamplingParams(temperature=0.0), {"top_k": 1}),
        (SamplingParams(temperature=0.7), {"temperature": 0.7}),
        (SamplingParams(top_k=20), {"temperature": 1.0, "top_k": 20}),
        (SamplingParams(top_p=0.9, seed=7), {"temperature": 1.0, "top_p": 0.9, "seed": 7}),
    ],
)
def test_sampling_parameters_are_passed_on(looker, package, sampling, expected):
    looker.call(CYCLE, 3, sampling=sampling)
    params = llm(package).results[-1].sampling_params
    for name in ("temperature", "top_k", "top_p", "seed"):
        assert getattr(params, name) == expected.get(name)


@pytest.mark.parametrize(
    ("speculation", "works"),
    [
        ({}, True),
        (json.loads(LOOKUP["speculative_config"]), False),
        (json.loads(LOOKUP["speculative_config"]) | {"enable_penalty": True}, True),
    ],
)
def test_penalties_work_if_the_tensorrt_llm_version_applies_them(
    start, package, monkeypatch, speculation, works
):
    api = package.llmapi.llm_args

    class Newer(api.NGramDecodingConfig):
        enable_penalty: bool = False

    monkeypatch.setattr(api, "DecodingBaseConfig", Newer)
    monkeypatch.setattr(api, "NGramDecodingConfig", Newer)
    engine = start(**({"speculative_config": json.dumps(speculation)} if speculation else {}))
    sampling = SamplingParams(top_k=1, repetition_penalty=1.1, presence_penalty=0.2)
    if works:
        engine.call(CYCLE, 3, sampling=sampling)
        given = llm(package).results[-1].sampling_params
        assert (given.repetition_penalty, given.presence_penalty) == (1.1, 0.2)
        assert given.frequency_penalty is None
    else:
        with pytest.raises(RequestError, match="repetition_penalty"):
            engine.start(CYCLE, 3, sampling=sampling)


def test_embedding_bias_is_passed_on(looker, package):
    bias = np.linspace(-1, 1, VOCAB, dtype=np.float32)
    looker.call(CYCLE, 3, sampling=SamplingParams(top_k=1, embedding_bias=bias))
    received_bias = llm(package).results[-1].sampling_params.embedding_bias
    assert received_bias.tolist() == bias.tolist()


@pytest.mark.parametrize("bias", [None, np.zeros(VOCAB, np.float32)])
def test_a_bad_word_of_one_token_is_banned_by_bias(looker, bias):
    sampling = SamplingParams(top_k=1, bad_words=Words.of((33,), (28,)), embedding_bias=bias)
    assert looker.tokens([31], 5, sampling=sampling) == [32, 34, 29, 30, 31]
    assert bias is None or not bias.any()


def test_log_probs_line_up_with_the_tokens(looker):
    outcome = looker.call([4, 5], 20, end_id=END, return_log_probs=True)
    assert outcome.last.log_probs.tolist() == [-0.5, -0.5]


def test_missing_log_probs_fail_the_call(looker, package, go_on):
    pending = looker.start(CYCLE, 200, return_log_probs=True, streaming=True)
    pending.next()
    llm(package).results[-1].sampling_params.logprobs = None  # so none are returned
    go_on.set()
    assert "didn't return a log-probability" in pending.wait().error


def test_calls_run_concurrently(looker):
    prompts = [[first, first + 1] for first in range(0, 112, 7)]
    pending = [looker.start(ids, 30, request_id=str(ids)) for ids in prompts]
    for ids, call in zip(prompts, pending, strict=True):
        assert call.wait().tokens == said_after(ids[-1], 30)


def test_a_stopped_call_ends_immediately_and_is_aborted(looker, package, go_on):
    other = looker.start([70], 60, request_id="other")
    pending = looker.start(CYCLE, 200, streaming=True, request_id="gone")
    begun = pending.next()
    looker.engine.stop("gone")
    outcome = pending.wait()
    text = [*begun.tokens, *outcome.tokens]
    assert outcome.error is None
    assert len(text) < 200
    assert text == said_after(CYCLE[-1], len(text))
    assert [result.aborted() for result in llm(package).results] == [False, True]
    go_on.set()
    assert len(other.wait().tokens) == 60


@pytest.mark.usefixtures("go_on")
def test_a_stop_right_after_the_start_ends_a_call(looker):
    pending = looker.start(CYCLE, 200, request_id="gone")
    looker.engine.stop("gone")
    assert len(pending.wait().tokens) < 200
    looker.engine.stop("nobody")


def test_a_request_aborted_by_tensorrt_llm_fails(looker, package, go_on):
    pending = looker.start(CYCLE, 200, streaming=True)
    pending.next()
    llm(package).results[-1].abort()  # as if TensorRT-LLM had aborted the request
    go_on.set()
    assert pending.wait().error == "the engine failed: TensorRT-LLM ended the request: cancelled"


def test_a_failed_call_ends_with_a_one_line_error(looker, package, go_on):
    pending = looker.start(CYCLE, 200, streaming=True)
    pending.next()
    llm(package).results[-1].respond([], RuntimeError("no memory\nat all"))
    assert pending.wait().error == "the engine failed: no memory"
    go_on.set()
    assert looker.tokens(CYCLE, 3) == said_after(CYCLE[-1], 3)


def test_a_request_is_aborted_if_its_responses_cannot_be_delivered(looker, package):
    def respond(_answer):
        raise BrokenPipeError

    ids = np.array(CYCLE, np.int32)
    looker.engine.submit(EngineRequest("r", ids, 200, sampling=GREEDY, streaming=True), respond)
    assert looker.tokens(CYCLE, 40) == said_after(CYCLE[-1], 40)
    assert eventually(llm(package).results[0].aborted)


@pytest.mark.usefixtures("go_on")
def test_closing_fails_running_calls_and_ends_the_llm(start, package):
    engine = start().engine
    harness = Harness(engine)
    pending = harness.start(CYCLE, 200)
    engine.close()
    assert pending.wait().error == "the engine is shutting down"
    assert llm(package).is_shut
    with pytest.raises(RequestError, match="shutting down"):
        harness.start(CYCLE, 3)
    engine.close = lambda: None  # the fixture must not close the engine again


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("draft_input_ids", {"drafts": [5, 6]}),
        ("draft_acceptance_threshold", {"draft_acceptance_threshold": 0.5}),
        ("token_masks", {"token_masks": np.full((3, 5), -1, np.int32)}),
        ("draft_stop_probability", {"draft_stop_probability": 0.5}),
        ("return_context_logits", {"return_context_logits": True}),
        ("return_generation_logits", {"return_generation_logits": True}),
        ("bad_words_list", {"sampling": SamplingParams(bad_words=Words.of((5,), (6, 7)))}),
        ("cache_salt", {"cache_salt": 7}),
        ("min_p", {"sampling": SamplingParams(min_p=0.1)}),
        ("repetition_penalty", {"sampling": SamplingParams(repetition_penalty=1.1)}),
        ("presence_penalty", {"sampling": SamplingParams(presence_penalty=0.1)}),
        ("frequency_penalty", {"sampling": SamplingParams(frequency_penalty=0.1)}),
        ("input_ids must have .*; got 131", {"ids": [131]}),
        ("the limit is 256", {"new": 250}),
    ],
)
def test_unsupported_inputs_are_rejected(looker, name, asked):
    with pytest.raises(RequestError, match=name):
        looker.start(**{"ids": CYCLE, "new": 3, **asked})


def test_masks_are_rejected_without_speculation(start):
    with pytest.raises(RequestError, match="token_masks isn't supported by this engine"):
        start().start(CYCLE, 3, token_masks=np.full((3, 5), -1, np.int32))


def test_a_failed_start_is_reported_in_one_line(start, tmp_path):
    with pytest.raises(LoadError, match=r"TensorRT-LLM failed to start: .*config.json"):
        start(model=str(tmp_path / "nothing"))


def test_the_error_for_a_missing_package_says_how_to_fix_it(tmp_path):
    sizes = {"vocab_size": "9", "max_seq_len": "9", "kv_cache_tokens": "9"}
    config = {"engine": "llmapi", "model": "x", **sizes}
    with pytest.raises(LoadError, match=r"can't import .*pip install tensorrt-llm"):
        load_engine(model_config(config), tmp_path)
