"""Strategies for the requests of hostile clients.

Most requests have a prompt and a length. Otherwise, the server would only report missing inputs,
and would not check the invalid ones. Some requests can't even be parsed. Valid requests get short
answers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from wire import Post, Rpc, message

from tandem.contract import engine, entry, postprocessing, preprocessing
from tandem.contract.tensor import Tensor

ENTRIES = ("bls", "bls_stream", "ensemble")
SIZES = {"BOOL": 1, "UINT8": 1, "FP16": 2, "FP32": 4, "INT32": 4, "INT64": 8, "UINT64": 8}
DATATYPES = ("BOOL", "UINT8", "FP16", "FP32", "INT32", "INT64", "UINT64", "BYTES")
NOT_A_TYPE = ("", "STRING", "FP8", "int32", "BF16", "TYPE_INT32", "☃")

LONG_TEXT = "lorem ipsum " * 8_500  # 100 kB
MANY = 100_000
STRINGS = st.one_of(
    st.text(max_size=12).map(lambda text: text.encode(errors="surrogatepass")),
    st.sampled_from(
        [
            b"",
            b"\0",
            b"\n\r\n",
            b"a\xff",
            b"\xed\xa0\x80",  # half of a surrogate pair
            b"\xf4\x90\x80\x80",  # outside Unicode
            "\u202ee\u0301\u200b\U0001f469\u200d\U0001f680".encode(),
            b"<|endoftext|>",
            b"../../etc/passwd",
            b"%s%n{0}$(id)",
            b"none",
            b"draft_model",
            b"prompt_lookup",
            b"hybrid",
            b" ",
        ]
    ),
)
LONG_STRINGS = st.sampled_from([LONG_TEXT.encode(), b"x" * MANY, b"\n" * MANY, b"\xff" * MANY])
INTEGERS = st.one_of(
    st.integers(-4, 40),
    st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**63 - 1, -(2**63), 2**64]),
)
SUBNORMAL = 1e-39
FLOATS = st.one_of(
    st.floats(width=32),
    st.sampled_from([0.0, -0.0, 1.0, 0.5, SUBNORMAL, 1e-45, 3e38, float("nan"), float("-inf")]),
)
NAMES = st.one_of(
    st.sampled_from(entry.INPUTS),
    st.sampled_from(["temprature", "max_token", "text", "Text_Input", "input_id", "", "\n", "a/b"]),
    st.text(max_size=8).filter(lambda name: name.isprintable()),
)
OUTPUTS: st.SearchStrategy[Any] = st.one_of(
    st.just([]),
    st.lists(st.sampled_from(entry.OUTPUTS), max_size=4).map(list),
    st.lists(st.sampled_from(["text_outptu", "", "output_ids", "output_ids"]), max_size=3),
    st.just(list(entry.OUTPUTS)),
)
IDS = st.sampled_from(["", "1", "x" * 1000, "tandem.1", "a b\n", "☃", "0" * 36])
PARAMETERS = st.dictionaries(
    st.sampled_from(
        [
            "priority",
            "timeout",
            "sequence_id",
            "sequence_start",
            "sequence_end",
            "triton_enable_empty_final_response",
            "binary_data_output",
            "temprature",
            "max_tokens",
            "x\ny",
            "k" * 5000,
        ]
    ),
    st.one_of(
        st.integers(-(2**63), 2**63 - 1),
        st.integers(-2, 20),
        st.booleans(),
        st.text(max_size=8),
        st.floats(),
    ),
    max_size=2,
)


def raw_strings(values: list[bytes]) -> bytes:
    """Encode strings in Triton's format: for each string, its length in bytes and its bytes."""
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def holds_strings(content: bytes) -> bool:
    """Return whether the content consists of complete strings encoded by ``raw_strings``."""
    while len(content) >= 4 + (length := int.from_bytes(content[:4], "little")):
        content = content[4 + length :]
    return not content


