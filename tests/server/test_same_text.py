"""Speculative decoding changes the speed, but never the output."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import tritonclient.grpc as client
from entries import ask, ask_one, inputs, joined, read, said, stream, tensor
from prompts import COMPLETIONS, EDITS
from scale import first_of

LENGTH = 24
PROMPTS = COMPLETIONS[:8]
DRAFTED = [{"drafter": "draft_model", "num_draft_tokens": n} for n in (8, 1, 4)]
COPIED = [
    {"drafter": drafter, "prompt_lookup_num_tokens": tokens, "max_matching_ngram_size": size}
    for drafter in ("prompt_lookup", "hybrid")
    for tokens, size in ((10, 1), (4, 3), (10, 4))
]
AHEAD = [{"drafter": drafter, "draft_ahead": "true"} for drafter in ("draft_model", "hybrid")]
THEIRS = "a word of the output"
LOOKUP = {"drafter": "prompt_lookup", "num_draft_tokens": 8}
FEW_WAYS = [DRAFTED[0], LOOKUP, {"drafter": "hybrid"}, AHEAD[0]]


def in_batches(server, model, prompts=PROMPTS, **values):
    batches = [prompts[at : at + 16] for at in range(0, len(prompts), 16)]
    answers = [ask(server, model, batch, **{"max_tokens": LENGTH, **values}) for batch in batches]
    return [answer for batch in answers for answer in batch]


def accepted(answers):
    return sum(answer.accepted_tokens for answer in answers)


@pytest.fixture(scope="module")
def baseline(server):
    """The answer of the target alone to each prompt."""
    return in_batches(server, "ensemble")


@pytest.mark.engines
@pytest.mark.parametrize("way", FEW_WAYS, ids="-".join)
def test_greedy_output_equals_the_target_alone(server, baseline, way):
    answers = in_batches(server, "bls", **way)
    assert said(answers) == said(baseline)
    assert accepted(answers) > 0


@pytest.mark.heavy
def test_greedy_output_equals_the_target_alone_for_many_prompts_and_settings(server):
    prompts = [*COMPLETIONS[::8], *EDITS[::8]]
    expected = said(in_batches(server, "ensemble", prompts))
    for way in [*DRAFTED, *COPIED, *AHEAD, {"use_draft_logits": True}]:
        answers = in_batches(server, "bls", prompts, **way)
        assert said(answers) == expected
        assert accepted(answers) > 0


@pytest.mark.parametrize(
    "sampling",
    first_of(
        {"temperature": 1.2, "top_k": 20},
        {"temperature": 0.8, "min_tokens": 5},
        {"top_p": 0.9},
        {"min_p": 0.1},
    ),
)
def test_a_seed_gives_the_same_output_with_any_drafter(server, sampling):
    values = {"seed": 11, **sampling}
    expected = in_batches(server, "ensemble", PROMPTS[:4], **values)
    for way in FEW_WAYS:
        assert said(in_batches(server, "bls", PROMPTS[:4], **way, **values)) == said(expected)
    other = in_batches(server, "bls", PROMPTS[:4], **{**values, "seed": 12})
    assert said(other) != said(expected)


@pytest.mark.parametrize("sampling", [{}, {"seed": 3, "temperature": 1.2, "top_k": 20}])
def test_a_prediction_reduces_rounds_without_changing_the_output(server, sampling):
    values = {"max_tokens": LENGTH, **sampling}
    expected = ask_one(server, "ensemble", PROMPTS[0], **values)
    for way in (
        {"prediction_ids": expected.ids, **LOOKUP},
        {"prediction": expected.text},
        {"prediction": PROMPTS[1]},
    ):
        answer = ask_one(server, "bls", PROMPTS[0], **way, **values)
        assert answer.said == expected.said
        assert way.keys() != {"prediction_ids", *LOOKUP} or answer.rounds <= 3


@pytest.mark.parametrize(
    "values",
    [
        {"repetition_penalty": 1.3, "presence_penalty": 0.8, "frequency_penalty": 0.4},
        {"min_tokens": 20, "bad_words": ["self", THEIRS]},
        {"embedding_bias_words": ["def"], "embedding_bias_weights": [12.0]},
        {"stop_words": ["\n\n", THEIRS, ""]},
    ],
    ids=lambda values: next(iter(values)),
)
def test_penalties_bans_and_stop_words_apply_in_every_round(server, baseline, tokenizer, values):
    word = tokenizer.decode(baseline[0].ids[9:10])
    values = {
        name: [word if value is THEIRS else value for value in given]
        if isinstance(given, list)
        else given
        for name, given in values.items()
    }
    expected = in_batches(server, "ensemble", PROMPTS[:4], **values)
    answers = in_batches(server, "bls", PROMPTS[:4], **values)
    assert said(answers) == said(expected) != said(baseline[:4])
    for word in (*values.get("bad_words", ()), *values.get("stop_words", ())):
        assert not any(word and word in answer.text for answer in answers)


@pytest.mark.engines
def test_greedy_output_equals_hugging_face(baseline, hugging_face, tokenizer, embedded):
    import torch
    from engine_harness import assert_same

    for prompt, answer in zip(PROMPTS[::2], baseline[::2], strict=True):
        ids = tokenizer.encode(prompt).ids
        with torch.inference_mode():
            row = hugging_face.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids)),
                max_new_tokens=LENGTH,
                do_sample=False,
            )[0, len(ids) :].tolist()
        if row and row[-1] in embedded.end_ids:
            row.pop()
        assert_same(hugging_face, ids, answer.ids, row)


@pytest.mark.engines
def test_concurrent_streams_give_the_same_output_as_single_requests(server, baseline):
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        streams = list(pool.map(lambda p: stream(server, p, max_tokens=LENGTH), PROMPTS))
    assert said(map(joined, streams)) == said(baseline)


def test_streamed_prompts_of_a_batch_stay_separate(server, baseline):
    chunks = stream(server, PROMPTS[:4], max_tokens=LENGTH)
    for index, expected in enumerate(baseline[:4]):
        assert joined([chunk for chunk in chunks if chunk.index == index]).said == expected.said
    assert all(chunk.outputs["text_output"].shape == (1,) for chunk in chunks)


def test_prompts_of_one_batch_can_have_different_options(server):
    columns = {
        "max_tokens": (3, 9, 6),
        "num_draft_tokens": (0, 4, 1),
        "temperature": (0.0, 0.9, 1.4),
        "seed": (1, 2, 3),
    }
    made = [tensor("text_input", [[prompt] for prompt in PROMPTS[:3]])]
    made += [tensor(name, [[value] for value in values]) for name, values in columns.items()]
    with client.InferenceServerClient(server.grpc_url) as connection:
        answers = read(connection.infer("bls", made))
    for row, prompt in enumerate(PROMPTS[:3]):
        values = {name: column[row] for name, column in columns.items()}
        assert answers[row].text == ask_one(server, "bls", prompt, **values).text


def test_output_ends_before_a_stop_string(server, baseline):
    text = baseline[0].text
    stop = text[len(text) // 3 : len(text) // 3 + 5]
    answer = ask_one(server, "bls", PROMPTS[0], max_tokens=LENGTH, stop_words=["", stop])
    assert (answer.text, answer.finish_reason) == (text[: text.index(stop)], "stop")
    chunks = stream(server, PROMPTS[0], max_tokens=LENGTH, stop_words=[stop])
    assert joined(chunks).text == answer.text


def test_a_stop_word_that_is_a_special_token_ends_an_answer(server):
    """Special tokens aren't part of the text."""
    end = {"embedding_bias_words": ["<|endoftext|>"], "embedding_bias_weights": [1e9]}
    asked = {"max_tokens": 6, "end_id": -1, **end}
    assert ask_one(server, "bls", "import ", **asked).finish_reason == "length"
    asked["stop_words"] = ["zzz", "<|endoftext|>"]
    for drafter in ("none", "draft_model"):
        answer = ask_one(server, "bls", "import ", drafter=drafter, **asked)
        assert (answer.finish_reason, answer.ids, answer.text) == ("stop", [], "")
    _, *others = inputs("x", **asked)
    with client.InferenceServerClient(server.grpc_url) as connection:
        answers = connection.infer("bls", [tensor("input_ids", [[5, 6]]), *others])
    assert [answer.finish_reason for answer in read(answers)] == ["stop"]


def test_a_prompt_can_be_sent_as_token_ids(server, baseline, tokenizer):
    made = [
        tensor("input_ids", [tokenizer.encode(PROMPTS[0]).ids]),
        tensor("max_tokens", LENGTH),
    ]
    with (
        server.faults.inject("preprocessing", "raise"),  # there is nothing to tokenize
        client.InferenceServerClient(server.grpc_url) as connection,
    ):
        [answer] = read(connection.infer("bls", made))
        assert answer.text == baseline[0].text
        with_prompt = [*made, tensor("exclude_input_in_output", False)]
        [answer] = read(connection.infer("bls", with_prompt))
    assert answer.text == PROMPTS[0] + baseline[0].text
