"""One instance of `bls_stream` serves many requests, and requests of many prompts."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from entries import ask, ask_one, stream

PROMPTS = [f"def function_{n}(self, value):\n" for n in range(32)]


@pytest.fixture(scope="module")
def alone(server):
    """What each prompt gets when it is the only one."""
    return [ask_one(server, "ensemble", prompt, max_tokens=24) for prompt in PROMPTS]


def test_32_requests_at_once_are_answered_as_one_at_a_time(server, alone):
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda p: ask_one(server, "bls", p, max_tokens=24), PROMPTS))
    assert [a.ids for a in answers] == [a.ids for a in alone]


def test_a_batch_of_four_prompts_equals_four_requests(server, alone):
    answers = ask(server, "bls", PROMPTS[:4], max_tokens=24)
    assert [(a.index, a.ids, a.text) for a in answers] == [
        (index, a.ids, a.text) for index, a in enumerate(alone[:4])
    ]
    assert answers[0].outputs["text_output"].shape == (4,)


def test_a_streamed_batch_keeps_its_prompts_apart(server, alone):
    chunks = stream(server, PROMPTS[:4], max_tokens=24)
    for index, expected in enumerate(alone[:4]):
        mine = [chunk for chunk in chunks if chunk.index == index]
        assert "".join(chunk.text for chunk in mine) == expected.text
        assert mine[-1].finish_reason == expected.finish_reason
    assert all(chunk.outputs["text_output"].shape == (1,) for chunk in chunks)


def test_prompts_of_one_batch_may_differ_in_everything(server):
    import tritonclient.grpc as client
    from entries import read, tensor

    prompts = PROMPTS[:3]
    made = [
        tensor("text_input", [[p] for p in prompts]),
        tensor("max_tokens", [[3], [9], [6]]),
        tensor("num_draft_tokens", [[0], [4], [1]]),
        tensor("temperature", [[0.0], [0.9], [1.4]]),
        tensor("seed", [[1], [2], [3]]),
    ]
    with client.InferenceServerClient(server.grpc_url) as connection:
        answers = read(connection.infer("bls", made))
    for row, (prompt, length, drafts, temperature) in enumerate(
        zip(prompts, (3, 9, 6), (0, 4, 1), (0.0, 0.9, 1.4), strict=True)
    ):
        single = ask_one(
            server,
            "bls",
            prompt,
            max_tokens=length,
            num_draft_tokens=drafts,
            temperature=temperature,
            seed=row + 1,
        )
        assert answers[row].text == single.text
