"""Call a gateway with the clients of agent frameworks, and print the results as JSON.

usage: ask_agents.py URL KEY PROMPT STOP
"""

import asyncio
import json
import sys

import agents
import anthropic
import openai
import pydantic_ai
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

URL, KEY, PROMPT, STOP = sys.argv[1:]
MODEL, LIMIT = "bls_stream", 24
agents.set_tracing_disabled(True)


async def by_openai_agents():
    """Run an agent with and without streaming, with the default model class."""
    client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
    agents.set_default_openai_client(client, use_for_tracing=False)
    settings = agents.ModelSettings(max_tokens=LIMIT, temperature=0, extra_body={"stop": [STOP]})
    agent = agents.Agent(name="agent", model=MODEL, model_settings=settings)
    whole = await agents.Runner.run(agent, PROMPT)
    stream = agents.Runner.run_streamed(agent, PROMPT)
    events = [event.data async for event in stream.stream_events() if hasattr(event, "data")]
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    return [whole.final_output, stream.final_output, text]


async def by_pydantic_ai():
    """Run an agent with and without streaming."""
    provider = OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY)
    settings = {"max_tokens": LIMIT, "temperature": 0, "extra_body": {"stop": [STOP]}}
    model = OpenAIResponsesModel(MODEL, provider=provider, settings=settings)
    agent = pydantic_ai.Agent(model)
    whole = await agent.run(PROMPT)
    async with agent.run_stream(PROMPT) as stream:
        return [whole.output, await stream.get_output()]


def by_anthropic():
    """Request a message with and without streaming, and the token count of the prompt."""
    with anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0) as client:
        asked = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}]}
        given = {**asked, "max_tokens": LIMIT, "extra_body": {"temperature": 0}}
        whole = client.messages.create(**given)
        with client.messages.stream(**given) as stream:
            text = "".join(stream.text_stream)
        count = client.messages.count_tokens(**asked).input_tokens
        try:
            anthropic.Anthropic(base_url=URL, api_key="wrong").messages.create(**given)
        except anthropic.AuthenticationError as error:
            wrong = error.body["error"]["message"]
    return {"texts": [whole.content[0].text, text], "count": count, "wrong key": wrong}


print(
    json.dumps(
        {
            "openai-agents": asyncio.run(by_openai_agents()),
            "pydantic-ai": asyncio.run(by_pydantic_ai()),
            "anthropic": by_anthropic(),
        }
    )
)
