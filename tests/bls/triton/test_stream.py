"""The stream entry has prompts tokenized, decodes them, and returns text."""

import itertools
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from client_inputs import INPUTS, array
from live_triton import eventually
from model_configs import model_config, start_arguments
from receivers import Panic
from scripted import SETTINGS, with_engines
from tokenizer_kinds import byte_level, write

from tandem.bls.admission import Arrivals
from tandem.bls.errors import AnswerNotSent, Overloaded
from tandem.bls.triton import requests, stream
from tandem.bls.triton.responses import ResponseBuilder
from tandem.bls.triton.stream import TOKENIZER_CALLS, StreamEntry
from tandem.contract import engine as tensors
from tandem.contract import entry as outputs
from tandem.contract.entry import new_forwarded_id
from tandem.contract.errors import prefix_code
from tandem.contract.model_parameters import encode
from tandem.postprocessing.detokenizer import make_detokenizer
from tandem.postprocessing.postprocessor import Postprocessor
from tandem.preprocessing.preprocessor import Preprocessor, TokenizerSettings
from tandem.preprocessing.tokenizer import InputError

KIND = byte_level()
MAX_TOKENS = 512
QUEUE_BYTES = 100_000
MAX_REQUESTS = 8
TEXT = "The dog jumps over the lazy fox"
PROMPT = "The dog"
IDS = KIND.encode(TEXT, add_special_tokens=False).ids


class Models:
    """The models that the entry calls. The target writes TEXT, whatever the prompt is.

    before_round: called with the number of tokens that the target has written. tokenizer_free:
    cleared to hold the calls to the tokenizer. called: the names of the called models. failing:
    names of models whose calls fail.
    """

    def __init__(self, pb):
        self.before_round = lambda written: None
        self.tokenizer_free = threading.Event()
        self.tokenizer_free.set()
        self.called, self.failing = [], set()
        settings = TokenizerSettings(
            ".",
            add_special_tokens=False,
            vocab_size=KIND.get_vocab_size(),
            end_id=2,
            pad_id=0,
            max_seq_len=MAX_TOKENS,
        )
        detokenizer = make_detokenizer(KIND, skip_special_tokens=True)
        self._pb = pb
        self._models = {
            SETTINGS.preprocessing_model: Preprocessor(KIND, settings).answer,
            SETTINGS.postprocessing_model: Postprocessor(detokenizer, MAX_TOKENS).answer,
            SETTINGS.target.model: self._verify,
        }

    def __call__(self, request):
        wanted = request.given["requested_output_names"]
        self.called.append(request.model_name)
        if request.model_name in self.failing:
            return self._pb.InferenceResponse(error=self._pb.TritonError("it broke"))
        if request.model_name == SETTINGS.preprocessing_model:
            self.tokenizer_free.wait()
        try:
            answer = self._models[request.model_name](request.arrays, wanted)
        except InputError as error:
            line = prefix_code("INVALID_ARG", str(error), error.field)
            return self._pb.InferenceResponse(error=self._pb.TritonError(line))
        return self._pb.response_of(answer)

    def _verify(self, inputs, wanted):
        written = inputs[tensors.INPUT_LENGTHS].item() - len(KIND.encode(PROMPT).ids)
        self.before_round(written)
        tokens = IDS[written:][: inputs[tensors.REQUEST_OUTPUT_LEN].item()]
        answer = {tensors.OUTPUT_IDS: [[tokens]], tensors.SEQUENCE_LENGTH: [[len(tokens)]]}
        return {name: np.array(value, np.int32) for name, value in answer.items()}


@pytest.fixture
def models(pb):
    pb.InferenceRequest.answer = Models(pb)
    return pb.InferenceRequest.answer


@pytest.fixture
def changes():
    """Changes to the settings of the entry."""
    return {}