def raw(datatype: str, values: list[Any]) -> bytes:
    """Encode values in a tensor's data type. Values out of range wrap around, as in clients."""
    if datatype == "BYTES":
        return raw_strings([str(v).encode() if not isinstance(v, bytes) else v for v in values])
    if datatype in ("FP16", "FP32"):
        with np.errstate(over="ignore"):
            kind = np.float16 if datatype == "FP16" else np.float32
            return np.array([float(v) for v in values], np.float64).astype(kind).tobytes()
    bits = 8 * SIZES[datatype]
    return b"".join((int(v) % 2**bits).to_bytes(bits // 8, "little") for v in values)


def wire_type(tensor: Tensor) -> str:
    """Return the protocol's name for a tensor's data type."""
    return "BYTES" if tensor.dtype == "STRING" else tensor.dtype


def values_of(datatype: str) -> st.SearchStrategy:
    """Return a strategy for single values of a data type, including hostile values."""
    if datatype == "BYTES":
        return STRINGS
    if datatype in ("FP16", "FP32"):
        return FLOATS
    return st.sampled_from([0, 1, 2, 255]) if datatype in ("BOOL", "UINT8") else INTEGERS


@st.composite
def rows(draw: Any, datatype: str, batch: int) -> tuple[list[int], list[Any]]:
    """Draw a shape and matching values, with no, one, a few or very many values per row."""
    width = draw(st.sampled_from([1, 1, 1, 1, 1, 0, 2, 3, 17]))
    if draw(st.integers(0, 40)) == 40:
        width = draw(st.sampled_from([2000, MANY]))
        return [1, width], [draw(values_of(datatype))] * width
    if datatype == "BYTES" and draw(st.integers(0, 40)) == 40:
        return [1, 1], [draw(LONG_STRINGS)]
    count = batch * width
    values = draw(st.lists(values_of(datatype), min_size=min(count, 4), max_size=4)) or [0]
    return [batch, width], [values[at % len(values)] for at in range(count)]


SHAPES: st.SearchStrategy[Any] = st.one_of(
    st.just([]),
    st.lists(st.sampled_from([-1, 0, 1, 2, 2**31, 2**40, 2**62, 2**63 - 1]), max_size=4),
    st.just([1] * 64),
)


# (type, text) of a guide. In about half of the guides, the text fits the type.
GUIDES = st.one_of(
    st.sampled_from(
        [
            ("json", ""),
            ("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}}'),
            ("json_schema", '{"not": {}}'),
            ("regex", "[ab]{2,}"),
            ("choice", '["yes", "no"]'),
            ("lark_grammar", 'start: "a"*'),
        ]
    ).map(lambda guide: [part.encode() for part in guide]),
    st.tuples(st.sampled_from([b"json", b"regex", b"choice", b"JSON", b""]), STRINGS),
    st.tuples(STRINGS, st.sampled_from([b"{}", b"[]", b'{"$ref": "#"}', b"\xff", b"(((("])),
)


def guided(guide: Sequence[bytes], batch: int) -> dict[str, tuple]:
    """Return the inputs that give every prompt the same guide."""
    pair = (entry.GUIDED_DECODING_GUIDE_TYPE, entry.GUIDED_DECODING_GUIDE)
    return {
        name: ("BYTES", [batch, 1], raw_strings([text] * batch))
        for name, text in zip(pair, guide, strict=True)
    }


@st.composite
def tensors(draw: Any, known: Sequence[Tensor] = entry.INPUTS) -> list:
    """Draw the inputs of a request: a prompt and a length, with up to three errors."""
    batch = draw(st.sampled_from([1, 1, 1, 1, 1, 1, 2, 3, 33]))
    made = {
        "text_input": ("BYTES", [batch, 1], raw_strings([b"def f(x):"] * batch)),
        "max_tokens": ("INT32", [batch, 1], raw("INT32", [4] * batch)),
    }
    if draw(st.integers(0, 5)) == 5:
        made |= guided(draw(GUIDES), batch)
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(known))
        datatype = wire_type(name)
        kind = draw(st.integers(0, 11))
        if kind == 0:
            made.pop(draw(st.sampled_from(sorted(made))), None)
            if not made:
                break
        elif kind == 1:  # any input, with a type other than the declared one
            name = draw(NAMES)
            datatype = draw(st.sampled_from(DATATYPES))
            shape, values = draw(rows(datatype, batch))
            made[name] = (datatype, shape, raw(datatype, values))
        elif kind == 2:  # a shape that doesn't fit the contents
            made[name] = (datatype, draw(SHAPES), draw(st.binary(max_size=24)))
        elif kind == 3:  # a type that doesn't exist
            made[name] = (draw(st.sampled_from(NOT_A_TYPE)), [batch, 1], draw(st.binary()))
        elif kind == 4:  # bytes that aren't strings
            made[name] = ("BYTES", [batch, 1], draw(st.binary(max_size=16)))
        else:
            rows_of = 1 if kind == 5 else batch
            shape, values = draw(rows(datatype, rows_of))
            made[name] = (datatype, shape, raw(datatype, values))
    found = [(name, *tensor) for name, tensor in made.items()]
    if found and draw(st.integers(0, 15)) == 15:
        found.append(draw(st.sampled_from(found)))  # the same input twice
    return found


@st.composite
def rpcs(draw: Any, models: tuple[str, ...] = ENTRIES) -> Rpc:
    """Draw a gRPC request to an entry."""
    made = message(
        draw(st.sampled_from(models)),
        draw(tensors()),
        request_id=draw(IDS) if draw(st.booleans()) else "",
        parameters=draw(PARAMETERS) if draw(st.integers(0, 3)) == 3 else {},
        outputs=draw(OUTPUTS) if draw(st.booleans()) else [],
    )
    spoilt = draw(st.integers(0, 30))
    if spoilt == 30 and made.raw_input_contents:
        del made.raw_input_contents[-1]
    elif spoilt == 29:
        made.raw_input_contents.append(b"more")
    elif spoilt == 28:
        made.model_version = draw(st.sampled_from(["1", "2", "-1", "x", "9" * 40]))
    elif spoilt == 27 and made.inputs:
        made.inputs[0].contents.int_contents.append(1)
    # Triton 2.51 sometimes crashes if a stream that requests error codes contains truncated strings
    # (docs/deploy/security.md). It crashes before it calls any of Tandem's code.
    streamed = draw(st.booleans()) and all(
        tensor.datatype != "BYTES" or holds_strings(content)
        for tensor, content in zip(made.inputs, made.raw_input_contents, strict=False)
    )
    return Rpc(made, streamed=streamed)


JSON_VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        INTEGERS,
        FLOATS,
        st.text(st.characters(), max_size=10),
        st.sampled_from(["\ud800", "a\0b", "\n", LONG_TEXT, "x" * MANY]),
    ),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
# Nesting depth of JSON. Triton 2.51 parses JSON recursively. Tens of thousands of levels crash it
# before any model receives the request.
DEPTH = 400
BODIES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            b"",
            b"{",
            b"[]",
            b"null",
            b"{}",
            b'"text_input"',
            b'{"text_input": "x", "max_tokens": 1e400}',
            b'{"text_input": "x", "max_tokens": 4, "max_tokens": 5}',
            b'{"text_input": "x", "text_input": ["y"], "max_tokens": 4}',
            b'{"text_input": "\\ud800", "max_tokens": 4}',
            b'{"text_input": "x", "max_tokens": 4, "parameters": {"temperature": 0.5}}',
            b'{"text_input": "x", "max_tokens": 4, "parameters": 7}',
            b'{"text_input": "x\xff", "max_tokens": 4}',
            b"[" * DEPTH,
            b'{"text_input": ' + b"[" * DEPTH + b"]" * DEPTH + b', "max_tokens": 4}',
            b'{"a": ' * DEPTH + b"1" + b"}" * DEPTH,
            json.dumps({"text_input": "x", "max_tokens": 4, "stop_words": ["a"] * MANY}).encode(),
            json.dumps({"text_input": "x", "max_tokens": 4, "bad_words": ["a"] * MANY}).encode(),
            json.dumps({"text_input": "x", "max_tokens": 4, "input_ids": [1] * MANY}).encode(),
            json.dumps({"text_input": ["x"] * 1000, "max_tokens": [4] * 1000}).encode(),
        ]
    ),
)


