"""The Responses and Messages APIs with OpenAI's and Anthropic's clients and a live Triton."""

import pytest

PROMPT = [{"role": "user", "content": "def main():"}]
LIMIT = 24


@pytest.fixture
def messages(gateway_url):
    import anthropic

    with anthropic.Anthropic(base_url=gateway_url, api_key="any", max_retries=0) as client:
        yield client.messages


@pytest.fixture
def expected(client):
    """The answer through the chat completions API."""
    given = {"model": "bls_stream", "max_tokens": LIMIT, "temperature": 0}
    return client.chat.completions.create(messages=PROMPT, **given)


def test_the_responses_api_gives_the_same_output_as_chat(client, expected):
    given = {"model": "bls_stream", "input": PROMPT, "max_output_tokens": LIMIT, "temperature": 0}
    given["extra_body"] = {"drafter": "prompt_lookup"}
    answer = client.responses.create(**given)
    assert answer.output_text == expected.choices[0].message.content
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.usage.output_tokens == LIMIT
    assert answer.usage.input_tokens == expected.usage.prompt_tokens
    with client.responses.stream(**given) as stream:
        events = list(stream)
    text = "".join(event.delta for event in events if event.type.endswith("text.delta"))
    assert text == events[-1].response.output_text == answer.output_text


def test_the_messages_api_gives_the_same_output_as_chat(messages, expected):
    given = {"model": "bls_stream", "messages": PROMPT, "max_tokens": LIMIT}
    given["extra_body"] = {"drafter": "draft_model", "temperature": 0}
    answer = messages.create(**given)
    text = expected.choices[0].message.content
    assert answer.content[0].text == text
    assert answer.stop_reason == "max_tokens"
    with messages.stream(**given) as stream:
        assert "".join(stream.text_stream) == text
        assert stream.get_final_message().usage.output_tokens == LIMIT
    del given["max_tokens"], given["extra_body"]
    assert messages.count_tokens(**given).input_tokens == expected.usage.prompt_tokens
