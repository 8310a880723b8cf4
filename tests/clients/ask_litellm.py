"""Call a gateway with litellm, and print the results as JSON.

usage: ask_litellm.py API_BASE PROMPT...
"""

import asyncio
import json
import sys

import litellm
import openai

litellm.suppress_debug_info = True
API_BASE, *PROMPTS = sys.argv[1:]
GIVEN = {"api_base": API_BASE, "temperature": 0, "max_tokens": 24, "num_retries": 0}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


def chat(prompt):
    """Return the arguments of a chat."""
    return GIVEN | {
        "model": "openai/bls_stream",
        "messages": [{"role": "user", "content": prompt}],
    }


def fields_of(answer):
    """Return the fields of an answer that the test compares."""
    choice = answer.choices[0]
    text = choice.message.content if "message" in choice else choice.text
    return {
        "text": text,
        "finish_reason": choice.finish_reason,
        "usage": [answer.usage.prompt_tokens, answer.usage.completion_tokens],
    }


def failed(**changes):
    """Return litellm's exception for a request that must fail."""
    try:
        answer = litellm.completion(**chat(PROMPTS[0]) | changes)
    except openai.APIStatusError as error:  # the base class of all litellm errors
        kind = type(error).__name__
        return {"kind": kind, "status": error.status_code, "message": str(error)}
    return fields_of(answer)


def streamed():
    """Return a streamed chat answer."""
    return fields_of(
        litellm.stream_chunk_builder(list(litellm.completion(**chat(PROMPTS[0]), **STREAM)))
    )


async def streamed_to_await():
    """Return a streamed chat answer of the asynchronous API."""
    stream = await litellm.acompletion(**chat(PROMPTS[0]), **STREAM)
    return fields_of(litellm.stream_chunk_builder([chunk async for chunk in stream]))


async def side_by_side():
    """Return the answers to concurrent chats."""
    answers = await asyncio.gather(*(litellm.acompletion(**chat(prompt)) for prompt in PROMPTS))
    return [fields_of(answer) for answer in answers]


def text():
    """Return the answer to a completion request."""
    model = "text-completion-openai/bls_stream"
    return fields_of(litellm.text_completion(**GIVEN, model=model, prompt=PROMPTS[0]))


first = chat(PROMPTS[0])
answers = {
    "whole": fields_of(litellm.completion(**first)),
    "without drafts": fields_of(litellm.completion(**first, extra_body={"drafter": "none"})),
    "stream": streamed(),
    "awaited stream": asyncio.run(streamed_to_await()),
    "side by side": asyncio.run(side_by_side()),
    "text": text(),
    "unknown model": failed(model="openai/nobody"),
    "value out of range": failed(top_p=2),
    "unknown field": failed(extra_body={"no_such_field": 1}),
    "too long": failed(max_tokens=1_000_000),
    "wrong key": failed(api_key="wrong"),
}
print(json.dumps(answers))
