"""Speculation changes when a text comes, never what it says."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from entries import OUTPUTS, ask, ask_one, stream
from metrics import settle, total
from prompts import COMPLETIONS
from scale import first_of, scaled

from tandem.contract import entry

LENGTH = 28
TIE = 1e-4  # logits closer than this may be ordered either way by kernels of another shape


@pytest.fixture(scope="module")
def control(server):
    """What the target alone says to each prompt."""
    return in_batches(server, "ensemble")


def in_batches(server, model, **values):
    batches = [COMPLETIONS[at : at + 16] for at in range(0, len(COMPLETIONS), 16)]
    return [
        answer
        for batch in batches
        for answer in ask(server, model, batch, max_tokens=LENGTH, **values)
    ]


@pytest.fixture(scope="module")
def reference(embedded):
    """The same checkpoint in Hugging Face's hands: a function from ids to logits, and generate."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)  # the server needs the cores
    model = AutoModelForCausalLM.from_pretrained(
        embedded.profile.engines.target.checkpoint, dtype=torch.float32
    )
    return model.eval()


def gap_at(model, ids):
    """How far apart the two most likely next tokens are."""
    import torch

    with torch.inference_mode():
        best = model(torch.tensor([ids])).logits[0, -1].topk(2).values
    return float(best[0] - best[1])


def assert_same(ours, theirs, prompt_ids, model):
    """Equal up to a tie of the two best logits, which is printed."""
    for at, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            gap = gap_at(model, [*prompt_ids, *ours[:at]])
            assert gap < TIE, f"token {at} differs, {one} and {other}, top-2 gap {gap:.2e}"
            return
    assert len(ours) == len(theirs)


def test_there_are_enough_prompts():
    assert len(COMPLETIONS) >= 50


@pytest.mark.parametrize("draft_len", first_of(8, 1, 4))
def test_greedy_text_is_the_controls_at_any_draft_length(server, control, draft_len):
    answers = in_batches(server, "bls", num_draft_tokens=draft_len)
    assert [a.ids for a in answers] == [a.ids for a in control]
    assert [a.text for a in answers] == [a.text for a in control]
    assert [a.finish_reason for a in answers] == [a.finish_reason for a in control]
    assert sum(a.number("total_accepted_draft_tokens") for a in answers) > 0


@pytest.mark.parametrize("drafter", first_of("draft_model", "hybrid"))
def test_greedy_text_is_the_controls_when_drafted_ahead(server, control, drafter):
    answers = in_batches(server, "bls", num_draft_tokens=4, drafter=drafter, draft_ahead="true")
    assert [a.ids for a in answers] == [a.ids for a in control]
    assert [a.finish_reason for a in answers] == [a.finish_reason for a in control]


def test_a_seed_gives_one_text_drafted_ahead_or_not(server):
    values = {"max_tokens": LENGTH, "seed": 7, "temperature": 0.8, "min_tokens": 5}
    expected = ask(server, "ensemble", COMPLETIONS[:16], **values)
    answers = ask(server, "bls", COMPLETIONS[:16], draft_ahead="true", **values)
    assert [a.ids for a in answers] == [a.ids for a in expected]


def test_streamed_text_is_the_controls(server, control):
    with ThreadPoolExecutor(8) as pool:
        streams = pool.map(lambda prompt: stream(server, prompt, max_tokens=LENGTH), COMPLETIONS)
        for chunks, expected in zip(streams, control, strict=True):
            assert "".join(chunk.text for chunk in chunks) == expected.text
            assert [token for chunk in chunks for token in chunk.ids] == expected.ids
            assert chunks[-1].finish_reason == expected.finish_reason


@pytest.mark.parametrize("every", scaled(4, 1))
def test_greedy_text_is_what_hugging_face_generates(server, control, reference, embedded, every):
    import torch
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(embedded.tokenizer.folder / "tokenizer.json"))
    for prompt, answer in zip(COMPLETIONS[::every], control[::every], strict=True):
        ids = tokenizer.encode(prompt).ids
        with torch.inference_mode():
            row = reference.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids)),
                max_new_tokens=LENGTH,
                do_sample=False,
            )[0, len(ids) :].tolist()
        if row and row[-1] in embedded.end_ids:
            row.pop()
        assert_same(answer.ids, row, ids, reference)


@pytest.mark.parametrize(
    "sampling",
    first_of(
        {"temperature": 1.2, "top_k": 20},
        {"temperature": 0.8},
        {"top_p": 0.9},
        {"min_p": 0.1},
    ),
)
def test_a_seed_gives_one_text_with_any_drafter(server, sampling):
    prompts = COMPLETIONS[:8]
    values = {"max_tokens": LENGTH, "seed": 11, **sampling}
    expected = [a.ids for a in ask(server, "ensemble", prompts, **values)]
    for draft_len in (1, 4, 8):
        answers = ask(server, "bls", prompts, num_draft_tokens=draft_len, **values)
        assert [a.ids for a in answers] == expected
    other = ask(server, "bls", prompts, **{**values, "seed": 12})
    assert [a.ids for a in other] != expected


def test_random_seed_is_an_alias_of_seed(server):
    values = {"max_tokens": 20, "temperature": 1.5}
    one = ask_one(server, "bls", COMPLETIONS[0], seed=5, **values)
    assert ask_one(server, "bls", COMPLETIONS[0], random_seed=5, **values).ids == one.ids


def test_without_a_seed_every_request_draws_anew(server):
    texts = {ask_one(server, "bls", "x", max_tokens=12, temperature=1.5).text for _ in range(4)}
    assert len(texts) > 1


