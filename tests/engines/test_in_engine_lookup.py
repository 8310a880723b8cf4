"""Prompt lookup inside the engine (V2): a single call drafts and verifies all rounds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from engine_harness import END, Harness, assert_same, prompt, successor
from scale import first_of

from tandem.contract import engine as tensors
from tandem.engines.encoding import encode
from tandem.engines.errors import LoadError, RequestError, UnsupportedError
from tandem.engines.request import EngineRequest, SamplingParams
from tandem.engines.torch.settings import TorchSettings
from tandem.engines.words import Words
from tandem.lookup.index import NgramIndex

LONGEST = 10
SAMPLED = {"temperature": 1.2, "top_k": 40, "top_p": 0.95}


def repeating(seed: int) -> list[int]:
    """A prompt that repeats the same tokens three times, with others in between."""
    phrase = prompt(seed, 9)
    return [*phrase, *prompt(seed + 100, 3), *phrase, *prompt(seed + 200, 2), *phrase[:4]]


PROMPTS = [prompt(seed, 5 + 3 * seed) for seed in range(4)] + [repeating(seed) for seed in range(6)]
CYCLE = list(itertools.accumulate(range(12), lambda token, _: successor(token), initial=30))


@pytest.fixture(scope="module")
def engine_of(make_harness):
    """Return an engine with prompt lookup for these settings; each is made once."""
    made: dict[tuple, Harness] = {}

    def get(num_tokens=4, ngram=2, name="llama", **settings) -> Harness:
        key = (num_tokens, ngram, name, *sorted(settings.items()))
        if key not in made:
            made[key] = make_harness(
                name,
                max_draft_len=LONGEST,
                prompt_lookup_num_tokens=num_tokens,
                max_matching_ngram_size=ngram,
                **settings,
            )
        return made[key]

    return get


@pytest.fixture(scope="module")
def looker(engine_of) -> Harness:
    """A random model with prompt lookup."""
    return engine_of()


@pytest.fixture(scope="module")
def cycler(engine_of) -> Harness:
    """A model that repeats cycles of seven tokens, so lookups are correct after the first."""
    return engine_of(name="cycles")


@pytest.fixture(scope="module")
def plain(llama):
    """The baseline's text for each prompt."""
    return [llama.tokens(ids, 40) for ids in PROMPTS]


@pytest.mark.parametrize(("num_tokens", "ngram"), [(4, 2), (10, 1), (10, 3)])
def test_greedy_output_equals_the_baseline(engine_of, reference, plain, num_tokens, ngram):
    looker = engine_of(num_tokens, ngram)
    for ids, want in zip(PROMPTS, plain, strict=True):
        outcome = looker.call(ids, 40)
        assert_same(reference("llama"), ids, outcome.tokens, want)


@pytest.mark.parametrize("name", first_of("paged qwen2", "gpt2", "mistral", "paged cycles"))
def test_greedy_output_equals_the_baseline_on_every_architecture(
    engine_of, make_harness, reference, name
):
    looker, control = engine_of(10, 3, name=name), make_harness(name)
    for ids in PROMPTS:
        want = control.tokens(ids, 40)
        assert_same(reference(name), ids, looker.tokens(ids, 40), want)


@pytest.mark.parametrize("uses_oldest", [True, False])
@pytest.mark.parametrize("keeps_all", [True, False])
def test_output_does_not_depend_on_the_lookup_settings(engine_of, plain, keeps_all, uses_oldest):
    looker = engine_of(lookup_keeps_all=keeps_all, lookup_uses_oldest=uses_oldest)
    for ids, want in zip(PROMPTS, plain, strict=True):
        assert looker.tokens(ids, 40) == want


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ["llama", "paged cycles"])
def test_sampled_output_equals_the_baseline_for_each_seed(engine_of, make_harness, name, seed):
    sampling = SamplingParams(**SAMPLED, seed=seed)
    looker, control = engine_of(name=name), make_harness(name)
    for ids in [PROMPTS[seed], repeating(seed), CYCLE]:
        assert looker.tokens(ids, 40, sampling=sampling) == control.tokens(
            ids, 40, sampling=sampling
        )


@pytest.mark.parametrize(
    "asked",
    [
        {"repetition_penalty": 1.5},
        {"presence_penalty": 0.8, "frequency_penalty": 0.4},
        {"bad_words": Words.of((33,), (31, 32))},
        {"embedding_bias": np.linspace(-2, 2, 131, dtype=np.float32)},
    ],
    ids=lambda asked: next(iter(asked)),
)
@pytest.mark.parametrize("name", first_of("paged cycles", "llama"))
def test_penalties_bans_and_biases_apply_at_every_draft_position(
    engine_of, make_harness, asked, name
):
    looker, control = engine_of(name=name), make_harness(name)
    for ids, chosen in itertools.product([CYCLE, repeating(4)], [{"top_k": 1}, {"seed": 3}]):
        sampling = SamplingParams(temperature=0.7, **chosen, **asked)
        want = control.tokens(ids, 30, sampling=sampling)
        assert looker.tokens(ids, 30, sampling=sampling) == want


