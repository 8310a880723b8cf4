"""Log-probabilities of answers and prompts, and logit biases."""

import numpy as np
import pytest
from entries import OUTPUTS, ask, ask_one, stream
from prompts import COMPLETIONS
from scale import first_of

from tandem.contract import entry

LENGTH = 20
PROMPT = COMPLETIONS[0]
DRAFTERS = first_of("draft_model", "prompt_lookup", "none")
OWN = (entry.OUTPUT_LOG_PROBS, entry.OUTPUT_TOP_IDS, entry.OUTPUT_TOP_LOG_PROBS)
OF_PROMPT = (entry.PROMPT_LOG_PROBS, entry.PROMPT_TOP_IDS, entry.PROMPT_TOP_LOG_PROBS)


@pytest.fixture(scope="module")
def rated(hugging_face):
    """A function that returns the next-token log-probabilities [n, vocab_size] of transformers."""
    import torch

    def rows(ids):
        with torch.inference_mode():
            return hugging_face(torch.tensor([ids])).logits[0].log_softmax(-1).numpy()

    return rows


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_chunks_contain_log_probs_of_tokens_and_alternatives(server, tokenizer, rated, drafter):
    asked = {"return_log_probs": True, "num_top_log_probs": 3, "drafter": drafter}
    asked |= {"outputs": (*OUTPUTS, *OWN, entry.CUM_LOG_PROBS), "max_tokens": LENGTH}
    chunks = stream(server, PROMPT, **asked)
    assert len(chunks) > 1
    for chunk in chunks:
        assert [len(chunk.outputs[name][0, 0]) for name in OWN] == [len(chunk.ids)] * 3
    values, top_ids, top = (np.concatenate([c.outputs[n][0, 0] for c in chunks]) for n in OWN)
    said = [token for chunk in chunks for token in chunk.ids]
    prompt = tokenizer.encode(PROMPT).ids
    rows = rated(prompt + said)[len(prompt) - 1 : -1]
    np.testing.assert_allclose(values, rows[range(LENGTH), said], atol=1e-3)
    np.testing.assert_allclose(top, np.sort(rows)[:, :-4:-1], atol=1e-3)
    assert (
        top[:, 0].tolist() == values.tolist()
    )  # in greedy decoding, each token is the most likely one, with identical bits
    assert top_ids[:, 0].tolist() == said
    sums = [chunk.outputs[entry.CUM_LOG_PROBS].item() for chunk in chunks]
    assert sums[-1] == pytest.approx(values.sum(), abs=1e-3)
    assert sums == sorted(sums, reverse=True)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_prompt_log_probs_equal_transformers(server, tokenizer, rated, drafter):
    asked = {"return_prompt_log_probs": True, "num_top_log_probs": 1, "drafter": drafter}
    asked |= {"outputs": (*OUTPUTS, *OF_PROMPT), "max_tokens": LENGTH}
    prompts = [PROMPT, COMPLETIONS[1]]
    for prompt, answer in zip(prompts, ask(server, "bls", prompts, **asked), strict=True):
        ids = tokenizer.encode(prompt).ids
        rows = rated(ids)[:-1]
        values, top_ids, top = (answer.outputs[n][answer.index, 0, : len(ids)] for n in OF_PROMPT)
        assert values[0] == 0
        np.testing.assert_allclose(values[1:], rows[range(len(ids) - 1), ids[1:]], atol=1e-3)
        np.testing.assert_allclose(top[1:, 0], rows.max(-1), atol=1e-3)
        likeliest = rows[range(len(ids) - 1), top_ids[1:, 0]]
        np.testing.assert_allclose(likeliest, rows.max(-1), atol=1e-3)
    first, *later = stream(server, PROMPT, **asked)
    assert first.outputs[entry.PROMPT_LOG_PROBS].shape == (1, 1, len(tokenizer.encode(PROMPT).ids))
    assert not any(entry.PROMPT_LOG_PROBS in chunk.outputs for chunk in later)
    expected = ask_one(server, "ensemble", PROMPT, max_tokens=LENGTH).text
    assert first.text + "".join(chunk.text for chunk in later) == expected


@pytest.mark.parametrize("drafter", first_of("draft_model", "hybrid", "none"))
def test_a_logit_bias_applies_in_every_round_and_draft(server, drafter):
    forced = {"logit_bias_ids": [200], "logit_bias_values": [1000.0], "drafter": drafter}
    answer = ask_one(server, "bls", PROMPT, max_tokens=LENGTH, **forced)
    assert answer.ids == [200] * LENGTH
    drafted = answer.draft_tokens
    assert answer.accepted_tokens == drafted
    assert (drafted > 0) == (drafter != "none")
    plain = ask_one(server, "bls", PROMPT, max_tokens=LENGTH, drafter=drafter)
    banned = {"logit_bias_ids": plain.ids[5:7], "logit_bias_values": [-100.0] * 2}
    other = ask_one(server, "bls", PROMPT, max_tokens=LENGTH, drafter=drafter, **banned)
    assert other.ids == ask_one(server, "ensemble", PROMPT, max_tokens=LENGTH, **banned).ids
    assert not {*plain.ids[5:7]} & {*other.ids}
