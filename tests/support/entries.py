"""Sends requests with NVIDIA's tensors to the text entries, through plain tritonclient."""

import queue
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import tritonclient.grpc as client
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tandem.contract import entry

NUMPY = {
    "BOOL": np.bool_,
    "FP16": np.float16,
    "FP32": np.float32,
    "INT32": np.int32,
    "UINT64": np.uint64,
    "STRING": np.object_,
}
TYPES = {tensor: NUMPY.get(tensor.dtype) for tensor in entry.INPUTS}
OUTPUTS = (
    entry.TEXT_OUTPUT,
    entry.OUTPUT_IDS,
    entry.SEQUENCE_LENGTH,
    entry.FINISH_REASON,
    entry.BATCH_INDEX,
    entry.NUM_ROUNDS,
    entry.TOTAL_DRAFT_TOKENS,
    entry.TOTAL_ACCEPTED_DRAFT_TOKENS,
)


@dataclass
class Answer:
    """The answer to one prompt, or a chunk of it.

    index: position of the prompt in the request. error: the error that ended the answer.
    """

    text: str
    ids: list[int]
    finish_reason: str | None
    index: int
    outputs: dict = field(repr=False)
    error: str = ""

    @property
    def said(self):
        return self.ids, self.text, self.finish_reason

    @property
    def rounds(self):
        return int(self.number(entry.NUM_ROUNDS))

    @property
    def draft_tokens(self):
        return int(self.number(entry.TOTAL_DRAFT_TOKENS))

    @property
    def accepted_tokens(self):
        return int(self.number(entry.TOTAL_ACCEPTED_DRAFT_TOKENS))

    def number(self, name):
        """Return this prompt's value of an output that has one number per prompt.

        It is 0 if the answer ended before its first chunk.
        """
        if not self.outputs:
            return 0
        return self.outputs[name].reshape(-1)[self.index if len(self.outputs[name]) > 1 else 0]


def tensor(name, values):
    """Return an input of shape [b, n]. values: a single value, a row, or rows of values."""
    rows = np.array(values, TYPES[name])
    rows = rows.reshape(1, 1) if rows.ndim == 0 else rows
    if rows.dtype == object:
        encoded = [[v if isinstance(v, bytes) else v.encode() for v in row] for row in rows]
        rows = np.array(encoded, object)
    return infer_input(name, rows)


def infer_input(name, array):
    made = client.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
    made.set_data_from_numpy(array)
    return made


def inputs(prompts, **values):
    """Return the inputs for one or more prompts. A single value applies to all prompts."""
    prompts = [prompts] if isinstance(prompts, str | bytes) else prompts
    made = [tensor(entry.TEXT_INPUT, [[prompt] for prompt in prompts])]
    for name, value in values.items():
        row = value if isinstance(value, list | tuple) else [value]
        made.append(tensor(name, [list(row) for _ in prompts]))
    return made


def read(result):
    """Return the answer to each prompt in a response."""
    outputs = {o.name: result.as_numpy(o.name) for o in result.get_response().outputs}
    texts = outputs[entry.TEXT_OUTPUT]
    reasons = outputs.get(entry.FINISH_REASON)
    return [
        Answer(
            text=text.decode(),
            ids=ids_of(outputs, row),
            finish_reason=None if reasons is None else reasons[row].decode(),
            index=int(outputs[entry.BATCH_INDEX][row, 0]) if entry.BATCH_INDEX in outputs else row,
            outputs=outputs,
        )
        for row, text in enumerate(texts)
    ]


def ids_of(outputs, row):
    if entry.OUTPUT_IDS not in outputs:
        return []
    return outputs[entry.OUTPUT_IDS][row, 0, : outputs[entry.SEQUENCE_LENGTH][row, 0]].tolist()


def said(answers):
    return [answer.said for answer in answers]


def joined(chunks, error=""):
    """Return the answer that consists of these chunks of one prompt."""
    last = chunks[-1] if chunks else Answer("", [], None, 0, {})
    text = "".join(chunk.text for chunk in chunks)
    return replace(last, text=text, ids=[i for chunk in chunks for i in chunk.ids], error=error)


def ask(server, model, prompts, *, outputs=OUTPUTS, **values):
    """Return one answer per prompt from an entry that doesn't stream."""
    with client.InferenceServerClient(server.grpc_url) as connection:
        wanted = [client.InferRequestedOutput(name) for name in outputs] or None
        result = connection.infer(model, inputs(prompts, **values), outputs=wanted)
    return read(result)


def ask_one(server, model, prompt, **values):
    return ask(server, model, prompt, **values)[0]


def stream(server, prompts, *, model="bls_stream", outputs=OUTPUTS, **values):
    """Return all chunks of a streamed request, or raise the server's error."""
    with streaming(server, prompts, model=model, outputs=outputs, **values) as chunks:
        return list(chunks)


@contextmanager
def streaming(server, prompts, **values):
    """Yield an iterator over chunks as they arrive. Exiting the context cancels the request."""
    with connected(server, prompts, **values) as (_, chunks):
        yield chunks


@contextmanager
def connected(server, prompts, *, model="bls_stream", outputs=OUTPUTS, timeout=None, **values):
    """Yield the client of a streamed request, and an iterator over chunks as they arrive.

    timeout: Triton's timeout of the request, in microseconds.
    """
    arrived = queue.Queue()
    connection = client.InferenceServerClient(server.grpc_url)
    connection.start_stream(lambda result, error: arrived.put((result, error)))
    try:
        connection.async_stream_infer(
            model,
            inputs(prompts, **{"stream": model == "bls_stream", **values}),
            outputs=[client.InferRequestedOutput(name) for name in outputs],
            enable_empty_final_response=True,
            timeout=timeout,
        )
        yield connection, chunks_from(arrived)
    finally:
        connection.stop_stream(cancel_requests=True)
        connection.close()


@contextmanager
def opened(server, request_id):
    """Open a stream to `bls_stream`.

    Yields a function that sends inputs with this request id, and an iterator over the chunks.
    """
    arrived = queue.Queue()
    with client.InferenceServerClient(server.grpc_url) as connection:
        connection.start_stream(lambda result, error: arrived.put((result, error)))

        def send(*inputs, ends=True):
            """Send inputs. ends: request a final response even if the answer is empty."""
            connection.async_stream_infer(
                "bls_stream", inputs, request_id=request_id, enable_empty_final_response=ends
            )

        yield send, chunks_from(arrived)


def chunks_from(arrived):
    while True:
        result, error = arrived.get(timeout=120)
        if error is not None:
            raise error
        response = result.get_response()
        if response.outputs:
            yield from read(result)
        if response.parameters["triton_final_response"].bool_param:
            return


def rejection(server, model, prompts="x", **values):
    """Return the error message of a request that must fail."""
    send = stream if model == "bls_stream" else partial(ask, model=model)
    try:
        answers = send(server, prompts=prompts, **values)
    except InferenceServerException as error:
        return error.message()
    raise AssertionError(f"it was answered: {answers}")