@pytest.mark.parametrize(
    "values",
    [
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.8, "frequency_penalty": 0.4},
        {"min_tokens": 20},
        {"bad_words": ["self", "return"]},
        {"embedding_bias_words": ["def"], "embedding_bias_weights": [6.0]},
        {"stop_words": ["\n\n", "return"]},
    ],
    ids=lambda values: next(iter(values)),
)
def test_what_the_client_sets_holds_in_every_round(server, values):
    prompts = COMPLETIONS[:8]
    expected = ask(server, "ensemble", prompts, max_tokens=LENGTH, **values)
    answers = ask(server, "bls", prompts, max_tokens=LENGTH, **values)
    assert [(a.ids, a.text, a.finish_reason) for a in answers] == [
        (a.ids, a.text, a.finish_reason) for a in expected
    ]
    plain = ask(server, "ensemble", prompts, max_tokens=LENGTH)
    if "min_tokens" not in values:
        assert [a.ids for a in expected] != [a.ids for a in plain]


def test_bad_words_never_appear(server):
    answers = ask(server, "bls", COMPLETIONS[:8], max_tokens=LENGTH, bad_words=["self", "return"])
    assert not any("self" in a.text or "return" in a.text for a in answers)


def test_stop_words_end_the_text_before_them(server, control):
    text = control[0].text
    stop = text[len(text) // 3 : len(text) // 3 + 5]
    answer = ask_one(server, "bls", COMPLETIONS[0], max_tokens=LENGTH, stop_words=["", stop])
    assert answer.text == text[: text.index(stop)]
    assert answer.finish_reason == "stop"
    chunks = stream(server, COMPLETIONS[0], max_tokens=LENGTH, stop_words=[stop])
    assert "".join(chunk.text for chunk in chunks) == answer.text


ORIGINS = (entry.OUTPUT_ROUNDS, entry.OUTPUT_KINDS, entry.OUTPUT_TEXT_LENGTHS)


def origins(answers):
    """Of each token its round, its kind and the length of its text."""
    columns = [np.concatenate([a.outputs[name][0, 0] for a in answers]) for name in ORIGINS]
    return [column.tolist() for column in columns]


@pytest.mark.parametrize("drafter", ["draft_model", "prompt_lookup", "hybrid", "none"])
@pytest.mark.parametrize("stop_words", [[], ["never said"]])
def test_each_token_tells_its_round_its_kind_and_the_length_of_its_text(
    server, drafter, stop_words
):
    asked = {"max_tokens": LENGTH, "drafter": drafter, "outputs": (*OUTPUTS, *ORIGINS)}
    asked |= {"stop_words": stop_words} if stop_words else {}
    chunks = stream(server, COMPLETIONS[0], **asked)
    rounds, kinds, lengths = origins(chunks)
    text = "".join(chunk.text for chunk in chunks)
    assert len(rounds) == len(kinds) == len(lengths) == LENGTH
    assert sum(lengths) == len(text)
    last = chunks[-1]
    assert rounds == sorted(rounds)
    assert rounds[-1] == last.number(entry.NUM_ROUNDS)
    accepted = kinds.count(entry.KINDS.index("accepted"))
    assert accepted == last.number(entry.TOTAL_ACCEPTED_DRAFT_TOKENS)
    assert (kinds.count(entry.KINDS.index("plain")) == LENGTH) == (drafter == "none")
    whole = ask_one(server, "bls", COMPLETIONS[0], **asked)
    assert origins([whole])[2] == lengths
    assert whole.text == text


def test_log_probs_line_up_with_the_tokens_and_the_control(server):
    names = ("text_output", "output_ids", "sequence_length", "output_log_probs", "cum_log_probs")
    values = {"max_tokens": LENGTH, "return_log_probs": True, "outputs": names}
    ours = ask_one(server, "bls", COMPLETIONS[0], **values)
    control = ask_one(server, "ensemble", COMPLETIONS[0], **values)
    log_probs = ours.outputs["output_log_probs"].reshape(-1)
    assert len(log_probs) == len(ours.ids) > 0
    assert np.allclose(log_probs, control.outputs["output_log_probs"].reshape(-1), atol=1e-3)
    assert np.isclose(ours.outputs["cum_log_probs"].item(), log_probs.sum(), atol=1e-3)


@pytest.mark.heavy
def test_logits_mode_is_greedy_when_greedy(server, control):
    answers = in_batches(server, "bls", use_draft_logits=True)
    assert [a.ids for a in answers] == [a.ids for a in control]


def test_the_prompt_is_part_of_the_text_only_where_it_is_asked_for(server, control):
    values = {"max_tokens": LENGTH, "exclude_input_in_output": False}
    answer = ask_one(server, "bls", COMPLETIONS[0], **values)
    assert answer.text == COMPLETIONS[0] + control[0].text
    chunks = stream(server, COMPLETIONS[0], **values)
    assert "".join(chunk.text for chunk in chunks) == answer.text


def test_ids_may_be_sent_instead_of_text(server, control, embedded):
    import tritonclient.grpc as client
    from entries import read, tensor
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(embedded.tokenizer.folder / "tokenizer.json"))
    ids = tokenizer.encode(COMPLETIONS[0]).ids
    with client.InferenceServerClient(server.grpc_url) as connection:
        made = [tensor("input_ids", [ids]), tensor("max_tokens", LENGTH)]
        settle(server)
        before = tokenized(server)
        (answer,) = read(connection.infer("bls", made))
    assert answer.text == control[0].text
    assert tokenized(server) == before  # there was no word in it


def tokenized(server):
    return total(server, "nv_inference_request_success", model="preprocessing")
