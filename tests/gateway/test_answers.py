"""Responses to chats and completions, with and without streaming."""

import pytest
from scripted_triton import HELLO, origins, statistics

from tandem.gateway.answers.tokens import ORIGINS
from tandem.gateway.errors import ApiError
from tandem.gateway.triton.backend import ResponseChunk
from tandem.gateway.triton.inputs import derived_seed

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


async def test_a_chat_without_streaming_has_one_response(post):
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


async def test_a_completion_without_streaming_has_one_response(post):
    answer = (await post("/v1/completions", PROMPT)).json()
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop"}
    ]
    assert answer["usage"] == {"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5}


async def test_a_chat_can_be_streamed(post):
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


async def test_a_stream_ends_with_usage_on_request(post):
    """In the other chunks, usage is null, as in OpenAI's API."""
    body = {**PROMPT, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = events(await post("/v1/completions", body))
    assert [chunk["usage"] for chunk in chunks] == [None, None]
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5}
    assert last["metrics"]["speculative_decoding"] == FIGURES


@pytest.mark.parametrize(("second", "got"), [(5, {"cached_tokens": 37}), (None, None)])
async def test_usage_reports_cached_tokens_if_all_choices_report_them(post, triton, second, got):
    cached = {4: 32, 5: second}

    def script(asked):
        figures = statistics(1, cached=cached[asked["input_ids"][0]])
        return [ResponseChunk("x", [39], 1, 4, 1, "stop", figures)]

    triton.script = script
    answer = (await post("/v1/completions", {"prompt": [[4], [5]], "n": 2})).json()
    assert answer["usage"].get("prompt_tokens_details") == got


async def test_usage_counts_draft_tokens_from_the_prediction(post, triton):
    drafted = {"prediction": {"num_draft_tokens": 9, "num_accepted_draft_tokens": 7}}

    def script(asked):
        sources = drafted if asked["input_ids"] == [4] else {}
        figures = statistics(1) | {"by_drafter": sources}
        return [ResponseChunk("x", [39], 1, 4, 1, "stop", figures)]

    triton.script = script
    body = {"prompt": [[4], [5]], "n": 2, "prediction": {"type": "content", "content": "x"}}
    answer = (await post("/v1/completions", body)).json()
    details = {"accepted_prediction_tokens": 14, "rejected_prediction_tokens": 4}
    assert answer["usage"]["completion_tokens_details"] == details


async def test_every_chunk_has_usage_on_request(post):
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**PROMPT, "stream": True, "stream_options": options}
    got = events(await post("/v1/completions", body))
    assert [event["usage"]["completion_tokens"] for event in got] == [2, 4, 4]


async def test_responses_warn_about_guide_parts_that_are_not_enforced(post, triton):
    figures = {**statistics(1, 1), "guide": {"warnings": ["items may repeat"]}}
    triton.script = lambda _: [HELLO[0], HELLO[1]._replace(statistics=figures)]
    body = {**CHAT, "n": 2, "guided_json": {}}
    answer = (await post("/v1/chat/completions", body)).json()
    assert answer["warnings"] == ["items may repeat"]
    *others, last = events(await post("/v1/chat/completions", {**body, "n": 1, "stream": True}))
    assert last["warnings"] == ["items may repeat"]
    assert not any("warnings" in chunk for chunk in others)


async def test_each_choice_of_each_prompt_is_a_separate_request(post, triton):
    body = {"prompt": [[4], [5, 6]], "n": 2, "seed": 7}
    answer = (await post("/v1/completions", body)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 16, "total_tokens": 19}
    assert answer["metrics"]["speculative_decoding"]["num_spec_steps"] == 8
    asked = {asked["seed"]: asked["input_ids"] for asked in triton.asked}  # in any order
    assert [asked[derived_seed(7, number)] for number in range(4)] == [[4], [4], [5, 6], [5, 6]]
    assert derived_seed(7, 0) == 7
    assert len(triton.asked) == 4