@pytest.fixture
def entry(models, tmp_path, changes):
    write(KIND, tmp_path / "1" / "tokenizer")
    sizes = {"vocab_size": KIND.get_vocab_size(), "kv_cache_tokens": 4096}
    target = {**sizes, "client_adapters": True}
    if "target_timeout" in changes:
        target["timeout"] = changes.pop("target_timeout")
    limits = {"max_queue_bytes": QUEUE_BYTES, "max_requests": MAX_REQUESTS, "max_queue": 0}
    settings = replace(with_engines(SETTINGS, target=target), draft=None, **limits | changes)
    config = model_config(encode(settings), name="bls_stream", instance_group=[{"count": 1}])
    entry = StreamEntry()
    entry.initialize(start_arguments(config, tmp_path))
    yield entry
    entry.finalize()


@pytest.fixture
def submit(pb, models, entry):
    """submit(**inputs) sends a request to the entry, and returns the sender of its responses."""

    def send(request_id="", *, prompts=1, **values):
        sender = models.sender = pb.ResponseSender()
        values = {"max_tokens": len(IDS), "end_id": -1} | values
        rows = {name: v if isinstance(v, list) else [v] for name, v in values.items()}
        arrays = {name: array(INPUTS[name], [row] * prompts) for name, row in rows.items()}
        entry.execute([pb.Request(sender, arrays, outputs.OUTPUTS, request_id)])
        return sender

    return send


@pytest.fixture
def cancel(pb, entry):
    """cancel(request_id) sends a request that stops another one."""

    def send(request_id):
        stop = array(INPUTS["stop"], [[True]])
        entry.execute([pb.Request(pb.ResponseSender(), {"stop": stop}, (), request_id)])

    return send


@pytest.fixture
def ask(submit):
    """ask(**inputs) also waits for the last response."""

    def send(**values):
        sender = submit(**values)
        assert eventually(lambda: sender.sent and sender.sent[-1].flags)
        return sender

    return send


def texts_of(sender):
    return [
        sent.response.arrays[outputs.TEXT_OUTPUT][0].decode()
        for sent in sender.sent
        if sent.response
    ]


def leaves_nothing(entry, num_threads):
    """Return whether no request is watched soon, and no more threads run than before."""
    return eventually(
        lambda: not entry._watcher._watched and threading.active_count() <= num_threads
    )


def test_a_prompt_is_tokenized_and_its_output_is_text(ask, entry):
    before = threading.active_count()
    assert texts_of(ask(text_input=PROMPT)) == [TEXT]
    assert leaves_nothing(entry, before)


def test_a_stream_has_the_same_text_and_leaves_nothing(ask, entry, models):
    before = threading.active_count()
    # Without this wait, all rounds could end before the first text is sent.
    models.before_round = lambda written: written == 0 or eventually(lambda: models.sender.sent)
    texts = texts_of(ask(text_input=PROMPT, stream=True))
    assert len(texts) > 1
    assert "".join(texts) == TEXT
    assert leaves_nothing(entry, before)


def test_a_sequence_that_ends_after_its_last_response_logs_nothing(
    ask, entry, models, pb, monkeypatch
):
    before = threading.active_count()

    def wait_for_last_response(*_):
        assert eventually(lambda: models.sender.sent and models.sender.sent[-1].flags)

    monkeypatch.setattr(requests.Metrics, "count", wait_for_last_response)
    assert "".join(texts_of(ask(text_input=PROMPT, stream=True))) == TEXT
    assert leaves_nothing(entry, before)
    assert pb.Logger.lines == []


def test_a_stream_has_no_response_without_text(ask, models):
    """All of the text could begin the stop word, until the end of the output."""
    models.before_round = lambda _: time.sleep(0.01)  # so that chunks don't queue up
    assert texts_of(ask(text_input=PROMPT, stream=True, stop_words=TEXT + "es")) == [TEXT]