def test_correct_drafts_compute_each_token_only_once(make_harness):
    outcome = make_harness("cycles", prompt_lookup_num_tokens=4).call(CYCLE, 41)
    usage = outcome.last.usage
    assert len(outcome.tokens) == 41
    assert usage.draft_tokens == usage.accepted_tokens == 32
    assert usage.computed_tokens == len(CYCLE) + 40  # no token was computed in vain


def test_draft_and_accepted_counts_match_the_output(looker, plain):
    for ids, want in zip(PROMPTS, plain, strict=True):
        outcome = looker.call(ids, 40, streaming=True)
        usage = outcome.last.usage
        rounds = len(outcome.answers)
        assert outcome.tokens == want
        assert len(want) == usage.accepted_tokens + rounds
        assert usage.accepted_tokens <= usage.draft_tokens <= 4 * rounds


@pytest.mark.parametrize("ends", ["end_id", "stop_words", "longer_stop_words"])
def test_counts_match_the_output_if_a_draft_contains_the_end(engine_of, ends):
    """A round emits one token more than it accepts; the token that ends an answer is included.

    An end id is omitted from the answer, so its round emits one less.
    """
    random = np.random.default_rng(4)
    for name, seed in itertools.product(["llama", "cycles"], range(8)):
        looker, ids = engine_of(name=name), [repeating(seed), CYCLE][seed % 2]
        text = looker.tokens(ids, 30)
        at = int(random.integers(1, 30))
        asked = {
            "end_id": {"end_id": text[at]},
            "stop_words": {"stop_words": Words.of((text[at],))},
            "longer_stop_words": {"stop_words": Words.of(text[at - 1 : at + 1])},
        }[ends]
        outcome = looker.call(ids, 30, streaming=True, **asked)
        usage, emitted = outcome.last.usage, len(outcome.tokens) + (ends == "end_id")
        assert emitted == usage.accepted_tokens + len(outcome.answers)
        assert 0 <= usage.accepted_tokens <= usage.draft_tokens
        if ends == "end_id":
            assert outcome.tokens == text[: text.index(text[at])]
        else:
            assert outcome.tokens == text[: len(outcome.tokens)]
            assert text[at] == outcome.tokens[-1]


def test_tokens_after_an_accepted_end_are_not_counted(cycler):
    """The prompt has the end of sequence and later tokens; both are drafted correctly."""
    bias = np.zeros(131, np.float32)
    bias[END] = 1e9
    sampling = SamplingParams(top_k=1, embedding_bias=bias)
    usage = cycler.call([5, END, 5], 20, end_id=END, sampling=sampling).last.usage
    assert (usage.draft_tokens, usage.accepted_tokens) == (1, 0)
    unending = cycler.call([5, END, END, END, 5], 6, sampling=sampling)
    assert unending.tokens == [END] * 6


def test_no_end_token_appears_before_min_tokens(engine_of, make_harness):
    looker, control = engine_of(name="cycles"), make_harness("cycles")
    ids = [5, 6, 0, END, 2, 3, 4, 5]
    for min_tokens in range(12):
        sampling = SamplingParams(top_k=1, min_tokens=min_tokens)
        asked = {"sampling": sampling, "end_id": END, "stop_words": Words.of((3,), (4,))}
        want = control.tokens(ids, 20, **asked)
        assert looker.tokens(ids, 20, **asked) == want
        assert len(want) >= min_tokens


def decode_by_rounds(target: Harness, ids: list[int], new: int) -> tuple[list[int], int, int]:
    """Do the same outside the engine (V1): look up and verify until the answer is complete."""
    text, drafted, accepted = [], 0, 0
    index = NgramIndex(2)
    index.extend(ids)
    while len(text) < new:
        limit = min(4, new - len(text) - 1)
        match = index.lookup(limit) if limit else None
        drafts = match.tokens if match else []
        emitted = target.tokens([*ids, *text], len(drafts) + 1, drafts=drafts)
        drafted, accepted = drafted + len(drafts), accepted + len(emitted) - 1
        index.extend(emitted)
        text += emitted
    return text, drafted, accepted


@pytest.mark.parametrize("name", first_of("paged cycles", "llama"))
def test_drafts_and_output_equal_prompt_lookup_in_the_loop(engine_of, make_harness, name):
    looker, target = engine_of(name=name), make_harness(name)
    for ids in [*PROMPTS[::2], CYCLE]:
        outcome = looker.call(ids, 40)
        usage = outcome.last.usage
        inside = (outcome.tokens, usage.draft_tokens, usage.accepted_tokens)
        assert inside == decode_by_rounds(target, ids, 40)