async def test_choices_of_a_stream_are_interleaved_and_complete(post):
    got = events(await post("/v1/chat/completions", {**CHAT, "stream": True, "n": 3}))
    for number in range(3):
        own = [e["choices"][0] for e in got if e["choices"][0]["index"] == number]
        assert "".join(choice["delta"]["content"] for choice in own) == "Hello"
        assert [choice["delta"].get("role") for choice in own] == ["assistant", None]


async def details_of(post, triton, *chunks):
    """Return the token details of each chunk."""
    triton.script = lambda _: chunks
    body = {**PROMPT, "stream": True, "return_token_details": True}
    got = events(await post("/v1/completions", body))
    assert triton.extras == list(ORIGINS)
    return [
        [(token["id"], token["text"]) for token in event["choices"][0]["token_details"]]
        for event in got
    ]


async def test_token_details_show_the_round_and_kind_of_each_token(post):
    body = {**PROMPT, "stream": True, "return_token_details": True}
    first, second = events(await post("/v1/completions", body))
    assert first["choices"][0]["token_details"] == [
        {"id": 39, "text": "H", "round": 1, "kind": "accepted"},
        {"id": 301, "text": "el", "round": 1, "kind": "correction"},
    ]
    assert [token["text"] for token in second["choices"][0]["token_details"]] == ["l", "o"]


async def test_token_details_name_the_draft_token_that_a_correction_replaces(post, triton):
    got = origins((1, "accepted", 1), (1, "correction", 2), rejected=260)
    triton.script = lambda _: [ResponseChunk("Hel", [39, 301], 1, 4, 1, "stop", extras=got)]
    answer = (await post("/v1/completions", {**PROMPT, "return_token_details": True})).json()
    accepted, correction = answer["choices"][0]["token_details"]
    assert "rejected" not in accepted
    assert correction["rejected"] == "in"


async def test_token_details_are_sent_when_their_text_is_complete(post, triton):
    plain = [(1, "plain", 2), (2, "plain", 0), (3, "plain", 1)]
    first = ResponseChunk("a", [65, 66, 67], 3, 0, 0, extras=origins(*plain))
    last = ResponseChunk("bc", [68], 4, 0, 0, "length", statistics(0), origins((4, "plain", 1)))
    assert await details_of(post, triton, first, last) == [
        [],
        [(65, "ab"), (66, ""), (67, "c"), (68, "")],
    ]


async def test_token_details_match_text_that_a_stop_string_cuts(post, triton):
    plain = [(1, "plain", 2), (2, "plain", 3)]
    cut = ResponseChunk("abc", [65, 66], 2, 0, 0, "stop", statistics(0), origins(*plain))
    assert await details_of(post, triton, cut) == [[(65, "ab"), (66, "c")]]
    unfinished = cut._replace(text="ab\ufffd", extras=origins((1, "plain", 2), (2, "plain", 0)))
    assert await details_of(post, triton, unfinished) == [[(65, "ab"), (66, "\ufffd")]]


async def test_token_details_are_available_without_streaming(post, triton):
    answer = (await post("/v1/completions", {**PROMPT, "return_token_details": True})).json()
    details = answer["choices"][0]["token_details"]
    assert [(token["text"], token["round"], token["kind"]) for token in details] == [
        *(("H", 1, "accepted"), ("el", 1, "correction")),
        *(("l", 2, "accepted"), ("o", 2, "correction")),
    ]
    assert not triton.asked[0]["stream"]


async def test_a_response_without_drafts_contains_statistics(post, triton):
    figures = {**statistics(0, drafted=0), "num_spec_steps": 0, "acceptance_histogram": []}
    triton.script = lambda _: [HELLO[-1]._replace(statistics=figures)]
    got = (await post("/v1/completions", PROMPT)).json()["metrics"]["speculative_decoding"]
    assert got["draft_acceptance_rate"] == 0
    assert got["mean_acceptance_length"] == 1


