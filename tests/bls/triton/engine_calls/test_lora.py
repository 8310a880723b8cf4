"""Engine calls name a LoRA adapter and contain its weights if the engine lacks them."""

import numpy as np
import pytest
import triton_python_backend_utils as triton
from scripted import SETTINGS, ids, with_engines

from tandem.bls.errors import EngineCallError
from tandem.bls.ports import EngineCall
from tandem.bls.request import LoraTask, Request
from tandem.bls.triton.engine_calls import EngineClients, SequenceCaller
from tandem.contract import engine as tensors

ADAPTED = with_engines(
    SETTINGS, target={"lora_adapters": ("sql", "legal")}, draft={"lora_adapters": ("legal",)}
)


class CachingEngine:
    """Answer one token and cache adapters, as NVIDIA's backend does.

    cached: whether all adapters are cached already. calls: the LoRA inputs of each call.
    """

    def __init__(self, *, cached):
        self.cached, self.calls, self.known = cached, [], set()

    def __call__(self, request):
        given = request.arrays
        lora = {name: array.tolist() for name, array in given.items() if name.startswith("lora")}
        self.calls.append(lora)
        task = given.get("lora_task_id", np.uint64([[0]])).item()
        if "lora_weights" in given:
            self.known.add(task)
        if task and not self.cached and task not in self.known:
            said = f"LoRA task {task} not found in cache. Please send LoRA weights with request"
            return triton.InferenceResponse(error=triton.TritonError(said))
        outputs = {tensors.OUTPUT_IDS: [[[4]]], tensors.SEQUENCE_LENGTH: [[1]]}
        return triton.response_of({name: np.int32(value) for name, value in outputs.items()})


def caller(folder, name=None, *, settings=ADAPTED, task=None):
    request = Request(prompt_ids=ids(1, 2, 3), max_tokens=8, lora_name=name, lora_task=task)
    return SequenceCaller(EngineClients(settings, folder), request)


def call(engine="target"):
    return EngineCall(engine, ids(1, 2, 3), max_new_tokens=1, seed=0)


def test_each_engine_gets_its_own_number_for_an_adapter(pb, tmp_path):
    engine = pb.InferenceRequest.answer = CachingEngine(cached=True)
    for name in ("legal", "sql", None):
        caller(tmp_path, name).call_engine(call())
        caller(tmp_path, name).call_engine(call("draft"))
    numbers = [given.get("lora_task_id") for given in engine.calls]
    assert numbers == [[[2]], [[1]], [[1]], None, None, None]


def test_weights_are_sent_only_if_the_engine_lacks_them(pb, tmp_path):
    (tmp_path / "lora-1").mkdir()
    np.save(tmp_path / "lora-1" / "model.lora_weights.npy", np.float16([[[0.5]]]))
    np.save(tmp_path / "lora-1" / "model.lora_config.npy", np.int32([[[1, 0, 1]]]))
    engine = pb.InferenceRequest.answer = CachingEngine(cached=False)
    sql = caller(tmp_path, "sql")
    for _ in range(2):
        assert sql.call_engine(call()).tokens.tolist() == [4]
    weights = {"lora_weights": [[[0.5]]], "lora_config": [[[1, 0, 1]]]}
    number = {"lora_task_id": [[1]]}
    assert engine.calls == [number, number | weights, number]


def test_a_clients_own_adapter_goes_to_the_target_only(pb, tmp_path):
    weights = {"lora_weights": [[[0.5]]], "lora_config": [[[1, 0, 1]]]}
    arrays = {
        name: np.array(value, np.float16 if name == "lora_weights" else np.int32)
        for name, value in weights.items()
    }
    engine = pb.InferenceRequest.answer = CachingEngine(cached=False)
    own = caller(tmp_path, settings=SETTINGS, task=LoraTask(2**64 - 1, arrays))
    for role in ("draft", "target", "draft", "target"):
        own.call_engine(call(role))
    number = {"lora_task_id": [[2**64 - 1]]}
    assert engine.calls == [{}, number, number | weights, {}, number]


def test_a_client_learns_that_the_engine_needs_the_weights(pb, tmp_path):
    pb.InferenceRequest.answer = CachingEngine(cached=False)
    with pytest.raises(EngineCallError, match="Please send LoRA weights with request"):
        caller(tmp_path, settings=SETTINGS, task=LoraTask(7, {})).call_engine(call())


def test_calls_with_other_errors_are_not_retried_with_weights(pb, tmp_path):
    pb.InferenceRequest.answer = lambda _: triton.InferenceResponse(error=triton.TritonError("no"))
    with pytest.raises(EngineCallError, match="no"):
        caller(tmp_path, "sql").call_engine(call())
