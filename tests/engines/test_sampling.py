"""The torch engine applies sampling options and rejects invalid calls."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from engine_harness import VOCAB, Conducted, prompt
from live_triton import eventually
from safetensors.torch import save_file

from tandem.engines.engine import CallUsage, EngineRequest, SamplingParams, Words
from tandem.engines.errors import LoadError, RequestError
from tandem.engines.stepping.sampling import CallSampler
from tandem.engines.torch.engine import TorchEngine
from tandem.sampling.params import SamplingNumbers
from tandem.sampling.warping import likeliest, probabilities


def greedy(**rest) -> SamplingParams:
    return SamplingParams(top_k=1, **rest)


PROCESSORS = [
    greedy(repetition_penalty=1.7),
    greedy(presence_penalty=1.5),
    greedy(frequency_penalty=0.8, presence_penalty=0.3),
    SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.4, seed=3),
]


@pytest.mark.parametrize("sampling", PROCESSORS)
@pytest.mark.parametrize("draft_len", [1, 8])
def test_penalties_include_the_draft_tokens_before_each_position(llama, sampling, draft_len):
    ids = prompt(1, 15)
    want = llama.tokens(ids, 30, sampling=sampling)
    text: list[int] = []
    while len(text) < 20:
        drafts = want[len(text) : len(text) + draft_len]  # all right, so every position counts
        text += llama.tokens(ids + text, draft_len + 1, drafts=drafts, sampling=sampling)
        assert text == want[: len(text)]


@pytest.mark.parametrize(
    ("penalty", "scores"),
    [
        ({"repetition_penalty": 2.0}, [1.0, -4.0, 0.5, 0.25, 0.0]),
        ({"presence_penalty": 0.5}, [1.5, -2.5, 0.5, 0.0, 0.0]),
        ({"frequency_penalty": 0.25}, [1.75, -2.25, 0.5, 0.0, 0.0]),
        ({"frequency_penalty": 0.25, "presence_penalty": -0.5}, [2.25, -1.75, 0.5, 0.5, 0.0]),
    ],
)
def test_penalties_follow_transformers_and_openai(penalty, scores):
    """Token 0 and token 1 occurred once in the context and the answer so far, token 3 twice."""
    request = EngineRequest("r", np.array([0, 3], np.int32), 9, sampling=greedy(**penalty))
    given = np.array([2.0, -2.0, 0.5, 0.5, 0.0], np.float32)
    assert CallSampler(request, 5).process(given, np.array([0, 3, 1, 3])).tolist() == scores
    assert given.tolist() == [2.0, -2.0, 0.5, 0.5, 0.0]  # log-probabilities need it


def test_penalties_change_the_output(llama):
    ids = prompt(1, 15)
    texts = [tuple(llama.tokens(ids, 30, sampling=sampling)) for sampling in PROCESSORS]
    assert len({*texts, tuple(llama.tokens(ids, 30))}) == len(PROCESSORS) + 1


def test_bad_words_are_never_generated_or_accepted(llama):
    ids = prompt(2, 10)
    text = llama.tokens(ids, 10)
    single = greedy(bad_words=Words.of((text[0],)))
    assert text[0] not in llama.tokens(ids, 20, sampling=single)
    assert llama.tokens(ids, 5, drafts=text[:4], sampling=single)[0] != text[0]
    pair = greedy(bad_words=Words.of(tuple(text[2:4])))
    assert llama.tokens(ids, 10, sampling=pair)[:3] == text[:3]
    emitted = llama.tokens(ids, 5, drafts=text[:4], sampling=pair)
    assert emitted[:3] == text[:3]
    assert emitted[3] != text[3]


def test_embedding_bias_changes_the_chosen_token(llama):
    bias = np.zeros(VOCAB, np.float32)
    bias[42] = 1000
    assert llama.tokens(prompt(3, 10), 5, sampling=greedy(embedding_bias=bias)) == [42] * 5


def test_banning_every_token_fails_only_that_call(llama):
    every = Words.of(*((token,) for token in range(VOCAB)))
    with llama.engine._wake:  # so that both calls are in the same step
        bad = llama.start(prompt(3, 10), 5, sampling=greedy(bad_words=every))
        good = llama.start(prompt(4, 10), 5)
    assert bad.wait().error == "bad_words_list, embedding_bias and end_id together ban every token"
    assert len(good.wait().tokens) == 5


FORCES_0 = np.where(np.arange(VOCAB) == 0, 1000, 0).astype(np.float32)


@pytest.mark.parametrize(
    "sampling",
    [greedy(presence_penalty=2.0, temperature=0.5), greedy(embedding_bias=FORCES_0)],
)
def test_log_probs_ignore_sampling_parameters(llama, reference, sampling):
    ids = prompt(5, 10)
    outcome = llama.call(ids, 8, return_log_probs=True, sampling=sampling)
    with torch.inference_mode():
        logits = reference("llama")(torch.tensor([ids + outcome.tokens])).logits[0]
    rows = logits.log_softmax(-1)[len(ids) - 1 : -1]
    want = rows[range(8), outcome.tokens]
    np.testing.assert_allclose(outcome.last.log_probs, want, atol=1e-4)


@pytest.mark.parametrize("drafts", [0, 4])
def test_top_log_probs_are_the_most_likely_tokens_at_each_position(llama, reference, drafts):
    ids = prompt(5, 10)
    said = llama.tokens(ids, 5)
    outcome = llama.call(ids, 5, drafts=said[:drafts], return_log_probs=True, num_top_log_probs=3)
    with torch.inference_mode():
        logits = reference("llama")(torch.tensor([ids + outcome.tokens])).logits[0]
    values, best = logits.log_softmax(-1)[len(ids) - 1 : -1].topk(3)
    top = outcome.last.top_log_probs
    assert top.ids.tolist() == best.tolist()
    np.testing.assert_allclose(top.log_probs, values, atol=1e-4)
    assert top.log_probs[:, 0].tolist() == outcome.last.log_probs.tolist()  # exactly equal


@pytest.mark.parametrize("length", [1, 2, 40, 150])
def test_context_log_probs_equal_transformers(llama, reference, length):
    ids = prompt(6, length)
    llama.call(ids, 1)  # the cached context must not be reused
    outcome = llama.call(ids, 3, drafts=[5, 6], return_prompt_log_probs=True, num_top_log_probs=2)
    with torch.inference_mode():
        rows = reference("llama")(torch.tensor([ids])).logits[0].log_softmax(-1)
    log_probs, top = outcome.last.prompt_log_probs, outcome.last.prompt_top_log_probs
    assert (len(log_probs), log_probs[0]) == (length, 0)
    assert (top.ids[0].tolist(), top.log_probs[0].tolist()) == ([0, 0], [0, 0])
    np.testing.assert_allclose(log_probs[1:], rows[range(length - 1), ids[1:]], atol=1e-4)
    values, best = rows[:-1].topk(2)
    assert top.ids[1:].tolist() == best.tolist()
    np.testing.assert_allclose(top.log_probs[1:], values, atol=1e-4)
    assert outcome.last.log_probs is None


def test_context_log_probs_come_once_in_a_stream_and_only_on_request(llama):
    ids = prompt(6, 9)
    streamed = llama.call(ids, 3, streaming=True, return_prompt_log_probs=True)
    first, *others = (answer.prompt_log_probs for answer in streamed.answers)
    assert len(first) == 9
    assert others == [None, None]
    assert llama.call(ids, 1).last.prompt_log_probs is None


def test_output_varies_without_a_seed(llama):
    ids = prompt(7, 10)
    free = SamplingParams(temperature=1.5)
    assert len({tuple(llama.tokens(ids, 12, sampling=free)) for _ in range(5)}) > 1


@pytest.mark.parametrize(
    "numbers",
    [
        {"min_p": 0.1},
        {"temperature": 1.5, "min_p": 0.5},
        {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
        {"top_k": 2, "top_p": 0.01, "min_p": 1.0},
    ],
    ids=str,
)
def test_sampling_matches_the_distribution_of_transformers(reference, numbers):
    model, ids = reference("llama"), torch.tensor([prompt(8, 12)])
    output = model.generate(
        ids,
        max_new_tokens=1,
        do_sample=True,
        pad_token_id=0,
        output_scores=True,
        output_logits=True,
        return_dict_in_generate=True,
        **{"top_k": 0, **numbers},
    )
    found = probabilities(output.logits[0][0].numpy(), SamplingNumbers(**numbers))
    np.testing.assert_allclose(found, output.scores[0][0].softmax(-1), atol=1e-6)


@pytest.mark.parametrize("count", [1, 5, 300, 2000])
def test_the_most_likely_tokens_of_a_large_vocabulary_are_found(count):
    scores = np.random.default_rng(3).normal(size=10_000).astype(np.float32).round(1)  # with ties
    ranked = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    assert likeliest(scores, count).tolist() == ranked[:count]


def test_the_lowest_top_p_keeps_all_tokens_if_they_are_equally_likely():
    found = probabilities(np.zeros(8, np.float32), SamplingNumbers(top_p=1e-9))
    assert found.tolist() == [1 / 8] * 8


def test_a_stopped_call_without_streaming_returns_the_tokens_so_far(make_harness):
    harness = make_harness()
    actions = {
        1: lambda: harness.start(prompt(1, 9), 40, request_id="silent"),
        6: lambda: harness.engine.stop("silent"),
    }
    watched = Conducted(harness, prompt(2, 9), 20, actions)
    assert len(watched.wait().tokens) == 20
    assert len(watched.results[0].wait().tokens) == 5


def test_a_waiting_call_can_be_stopped(make_harness):
    harness = make_harness(kv_cache_tokens=256)
    actions = {
        1: lambda: harness.start(prompt(2, 9), 240, request_id="waits"),
        3: lambda: harness.engine.stop("waits"),
    }
    running = Conducted(harness, prompt(1, 9), 240, actions)
    assert len(running.wait().tokens) == 240
    stopped = running.results[0].wait()
    assert stopped.tokens == []
    assert stopped.last.usage == CallUsage()


def test_closing_ends_running_calls_with_an_error(make_harness):
    harness = make_harness()
    actions = {1: lambda: eventually(lambda: harness.engine._closing)}
    running = Conducted(harness, prompt(1, 9), 2, actions)
    harness.engine.close()
    assert running.wait().error == "the engine is shutting down"
    with pytest.raises(RequestError, match="shutting down"):
        harness.start(prompt(1, 9))


def test_a_failed_forward_pass_fails_only_its_calls(make_harness, monkeypatch):
    harness = make_harness()
    forward = harness.engine._model.forward

    def broken(*_):
        raise RuntimeError("out of memory\nmore about it")

    monkeypatch.setattr(harness.engine._model, "forward", broken)
    assert harness.start(prompt(1, 9)).wait().error == "the model failed: out of memory"
    monkeypatch.setattr(harness.engine._model, "forward", forward)
    assert len(harness.tokens(prompt(1, 9), 3)) == 3


def test_a_disconnected_caller_ends_only_its_own_call(make_harness):
    harness = make_harness()
    answered = []

    def gone(answer):
        answered.append(answer)
        raise ConnectionError("nobody there")

    request = EngineRequest("r", np.array([4, 5], np.int32), 200, streaming=True)
    harness.engine.submit(request, gone)
    assert len(harness.tokens(prompt(1, 9), 20)) == 20
    assert len(answered) == 1


REJECTED = [
    ({"ids": [VOCAB]}, r"input_ids must have ids between 0 and 130; got 131"),
    ({"ids": [-1]}, "input_ids must have .*; got -1"),
    ({"ids": [1], "drafts": [500]}, "draft_input_ids must have .*; got 500"),
    ({"ids": [1], "drafts": [1] * 9}, "draft_input_ids has 9 tokens; the limit is 8"),
    ({"ids": [1] * 250, "new": 10}, "need 260 tokens; the limit is 256"),
    ({"ids": [1], "end_id": 131}, "end_id must be between 0 and 130; got 131"),
    (
        {"ids": [1], "sampling": greedy(bad_words=Words.of((999,)))},
        "bad_words_list must have .*; got 999",
    ),
    (
        {"ids": [1], "sampling": greedy(embedding_bias=np.zeros(3, np.float32))},
        "embedding_bias must have 131 values.*; got 3",
    ),
    (
        {"ids": [1], "drafts": [1, 2], "draft_logits": np.zeros((2, 7), np.float32)},
        r"draft_logits must have shape \[2, 131\].*; got \[2, 7\]",
    ),
    (
        {"ids": [1], "drafts": [1, 2], "draft_logits": np.zeros((1, VOCAB), np.float32)},
        r"draft_logits must have shape \[2, 131\].*; got \[1, 131\]",
    ),
]


@pytest.mark.parametrize(("call", "message"), REJECTED)
def test_invalid_calls_are_rejected(llama, call, message):
    with pytest.raises(RequestError, match=message):
        llama.start(**call)


@pytest.mark.parametrize("name", ["bloom", "falcon"])
def test_unsupported_attention_is_rejected_at_load(make_harness, name):
    with pytest.raises(LoadError, match=f"architecture '{name}' isn't supported: its attention"):
        make_harness(name)


@pytest.mark.parametrize("name", ["phimoe", "qwen2_moe"])
def test_a_window_that_attention_would_ignore_is_rejected_at_load(make_harness, name):
    line = f"architecture '{name}' isn't supported: .* window of 64 tokens.* max_seq_len .* 64$"
    with pytest.raises(LoadError, match=line):
        make_harness(name, max_seq_len=65)
    make_harness(name, max_seq_len=64)  # the window hides nothing


def test_a_window_that_transformers_ignores_is_no_reason_to_reject(make_harness, reference):
    ids = prompt(1, 100)
    with torch.inference_mode():
        logits = reference("llama-window")(torch.tensor([ids])).logits[0]
    assert make_harness("llama-window").tokens(ids, 1) == [int(logits[-1].argmax())]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_seq_len": 4096}, "max_seq_len must be at most 512.*; got 4096"),
        ({"device": "abacus"}, "device must be .*; got 'abacus'"),
        ({"dtype": "int3"}, "dtype must be .*; got 'int3'"),
        (
            {"max_batch_tokens": 8},
            r"max_batch_tokens must be greater than max_draft_len \(8\); got 8",
        ),
        ({"kv_block_tokens": 0}, "kv_block_tokens must be .*; got 0"),
        ({"kv_cache_tokens": 3}, "kv_cache_tokens must be at least kv_block_tokens"),
    ],
)
def test_invalid_settings_are_rejected_at_load(make_harness, settings, message):
    with pytest.raises(LoadError, match=message):
        make_harness("llama", **settings)


def test_a_context_that_would_change_the_angles_of_cached_keys_is_rejected_at_load(make_harness):
    """LongRoPE rotates all positions differently if a text is longer than this."""
    with pytest.raises(LoadError, match=r"must be at most 64, .* original_max_.*; got 65"):
        make_harness("phi3", max_seq_len=65)
    make_harness("phi3", max_seq_len=64)


def test_a_checkpoint_whose_quantization_needs_another_package_is_rejected(tmp_path):
    from tandem.engines.torch.settings import TorchSettings

    quantization = {"quant_method": "gptq", "bits": 4}
    config = {"model_type": "llama", "quantization_config": quantization}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"weight": torch.ones(1)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(LoadError, match=r"can't load the checkpoint: .*GPTQ.* requires"):
        TorchEngine(TorchSettings(".", 64, 64), tmp_path)


def test_the_error_names_a_missing_checkpoint(tmp_path):
    from tandem.engines.torch.settings import TorchSettings

    with pytest.raises(LoadError, match=r"nothing/config\.json doesn't exist"):
        TorchEngine(TorchSettings("nothing", 64, 64), tmp_path)
