"""What clients are answered, whole and streamed."""

import pytest
from scripted_triton import HELLO, statistics

from tandem.gateway.errors import ApiError
from tandem.gateway.triton import ResponseChunk

from .conftest import events

pytestmark = pytest.mark.anyio
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
PROMPT = {"prompt": "hi"}
FIGURES = {
    "num_spec_steps": 2,
    "num_draft_tokens": 8,
    "num_accepted_draft_tokens": 2,
    "draft_acceptance_rate": 0.25,
    "mean_acceptance_length": 2.0,
    "acceptance_histogram": [0, 2],
}


async def test_chat_is_answered_whole(post):
    answer = (await post("/v1/chat/completions", CHAT)).json()
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "bls_stream"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["metrics"] == {"speculative_decoding": FIGURES}


async def test_completion_is_answered_whole(post):
    answer = (await post("/v1/completions", PROMPT)).json()
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop"}
    ]
    assert answer["usage"] == {"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5}


async def test_chat_is_streamed(post):
    response = await post("/v1/chat/completions", {**CHAT, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    first, second = events(response)
    assert first["id"] == second["id"]
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "Hel"}
    assert first["choices"][0]["finish_reason"] is None
    assert second["choices"][0]["delta"] == {"content": "lo"}
    assert second["choices"][0]["finish_reason"] == "stop"
    assert "usage" not in first


async def test_completion_is_streamed(post):
    response = await post("/v1/completions", {**PROMPT, "stream": True})
    assert [event["choices"][0]["text"] for event in events(response)] == ["Hel", "lo"]


async def test_stream_ends_with_its_usage_where_it_is_asked_for(post):
    body = {**PROMPT, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = events(await post("/v1/completions", body))
    assert all("usage" not in chunk for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5}
    assert last["metrics"]["speculative_decoding"] == FIGURES


async def test_every_chunk_has_the_usage_where_it_is_asked_for(post):
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**PROMPT, "stream": True, "stream_options": options}
    told = events(await post("/v1/completions", body))
    assert [event["usage"]["completion_tokens"] for event in told] == [2, 4, 4]


async def test_n_and_several_prompts_are_a_request_each(post, triton):
    body = {"prompt": [[4], [5, 6]], "n": 2, "seed": 7}
    answer = (await post("/v1/completions", body)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 16, "total_tokens": 19}
    assert answer["metrics"]["speculative_decoding"]["num_spec_steps"] == 8
    assert [asked["input_ids"] for asked in triton.asked[2:]] == [[5, 6], [5, 6]]
    seeds = [asked["seed"] for asked in triton.asked]
    assert seeds[0] == 7
    assert len(set(seeds)) == 4


async def test_choices_of_a_stream_come_side_by_side(post):
    told = events(await post("/v1/chat/completions", {**CHAT, "stream": True, "n": 3}))
    for number in range(3):
        own = [e["choices"][0] for e in told if e["choices"][0]["index"] == number]
        assert "".join(choice["delta"]["content"] for choice in own) == "Hello"
        assert [choice["delta"].get("role") for choice in own] == ["assistant", None]


@pytest.mark.parametrize(
    ("chunk", "kinds", "rounds"),
    [
        (ResponseChunk("abc", [65, 66, 67], 1, 4, 2), ["accepted"] * 2 + ["correction"], [1, 1, 1]),
        (ResponseChunk("abc", [65, 66, 67], 1, 2, 2), ["accepted"] * 2 + ["bonus"], [1, 1, 1]),
        (ResponseChunk("abc", [65, 66, 67], 3, 0, 0), ["plain"] * 3, [1, 2, 3]),
        (ResponseChunk("ab", [65, 66], 1, 4, 3), ["accepted"] * 2, [1, 1]),
    ],
)
async def test_tokens_say_where_they_came_from(post, triton, chunk, kinds, rounds):
    triton.script = lambda _: [
        chunk,
        chunk._replace(finish_reason="stop", statistics=statistics(1)),
    ]
    body = {**PROMPT, "stream": True, "return_token_details": True}
    first, _ = events(await post("/v1/completions", body))
    details = first["choices"][0]["token_details"]
    assert [token["id"] for token in details] == chunk.tokens
    assert [token["kind"] for token in details] == kinds
    assert [token["round"] for token in details] == rounds
    assert all(token["text"] for token in details)


async def test_tokens_of_a_whole_answer_say_it_too(post, triton):
    answer = (await post("/v1/completions", {**PROMPT, "return_token_details": True})).json()
    details = answer["choices"][0]["token_details"]
    assert [(token["round"], token["kind"]) for token in details] == [
        *((1, "accepted"), (1, "correction"), (2, "accepted"), (2, "correction"))
    ]
    assert answer["choices"][0]["text"] == "Hello"


async def test_no_draft_is_no_division_by_zero(post, triton):
    figures = {**statistics(0, drafted=0), "num_spec_steps": 0, "acceptance_histogram": []}
    triton.script = lambda _: [HELLO[-1]._replace(statistics=figures)]
    told = (await post("/v1/completions", PROMPT)).json()["metrics"]["speculative_decoding"]
    assert told["draft_acceptance_rate"] == 0
    assert told["mean_acceptance_length"] == 1


async def test_models_are_the_entries(client):
    async with client() as opened:
        listed = (await opened.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["bls_stream", "bls", "ensemble"]
        assert listed["data"][0]["max_model_len"] == 100
        assert (await opened.get("/v1/models/bls")).json() == listed["data"][1]


async def test_health_is_tritons(client, triton):
    async with client() as opened:
        assert (await opened.get("/health")).status_code == 200
        triton.is_ready = False
        assert (await opened.get("/health")).status_code == 503


async def test_texts_and_ids_are_turned_into_each_other(client):
    async with client() as opened:
        body = {"prompt": "def main():", "return_token_strs": True}
        told = (await opened.post("/tokenize", json=body)).json()
        assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
        assert told["max_model_len"] == 100
        back = await opened.post("/detokenize", json={"tokens": told["tokens"]})
        assert back.json() == {"prompt": "def main():"}
        chat = (await opened.post("/tokenize", json=CHAT)).json()["tokens"]
        back = await opened.post("/detokenize", json={"tokens": chat})
        assert back.json() == {"prompt": "user: hi\nassistant:"}
        info = (await opened.get("/tokenizer_info")).json()
        assert info["special_tokens"] == {"<|endoftext|>": 0}
        assert "m.role" in info["chat_template"]


async def test_metrics_count_requests_and_speculation(client, triton):
    async with client() as opened:
        await opened.post("/v1/completions", json=PROMPT)
        await opened.post("/v1/completions", json={"prompt": []})
        triton.script = lambda _: [ApiError(503, "why")]
        await opened.post("/v1/completions", json=PROMPT)
        await opened.get("/nowhere")
        text = (await opened.get("/metrics")).text
    lines = text.splitlines()
    for line in (
        'tandem_gateway_requests_total{endpoint="/v1/completions",status="200"} 1',
        'tandem_gateway_requests_total{endpoint="/v1/completions",status="400"} 1',
        'tandem_gateway_requests_total{endpoint="other",status="404"} 1',
        "tandem_gateway_requests_running 0",
        "vllm:prompt_tokens_total 1",
        "vllm:generation_tokens_total 4",
        "vllm:spec_decode_num_drafts_total 2",
        "vllm:spec_decode_num_draft_tokens_total 8",
        "vllm:spec_decode_num_accepted_tokens_total 2",
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 2',
        "vllm:e2e_request_latency_seconds_count 1",
    ):
        assert line in lines