@pytest.mark.parametrize("stream", [True, False])
def test_each_of_two_prompts_gets_its_text(ask, stream):
    sent, texts = ask(prompts=2, text_input=PROMPT, stream=stream).sent, ["", ""]
    for arrays in (each.response.arrays for each in sent):
        for index, text in zip(
            arrays[outputs.BATCH_INDEX][:, 0], arrays[outputs.TEXT_OUTPUT], strict=True
        ):
            texts[index] += text.decode()
    assert texts == [TEXT, TEXT]
    assert stream or len(sent) == 1


@pytest.mark.parametrize("stops", [True, False])
def test_chunks_that_queue_up_while_one_is_sent_become_one(submit, entry, models, stops):
    may_decode, sends, may_send = (threading.Event() for _ in range(3))
    models.before_round = lambda written: (sends if written else may_decode).wait()
    first, rest = KIND.decode(IDS[:1]), KIND.decode(IDS[1:])
    sender = submit(text_input=PROMPT, stream=True, stop_words=rest if stops else "")
    sender._hold = lambda: sends.set() or may_send.wait()
    assert eventually(lambda: entry._admission.running)
    may_decode.set()
    assert eventually(lambda: not entry._admission.running)
    may_send.set()
    assert eventually(lambda: sender.sent and sender.sent[-1].flags)
    assert texts_of(sender) == [first, "" if stops else rest]
    reason = b"stop" if stops else b"length"
    assert sender.sent[-1].response.arrays[outputs.FINISH_REASON].tolist() == [reason]


def test_text_is_made_without_calls(ask, models):
    ask(text_input=PROMPT, stream=True)
    assert SETTINGS.postprocessing_model not in models.called


def test_a_stream_is_sent_even_if_no_thread_can_start_for_it(ask, monkeypatch):
    start = requests.run_in_background

    def no_thread_for_it(work, *on_rejected):
        if not on_rejected:
            raise Overloaded("no thread is free")
        start(work, *on_rejected)

    monkeypatch.setattr(requests, "run_in_background", no_thread_for_it)
    sender = ask(text_input=PROMPT, stream=True)
    assert len(texts_of(sender)) > 1
    assert "".join(texts_of(sender)) == TEXT


@pytest.mark.parametrize(
    ("failing", "line"),
    [
        ((stream, "build_request", Panic), "internal error while starting the request; see"),
        ((ResponseBuilder, "response", Panic), "internal error while sending the answer; see"),
        ((ResponseBuilder, "response", AnswerNotSent), "out of bounds"),
    ],
)
def test_an_error_of_any_part_ends_the_stream(submit, pb, monkeypatch, failing, line):
    owner, name, error = failing

    def fail(*_):
        raise error("out of bounds")

    monkeypatch.setattr(owner, name, fail)
    sender = submit(text_input=PROMPT, stream=True)
    assert eventually(lambda: sender.sent)
    assert line in sender.sent[0].line
    is_logged = any("out of bounds" in logged for logged in pb.Logger.lines)
    assert is_logged == (error is Panic)


class TestReplacedPostprocessing:
    """With `detokenize_in_loop: false`, the text of each round comes from `postprocessing`."""

    @pytest.fixture
    def changes(self):
        return {"detokenize_in_loop": False}

    @pytest.mark.parametrize("stream", [True, False])
    @pytest.mark.parametrize("stop_words", ["", " over"])
    def test_it_makes_the_text(self, ask, models, stream, stop_words):
        sender = ask(text_input=PROMPT, stream=stream, stop_words=stop_words)
        text = TEXT.partition(" over")[0] if stop_words else TEXT
        assert "".join(texts_of(sender)) == text
        assert SETTINGS.postprocessing_model in models.called

    def test_its_failure_ends_the_stream_and_the_target(self, ask, models):
        models.failing.add(SETTINGS.postprocessing_model)
        sender = ask(text_input=PROMPT, stream=True)
        assert "model 'postprocessing' failed: it broke" in sender.sent[-1].line
        assert models.called.count(SETTINGS.target.model) == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_word_ends_the_text(ask, stream):
    sender = ask(text_input=PROMPT, stop_words=" over", stream=stream)
    assert "".join(texts_of(sender)) == TEXT.partition(" over")[0]
    assert sender.sent[-1].response.arrays[outputs.FINISH_REASON].tolist() == [b"stop"]


