"""OpenAI's client works with the gateway and a live Triton."""

import asyncio

import openai
import pytest
from benchmarks.soak.processes import is_at_rest
from entries import ask, ask_one
from live_triton import eventually
from metrics import computed, computed_so_far
from scale import first_of

CHAT = [{"role": "user", "content": "def main():"}]
PROMPTS = ["def main():", "import os", "class Point:\n    def ", "x = 1\nprint("]
LONG = 3600


def complete(client, prompt, **given):
    given = {"model": "bls_stream", "max_tokens": 24, "temperature": 0} | given
    return client.completions.create(prompt=prompt, **given)


def chat(client, **given):
    defaults = {"model": "bls_stream", "max_tokens": 24, "temperature": 0, "messages": CHAT}
    return client.chat.completions.create(**defaults | given)


def text_of(stream):
    return "".join(chunk.choices[0].text for chunk in stream if chunk.choices)


@pytest.mark.parametrize("drafter", ["draft_model", "prompt_lookup", "hybrid", "none"])
def test_greedy_output_equals_the_baseline(server, client, drafter):
    expected = [answer.text for answer in ask(server, "ensemble", PROMPTS, max_tokens=24)]
    more = {"drafter": drafter}
    answer = complete(client, PROMPTS, extra_body=more)
    assert [choice.text for choice in answer.choices] == expected
    assert text_of(complete(client, PROMPTS[0], stream=True, extra_body=more)) == expected[0]


def test_greedy_chat_output_equals_the_baseline_for_the_same_prompt(server, client):
    prompt = "# user\ndef main():\n# assistant\n"
    expected = ask_one(server, "ensemble", prompt, max_tokens=24).text
    assert chat(client).choices[0].message.content == expected
    chunks = list(chat(client, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == expected
    assert chunks[-1].choices[0].finish_reason == "length"
    begun = {"role": "assistant", "content": "    import "}
    expected = ask_one(server, "ensemble", f"{prompt}    import ", max_tokens=24)
    more = {"continue_final_message": True, "add_generation_prompt": False, "echo": True}
    answer = chat(client, messages=[*CHAT, begun], extra_body=more)
    assert answer.choices[0].message.content == "    import " + expected.text


def test_the_response_contains_usage_and_speculation_statistics(client):
    answer = complete(client, "def main():")
    assert answer.usage.completion_tokens == 24
    figures = answer.metrics["speculative_decoding"]
    assert 0 < figures["num_accepted_draft_tokens"] <= figures["num_draft_tokens"]
    options = {"include_usage": True}
    *_, last = complete(client, "def main():", stream=True, stream_options=options)
    assert last.usage == answer.usage
    assert last.metrics["speculative_decoding"] == figures


def test_only_requests_with_the_same_salt_share_a_kv_cache(client):
    prompt = "# salted\n" * 30

    def cached(salt):
        answer = complete(client, prompt, extra_body={"cache_salt": salt})
        return answer.usage.prompt_tokens_details.cached_tokens

    assert [cached("one"), cached("two")] == [0, 0]
    assert cached("one") == cached("two") > 0


def test_the_response_reports_the_round_and_kind_of_each_token(client):
    more = {"return_token_details": True}
    answer = complete(client, "def main():", extra_body=more, stream=True)
    chunks = [chunk.choices[0] for chunk in answer]
    details = [token for chunk in chunks for token in chunk.token_details]
    assert len(details) == 24
    assert "".join(t["text"] for t in details) == "".join(chunk.text for chunk in chunks)
    rounds = [token["round"] for token in details]
    assert rounds == sorted(rounds)
    assert set(rounds) == set(range(1, max(rounds) + 1))
    for number in set(rounds):
        kinds = [token["kind"] for token in details if token["round"] == number]
        assert set(kinds[:-1]) <= {"accepted"}
    kinds = {token["kind"] for token in details}
    assert kinds >= {"accepted", "correction"}


def test_the_default_is_sampling_and_a_seed_repeats_the_output(server, client):
    def sampled(**given):
        return complete(client, "import ", temperature=openai.omit, **given).choices[0].text

    assert sampled(seed=1) == sampled(seed=1)
    assert len({sampled(seed=seed) for seed in range(3)}) > 1
    several = complete(client, "import ", temperature=1.0, n=3, seed=5).choices
    assert [c.index for c in several] == [0, 1, 2]
    assert len({c.text for c in several}) > 1
    assert several[0].text == sampled(seed=5)


def test_completions_default_to_16_tokens_and_chats_to_the_context(client, tokenizer, embedded):
    room = embedded.target.max_seq_len - embedded.target.max_draft_len
    more = {"max_tokens": openai.omit, "extra_body": {"ignore_eos": True}}
    for length, left in ((room - 12, 12), (1, 16)):
        answer = complete(client, [5] * length, **more)
        assert answer.usage.completion_tokens == left
        assert answer.choices[0].finish_reason == "length"
    words = (room - 60) * 10 // len(tokenizer.encode("def " * 10).ids)
    long = [{"role": "user", "content": "def " * words}]
    answer = client.chat.completions.create(model="bls_stream", messages=long, **more)
    assert answer.usage.total_tokens == room


def test_the_model_list_contains_tandems_entries(client):
    assert [model.id for model in client.models.list()] == ["bls_stream", "bls", "ensemble"]
    answer = complete(client, "def main():", model="ensemble")
    assert answer.metrics["speculative_decoding"]["num_draft_tokens"] == 0


def test_errors_have_openais_exception_types(client):
    with pytest.raises(openai.BadRequestError, match="unknown field 'max_tokenz'"):
        complete(client, "x", extra_body={"max_tokenz": 1})
    with pytest.raises(openai.BadRequestError) as rejected:
        complete(client, "x", max_tokens=5000)
    assert rejected.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match=r"drafter must be one of .*; got 'guess'"):
        complete(client, "x", extra_body={"drafter": "guess"})
    with pytest.raises(openai.BadRequestError, match=r"drafter must be one of .*; got 'guess'"):
        complete(client, "x", stream=True, extra_body={"drafter": "guess"})
    with pytest.raises(openai.NotFoundError):
        complete(client, "x", model="gpt-4")
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="bls", input="x")


@pytest.mark.parametrize("stream", first_of(True, False))
def test_engines_stop_when_the_client_leaves(server, gateway_url, stream):
    before = computed(server)
    # The target is late, so the answer can't end before the client leaves.
    with server.faults.inject("target", "late"):
        leave(server, gateway_url, stream=stream)
    assert eventually(lambda: is_at_rest(server))
    # A complete answer has more than LONG tokens.
    assert computed(server) - before < LONG / 2


def leave(server, gateway_url, *, stream):
    """Request a long answer, and close the connection while the engines generate it."""
    before = computed_so_far(server)

    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{gateway_url}/v1", api_key="any") as client:
            more = {"ignore_eos": True}
            call = complete(client, "x", max_tokens=LONG, extra_body=more, stream=stream)
            task = asyncio.ensure_future(call)
            working = asyncio.to_thread(eventually, lambda: computed_so_far(server) > before)
            assert await working
            task.cancel()
            if stream:
                await asyncio.gather(task, return_exceptions=True)

    asyncio.run(ask())
