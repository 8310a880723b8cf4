"""Tensors have NVIDIA's names, types and shapes, and additional tensors are optional."""

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


def declared_as(ours):
    return f"TYPE_{ours.dtype}", list(ours.dims), ours.scalar, ours.ragged


@pytest.mark.parametrize("model", MODELS)
def test_inputs_are_declared_as_in_nvidias_models(model):
    declared = {str(tensor): tensor for tensor in MODULES[model].INPUTS}
    for theirs in MODELS[model]["input"]:
        name, ours = theirs["name"], declared[theirs["name"]]
        scalar, ragged = "reshape" in theirs, theirs.get("allow_ragged_batch", False)
        assert declared_as(ours) == (theirs["data_type"], theirs["dims"], scalar, ragged), name
        assert ours.optional or not theirs.get("optional", False), name


@pytest.mark.parametrize("model", MODELS)
def test_outputs_are_declared_as_in_nvidias_models(model):
    declared = {str(tensor): tensor for tensor in MODULES[model].OUTPUTS}
    for theirs in MODELS[model]["output"]:
        ours = declared[theirs["name"]]
        assert declared_as(ours)[:2] == (theirs["data_type"], theirs["dims"]), theirs["name"]


@pytest.mark.parametrize("model", MODELS)
def test_added_inputs_are_optional_and_names_are_unique(model):
    module, theirs = MODULES[model], {tensor["name"] for tensor in MODELS[model]["input"]}
    added = [tensor for tensor in module.INPUTS if tensor not in theirs]
    assert all(tensor.optional for tensor in added), added
    assert len(set(module.INPUTS)) == len(module.INPUTS)
    assert len(set(module.OUTPUTS)) == len(module.OUTPUTS)