def test_the_output_includes_the_prompt_on_request(ask):
    assert texts_of(ask(text_input=PROMPT, exclude_input_in_output=False)) == [PROMPT + TEXT]


def test_a_prompt_that_does_not_fit_is_rejected(ask):
    [sent] = ask(text_input=PROMPT * 2_000, max_tokens=4).sent
    assert sent.line.startswith("input 'text_input' has ")
    assert sent.line.endswith(f"of its 14000 characters; the limit is {MAX_TOKENS}")


def test_failed_requests_leave_room_for_others(ask):
    for _ in range(MAX_REQUESTS):
        assert ask(text_input=PROMPT * 2_000, max_tokens=4).sent[-1].line
    assert texts_of(ask(text_input=PROMPT)) == [TEXT]


def test_a_request_can_be_stopped_as_soon_as_it_has_started(cancel, submit, models, monkeypatch):
    request_id = new_forwarded_id()
    start = stream.run_in_background

    def stop_and_start(*arguments):
        cancel(request_id)
        start(*arguments)

    monkeypatch.setattr(stream, "run_in_background", stop_and_start)
    monkeypatch.setattr(Arrivals, "leave", lambda _: None)  # it leaves the queue too late
    before = threading.active_count()
    sender = submit(request_id, text_input=PROMPT)
    assert eventually(lambda: sender.sent and threading.active_count() <= before)
    assert sender.sent[0].line.endswith("the request was cancelled")
    assert SETTINGS.target.model not in models.called


def test_a_request_ends_when_its_client_leaves(submit, models):
    decodes, over = threading.Event(), threading.Event()
    models.before_round = lambda _: decodes.set() or over.wait()
    sender = submit(text_input=PROMPT)
    assert decodes.wait(10)
    sender.cancelled = True
    assert eventually(lambda: sender.sent)
    over.set()
    assert sender.sent[0].line.endswith("the request was cancelled")


def test_a_cancelled_request_is_watched_until_the_tokenizer_answers(entry, submit, cancel, models):
    models.tokenizer_free.clear()
    request_id = new_forwarded_id()
    sender = submit(request_id, text_input=PROMPT)
    assert eventually(lambda: models.called)
    cancel(request_id)
    assert eventually(lambda: sender.sent)
    time.sleep(0.1)  # several checks
    assert entry._watcher._watched
    models.tokenizer_free.set()
    assert eventually(lambda: not entry._watcher._watched)


WEIGHTS = [[0.5] * QUEUE_BYTES]
ADAPTER = {"lora_task_id": 7, "lora_weights": WEIGHTS, "lora_config": [[1, 0, 1]]}


@pytest.mark.parametrize("large", [{"text_input": PROMPT * 20_000}, ADAPTER])
def test_large_inputs_of_requests_that_wait_for_the_tokenizer_are_limited(submit, models, large):
    models.tokenizer_free.clear()
    waiting = [submit(text_input=PROMPT) for _ in range(TOKENIZER_CALLS)]
    waiting.append(submit(**{"text_input": PROMPT} | large))
    for _ in range(MAX_REQUESTS):
        rejected = submit(text_input=PROMPT)
        assert eventually(lambda sender=rejected: sender.sent)
        assert "bytes of requests are waiting; the limit is 100000" in rejected.sent[0].line
    assert not any(sender.sent for sender in waiting)
    models.tokenizer_free.set()
    assert eventually(lambda: all(sender.sent for sender in waiting))