def test_nothing_is_drafted_after_an_end_of_sequence(cycler):
    ids = [5, 6, 0, END, 2, 3, 4, 5]
    assert cycler.call(ids, 20, end_id=END).last.usage.draft_tokens == 3


def test_a_stream_sends_one_response_per_round(cycler):
    outcome = cycler.call(CYCLE, 15, streaming=True)
    assert [len(answer.tokens) for answer in outcome.answers] == [5, 5, 5]
    assert [answer.final for answer in outcome.answers] == [False, False, True]
    assert [answer.usage.accepted_tokens for answer in outcome.answers] == [4, 8, 12]


def test_log_probs_and_logits_line_up_with_the_tokens(engine_of, make_harness):
    looker, control = engine_of(name="cycles"), make_harness("cycles")
    asked = {"return_log_probs": True, "return_generation_logits": True}
    sampling = SamplingParams(top_k=1, frequency_penalty=0.1)
    got = looker.call(CYCLE, 20, sampling=sampling, **asked).last
    want = control.call(CYCLE, 20, sampling=sampling, **asked).last
    assert got.tokens == want.tokens
    assert got.usage.accepted_tokens
    np.testing.assert_allclose(got.log_probs, want.log_probs, atol=1e-4)
    np.testing.assert_allclose(got.generation_logits, want.generation_logits, atol=1e-4)
    assert got.cum_log_prob == pytest.approx(want.cum_log_prob, abs=1e-3)


def test_a_stopped_call_returns_the_tokens_so_far(cycler):
    pending = cycler.start(CYCLE, 200, streaming=True, request_id="gone")
    begun = pending.next()
    cycler.engine.stop("gone")
    outcome = pending.wait()
    text = [*begun.tokens, *outcome.tokens]
    assert outcome.error is None
    assert text == list(itertools.islice(_cycle_after(CYCLE[-1]), len(text)))


@pytest.mark.parametrize("max_batch_tokens", [16, 512])
def test_concurrent_calls_give_the_same_output_as_single_calls(engine_of, plain, max_batch_tokens):
    looker = engine_of(max_batch_tokens=max_batch_tokens)
    pending = [looker.start(ids, 40, request_id=str(i)) for i, ids in enumerate(PROMPTS)]
    assert [call.wait().tokens for call in pending] == plain


def test_drafts_are_never_copied_from_other_requests(cycler):
    cycler.call(CYCLE, 40)
    assert cycler.call([CYCLE[0]], 5).last.usage.draft_tokens == 0
    assert cycler.call(CYCLE[:2], 4).last.usage.draft_tokens == 0


def test_streaming_does_not_change_the_output(looker, plain):
    for ids, want in zip(PROMPTS, plain, strict=True):
        text: list[int] = []
        while len(text) < 40:
            text += looker.tokens([*ids, *text], 8)
        assert text == want


def test_statistics_are_returned_in_nvidias_tensors(cycler):
    pending = cycler.start(CYCLE, 20, return_perf_metrics=True)
    answer = pending.wait().last
    request = EngineRequest("r", np.array(CYCLE, np.int32), 20, return_perf_metrics=True)
    wanted = (
        tensors.TOTAL_DRAFT_TOKENS,
        tensors.TOTAL_ACCEPTED_DRAFT_TOKENS,
        tensors.ACCEPTANCE_RATE,
    )
    told = {name: array.item() for name, array in encode(request, answer, wanted)}
    assert told == {wanted[0]: 16, wanted[1]: 16, wanted[2]: 1.0}


def test_capabilities_show_that_the_engine_drafts_by_itself(looker, llama):
    assert looker.engine.capabilities.drafts_itself
    assert not looker.engine.capabilities.verifies_drafts
    assert not llama.engine.capabilities.drafts_itself


def test_drafts_from_the_caller_are_rejected(looker):
    with pytest.raises(
        RequestError, match="draft_input_ids isn't supported by an engine that drafts"
    ):
        looker.start([3, 4], 3, drafts=[5, 6])


def test_token_masks_for_more_than_one_token_are_rejected(looker):
    line = "request_output_len must be 1 with token_masks; got 3: this engine drafts by itself"
    with pytest.raises(UnsupportedError, match=line):
        looker.start([3, 4], 3, token_masks=np.full((3, 5), -1, np.int32))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"prompt_lookup_num_tokens": 9}, "prompt_lookup_num_tokens must be at most max_draft_len"),
        ({"prompt_lookup_num_tokens": -1}, "prompt_lookup_num_tokens must be at least 0; got -1"),
        ({"max_matching_ngram_size": 0}, "max_matching_ngram_size must be at least 1; got 0"),
    ],
)
def test_invalid_settings_are_rejected(settings, words):
    common = {"checkpoint": "x", "max_seq_len": 64, "kv_cache_tokens": 64, "max_draft_len": 8}
    with pytest.raises(LoadError, match=words):
        TorchSettings(**common, **settings)


def _cycle_after(token: int):
    while True:
        token = successor(token)
        yield token
