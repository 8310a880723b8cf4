"""Parses requests in the form that clients send: inputs by name, one row per prompt."""

import re
from dataclasses import replace

import numpy as np
import pytest
import scripted
from scripted import with_engines

from tandem.bls.errors import BadRequest
from tandem.bls.parser import parse, validate_rows
from tandem.contract import entry

SETTINGS = replace(
    with_engines(
        scripted.SETTINGS,
        target={
            "vocab_size": 100,
            "max_seq_len": 64,
            "max_draft_len": 16,
            "lora_adapters": ("sql", "legal"),
        },
    ),
    end_ids=(7,),
    drafters=("draft_model", "prompt_lookup", "hybrid", "none"),
    drafter="draft_model",
    draft_len=4,
    prompt_lookup_num_tokens=5,
    max_matching_ngram_size=2,
    max_ngram_size=3,
    max_pool_tokens=1000,
    max_text_bytes=50,
    max_words=3,
    max_words_bytes=20,
    max_logits_bytes=100 * 4 * 12,  # 12 rows
)
NUMPY = {"BOOL": np.bool_, "FP32": np.float32, "INT32": np.int32, "UINT64": np.uint64}
INPUTS = {tensor: tensor for tensor in entry.INPUTS}


def array(tensor, rows):
    """Return an input's values as an array, [b, n], or [b] if Triton reshapes the tensor."""
    if tensor.dtype == "STRING":
        made = np.array([[s if isinstance(s, bytes) else s.encode() for s in r] for r in rows], "O")
        return made.reshape(len(rows), -1)
    made = np.array(rows, NUMPY.get(tensor.dtype, np.float32))
    return made.reshape(-1) if tensor.scalar and made.shape[-1] == 1 else made


def prompts_of(inputs, parameters="", settings=SETTINGS):
    """Parse a request. inputs: arrays by name."""
    return parse(validate_rows(inputs, parameters, settings), settings)


def prompt(*, settings=SETTINGS, parameters="", **values):
    """Parse a request with one prompt.

    values: a value or a row of values per input; None omits the input.
    """
    values = {"text_input": "x", "max_tokens": 4} | values
    inputs = {}
    for name, value in values.items():
        if value is not None:
            row = value if isinstance(value, list) else [value]
            inputs[name] = array(INPUTS[name], [row])
    [read] = prompts_of(inputs, parameters, settings)
    return read


def batch(*rows, settings=SETTINGS):
    """Parse a request with several prompts. rows: the inputs of each prompt, by name."""
    rows = [{"text_input": "x", "max_tokens": 4} | row for row in rows]
    names = {name for row in rows for name in row}
    inputs = {name: array(INPUTS[name], [[row[name]] for row in rows]) for name in names}
    return prompts_of(inputs, settings=settings)


def request_of(**values):
    return prompt(**values).request


def rejection(**values):
    """Return the line of the error for a prompt. The error's field is the input that it names."""
    with pytest.raises(BadRequest) as rejected:
        prompt(**values)
    text = str(rejected.value)
    assert len(text) < 400
    assert "\n" not in text
    named = re.match(r"(?:send )?inputs? '(\w+)'", text)
    assert rejected.value.field == (named[1] if named and named[1] in entry.INPUTS else "")
    return text