async def test_the_model_list_contains_tandems_entries(client):
    async with client() as opened:
        listed = (await opened.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["bls_stream", "bls", "ensemble"]
        assert listed["data"][0]["max_model_len"] == 100
        assert listed["data"][0]["root"] == "demo"
        assert listed["data"][0]["drafters"] == ["prompt_lookup", "hybrid", "repeat", "none"]
        assert (await opened.get("/v1/models/bls")).json() == listed["data"][1]
        assert "model 'org/sql' isn't served" in (await opened.get("/v1/models/org/sql")).text


async def test_tokenize_and_detokenize_are_inverse(client):
    async with client() as opened:
        body = {"prompt": "def main():", "return_token_strs": True}
        got = (await opened.post("/tokenize", json=body)).json()
        assert got["count"] == len(got["tokens"]) == len(got["token_strs"])
        assert got["max_model_len"] == 100
        back = await opened.post("/detokenize", json={"tokens": got["tokens"]})
        assert back.json() == {"prompt": "def main():"}
        chat = (await opened.post("/tokenize", json=CHAT)).json()["tokens"]
        back = await opened.post("/detokenize", json={"tokens": chat})
        assert back.json() == {"prompt": "user: hi\nassistant:"}
        unknown = await opened.post("/detokenize", json={"tokens": [5, 9999]})
        assert unknown.status_code == 400
        assert unknown.json()["error"]["message"].endswith("; got 9999")
        info = (await opened.get("/tokenizer_info")).json()
        assert info["special_tokens"] == {"<|endoftext|>": 0}
        assert info["eos_token"] == info["pad_token"] == "<|endoftext|>"
        assert "bos_token" not in info
        assert "m.role" in info["chat_template"]


async def test_metrics_count_requests_and_speculation(client, triton):
    async with client() as opened:
        await opened.post("/v1/completions", json=PROMPT)
        await opened.post("/v1/completions", json={"prompt": []})
        triton.script = lambda _: [ApiError(503, "why")]
        await opened.post("/v1/completions", json=PROMPT)
        await opened.get("/nowhere")
        response = await opened.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = response.text.splitlines()
    for line in (
        "# TYPE tandem_gateway_requests_total counter",
        'tandem_gateway_requests_total{endpoint="/v1/completions",status="200"} 1.0',
        'tandem_gateway_requests_total{endpoint="/v1/completions",status="400"} 1.0',
        'tandem_gateway_requests_total{endpoint="other",status="404"} 1.0',
        "tandem_gateway_requests_running 0.0",
        "vllm:prompt_tokens_total 1.0",
        "vllm:generation_tokens_total 4.0",
        "vllm:spec_decode_num_drafts_total 2.0",
        "vllm:spec_decode_num_draft_tokens_total 8.0",
        "vllm:spec_decode_num_accepted_tokens_total 2.0",
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 2.0',
        'vllm:e2e_request_latency_seconds_bucket{le="300.0"} 1.0',
        "vllm:e2e_request_latency_seconds_count 1.0",
    ):
        assert line in lines
    assert "_created" not in response.text


async def test_each_stream_counts_once_in_the_time_to_first_token(client):
    async with client() as opened:
        for stream in (False, True):
            await opened.post("/v1/completions", json=PROMPT | {"stream": stream})
        lines = (await opened.get("/metrics")).text.splitlines()
    assert "vllm:time_to_first_token_seconds_count 1.0" in lines
    assert "vllm:e2e_request_latency_seconds_count 2.0" in lines


async def test_metrics_count_the_drafts_of_an_interrupted_response(client, triton):
    """The tokens of the response are counted, so its drafts must be counted too."""
    triton.script = lambda _: [HELLO[0], ApiError(503, "why")]
    async with client() as opened:
        await opened.post("/v1/completions", json=PROMPT | {"stream": True})
        lines = (await opened.get("/metrics")).text.splitlines()
    for name, number in (
        ("vllm:generation_tokens_total", len(HELLO[0].tokens)),
        ("vllm:spec_decode_num_draft_tokens_total", HELLO[0].num_draft_tokens),
        ("vllm:spec_decode_num_accepted_tokens_total", HELLO[0].num_accepted_tokens),
    ):
        assert number > 0
        assert f"{name} {number:.1f}" in lines
