"""Tandem's tensors have NVIDIA's names, types and shapes; additional tensors are optional."""

import json
from pathlib import Path

import pytest

from tandem.contract import engine, entry, postprocessing, preprocessing

CONTRACT = Path(__file__).parent / "data" / "tensorrt_llm_contract.json"
MODULES = {
    "tensorrt_llm": engine,
    "tensorrt_llm_bls": entry,
    "preprocessing": preprocessing,
    "postprocessing": postprocessing,
}
MODELS = json.loads(CONTRACT.read_text())["models"]


def tensors(direction):
    return [
        pytest.param(MODULES[model], theirs, id=f"{model}-{theirs['name']}")
        for model, declared in MODELS.items()
        for theirs in declared[direction]
    ]


def declared_as(ours):
    return f"TYPE_{ours.dtype}", list(ours.dims), ours.scalar, ours.ragged


@pytest.mark.parametrize(("module", "theirs"), tensors("input"))
def test_inputs_are_declared_as_in_nvidias_models(module, theirs):
    ours = {str(tensor): tensor for tensor in module.INPUTS}[theirs["name"]]
    scalar, ragged = "reshape" in theirs, theirs.get("allow_ragged_batch", False)
    assert declared_as(ours) == (theirs["data_type"], theirs["dims"], scalar, ragged)
    assert ours.optional or not theirs.get("optional", False)


@pytest.mark.parametrize(("module", "theirs"), tensors("output"))
def test_outputs_are_declared_as_in_nvidias_models(module, theirs):
    ours = {str(tensor): tensor for tensor in module.OUTPUTS}[theirs["name"]]
    assert declared_as(ours)[:2] == (theirs["data_type"], theirs["dims"])


@pytest.mark.parametrize("model", MODELS)
def test_added_inputs_are_optional_and_names_are_unique(model):
    module, theirs = MODULES[model], {tensor["name"] for tensor in MODELS[model]["input"]}
    added = [tensor for tensor in module.INPUTS if tensor not in theirs]
    assert all(tensor.optional for tensor in added), added
    assert len(set(module.INPUTS)) == len(module.INPUTS)
    assert len(set(module.OUTPUTS)) == len(module.OUTPUTS)