@st.composite
def generates(draw: Any) -> Post:
    """Draw a request to an entry's `generate` or `generate_stream` endpoint."""
    model = draw(st.sampled_from(ENTRIES))
    path = f"/v2/models/{model}/{draw(st.sampled_from(['generate', 'generate_stream']))}"
    if draw(st.integers(0, 3)) == 3:
        return Post(path, draw(BODIES))
    asked: dict[str, Any] = {"text_input": "def f(x):", "max_tokens": 4}
    for _ in range(draw(st.integers(0, 3))):
        asked[draw(NAMES)] = draw(JSON_VALUES)
    if draw(st.integers(0, 5)) == 5:
        asked.pop(draw(st.sampled_from(["text_input", "max_tokens"])))
    return Post(path, json.dumps(asked).encode())


REQUESTS = st.one_of(rpcs(), generates())


INNER = {
    "draft": engine.INPUTS,
    "target": engine.INPUTS,
    "preprocessing": preprocessing.INPUTS,
    "postprocessing": postprocessing.INPUTS,
}


@st.composite
def inner_rpcs(draw: Any, model: str) -> Rpc:
    """Draw a request to an inner model (one that the entries call) with arbitrary tensors."""
    batch = draw(st.sampled_from([1, 1, 1, 1, 2]))
    made = {}
    for name, (datatype, values) in _RIGHT[model].items():
        made[name] = (datatype, [batch, len(values)], raw(datatype, values * batch))
    if model == "postprocessing":
        datatype, _, data = made["TOKENS_BATCH"]
        made["TOKENS_BATCH"] = (datatype, [batch, 1, 3], data)
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(INNER[model]))
        datatype = wire_type(name)
        if draw(st.integers(0, 7)) == 7:
            made.pop(draw(st.sampled_from(sorted(made))), None)
            if not made:
                break
            continue
        shape, values = draw(rows(datatype, batch))
        shape = [shape[0], *[1] * (len(name.dims) - 1), *shape[1:]]
        made[name] = (datatype, shape, raw(datatype, values))
    found = [(name, *tensor) for name, tensor in made.items()]
    return Rpc(message(model, found, request_id=draw(IDS)), streamed=False)


_RIGHT: dict[str, dict[str, Any]] = {
    "draft": {
        "input_ids": ("INT32", [5, 6, 7]),
        "input_lengths": ("INT32", [3]),
        "request_output_len": ("INT32", [2]),
    },
    "preprocessing": {"QUERY": ("BYTES", [b"def"]), "REQUEST_OUTPUT_LEN": ("INT32", [4])},
    "postprocessing": {"TOKENS_BATCH": ("INT32", [5, 6, 7]), "SEQUENCE_LENGTH": ("INT32", [3])},
}
_RIGHT["target"] = _RIGHT["draft"]
