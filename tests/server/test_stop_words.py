"""Stop words of a live server that the text does not show."""

import tritonclient.grpc as client
from entries import ask_one, inputs, read, tensor

# The end of sequence is said at every place, and ends nothing by itself.
VALUES = {
    "max_tokens": 6,
    "end_id": -1,
    "embedding_bias_words": ["<|endoftext|>"],
    "embedding_bias_weights": [1e9],
}
STOP_WORDS = ["zzz", "<|endoftext|>"]


def test_a_stop_word_that_is_a_special_token_ends_an_answer(server):
    assert ask_one(server, "bls", "import ", **VALUES).finish_reason == "length"
    for drafter in ("none", "draft_model"):
        answer = ask_one(server, "bls", "import ", stop_words=STOP_WORDS, drafter=drafter, **VALUES)
        assert (answer.finish_reason, answer.ids, answer.text) == ("stop", [], "")


def test_it_does_so_where_the_prompt_came_as_ids(server):
    _, *others = inputs("x", stop_words=STOP_WORDS, **VALUES)
    with client.InferenceServerClient(server.grpc_url) as connection:
        answers = connection.infer("bls", [tensor("input_ids", [[5, 6]]), *others])
    assert [answer.finish_reason for answer in read(answers)] == ["stop"]
