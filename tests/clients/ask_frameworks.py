"""Call a gateway with LangChain and instructor, and print the results as JSON.

usage: ask_frameworks.py URL PROMPT STOP
"""

import json
import sys
from typing import Literal

import instructor
import openai
from langchain_core.messages import ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

URL, PROMPT, STOP = sys.argv[1:]
MODEL, LIMIT = "bls_stream", 64


class Point(BaseModel):
    """A point on a grid."""

    x: Literal[1, 2, 3]
    name: Literal["start", "end"]


def by_langchain(**given):
    """Request text with and without streaming, a structured answer, and a tool call."""
    given |= {"base_url": f"{URL}/v1", "model": MODEL, "max_retries": 0, "stream_usage": True}
    model = ChatOpenAI(temperature=0, max_tokens=LIMIT, **given)
    writer = ChatOpenAI(temperature=0, max_tokens=LIMIT, extra_body={"stop": [STOP]}, **given)
    chunks = list(writer.stream(PROMPT))
    point = model.with_structured_output(Point, method="json_schema").invoke(PROMPT)
    answer = model.bind_tools([Point], tool_choice="required").invoke(PROMPT)
    call = answer.tool_calls[0]
    results = [ToolMessage("found", tool_call_id=call["id"]) for call in answer.tool_calls]
    more = model.bind_tools([Point]).invoke([("user", PROMPT), answer, *results])
    return {
        "texts": [writer.invoke(PROMPT).text, "".join(chunk.text for chunk in chunks)],
        "usage": [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata],
        "points": [point.model_dump(), Point(**call["args"]).model_dump()],
        "after call": more.usage_metadata["input_tokens"],
    }


def by_instructor():
    """Request structured answers by a tool call and by a JSON schema."""
    client = openai.OpenAI(base_url=f"{URL}/v1", max_retries=0)
    modes = (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA)
    return [
        instructor.from_openai(client, mode=mode)
        .chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": PROMPT}],
            response_model=Point,
            max_retries=0,
            temperature=0,
            max_tokens=LIMIT,
        )
        .model_dump()
        for mode in modes
    ]


print(
    json.dumps(
        {
            "chats": by_langchain(),
            "responses": by_langchain(use_responses_api=True),
            "instructor": by_instructor(),
        }
    )
)