def test_a_cancelled_request_no_longer_waits_for_the_tokenizer(submit, cancel, models):
    models.tokenizer_free.clear()
    for _ in range(TOKENIZER_CALLS):
        submit(text_input=PROMPT)
    request_id = new_forwarded_id()
    cancelled = submit(request_id, text_input=PROMPT * 20_000)
    cancel(request_id)
    assert eventually(lambda: cancelled.sent)
    assert cancelled.sent[0].line.endswith("the request was cancelled")
    following = submit(text_input=PROMPT)
    models.tokenizer_free.set()
    assert eventually(lambda: following.sent)
    assert texts_of(following) == [TEXT]


class TestShortTimeouts:
    @pytest.fixture
    def changes(self):
        return {"request_timeout": 0.2}

    @pytest.mark.parametrize("stream", [True, False])
    def test_a_request_ends_when_its_time_is_over(self, entry, submit, models, stream):
        over, rounds = threading.Event(), []
        models.before_round = lambda written: rounds.append(written) or over.wait()
        sender = submit(text_input=PROMPT, stream=stream)
        assert eventually(lambda: sender.sent)
        time.sleep(0.1)  # several checks
        assert entry._watcher._watched  # until the target has stopped working on it
        over.set()
        assert sender.sent[0].line.endswith("the request exceeded its timeout of 0.2 s")
        assert eventually(lambda: not entry._watcher._watched)
        assert max(rounds) == 0  # the target wasn't called again


class TestHangingTokenizer:
    @pytest.fixture
    def changes(self):
        return {"target_timeout": 1.0}

    def test_its_calls_end_and_make_room_for_others(self, submit, ask, models, monkeypatch):
        hang, calls = threading.Event(), itertools.count(1)
        monkeypatch.setattr(
            models.tokenizer_free, "wait", lambda: next(calls) > TOKENIZER_CALLS or hang.wait()
        )
        waiting = [submit(text_input=PROMPT) for _ in range(TOKENIZER_CALLS)]
        assert texts_of(ask(text_input=PROMPT)) == [TEXT]
        assert eventually(lambda: all(sender.sent for sender in waiting))
        assert all("no response within 1 s" in sender.sent[0].line for sender in waiting)
        hang.set()


class TestHangingTarget:
    @pytest.fixture
    def changes(self):
        return {"target_timeout": 0.3}

    def test_it_ends_the_request(self, submit, models):
        hang = threading.Event()
        models.before_round = lambda _: hang.wait()
        sender = submit(text_input=PROMPT)
        assert eventually(lambda: sender.sent)
        hang.set()
        assert "no response within 0.3 s" in sender.sent[0].line


class TestShortQueue:
    """One request decodes, and another one may wait."""

    @pytest.fixture
    def changes(self):
        return {"max_requests": 1, "max_queue": 1}

    @pytest.fixture
    def may_decode(self, entry):
        yield (event := threading.Event())
        event.set()  # even if the test fails, so that the entry can end

    @pytest.fixture
    def waiting(self, entry, submit, models, may_decode):
        """The id and the sender of the request that waits."""
        decodes = threading.Event()
        models.before_round = lambda _: decodes.set() or may_decode.wait()
        submit(text_input=PROMPT)
        assert decodes.wait(10)
        request_id = new_forwarded_id()
        sender = submit(request_id, text_input=PROMPT)
        assert eventually(lambda: entry._admission._queue)
        return request_id, sender

    def test_a_cancelled_request_leaves_its_place_to_another(
        self, entry, submit, cancel, waiting, may_decode
    ):
        request_id, cancelled = waiting
        cancel(request_id)
        assert eventually(lambda: cancelled.sent)
        assert cancelled.sent[0].line.endswith("the request was cancelled")
        following = submit(text_input=PROMPT)
        may_decode.set()
        assert eventually(lambda: following.sent)
        assert texts_of(following) == [TEXT]
        assert eventually(lambda: not entry._watcher._watched)

    def test_a_waiting_request_ends_when_its_client_leaves(self, waiting):
        _, sender = waiting
        sender.cancelled = True
        assert eventually(lambda: sender.sent)
        assert sender.sent[0].line.endswith("the request was cancelled")
