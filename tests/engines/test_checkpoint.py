"""A checkpoint that can't be loaded completely is rejected in one line that names the problem."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.engines.errors import LoadError
from tandem.engines.torch import checkpoint
from tandem.engines.torch.engine import TorchEngine
from tandem.engines.torch.settings import TorchSettings

LOST = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def folder(checkpoints, tmp_path):
    """A copy of a small Llama checkpoint."""
    return shutil.copytree(checkpoints["llama"], tmp_path / "llama")


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_weights(folder, change):
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, {"format": "pt"})


def rejection(folder, **settings):
    """Return the one-line error of a checkpoint, without the folder's path."""
    with pytest.raises(LoadError) as rejected:
        TorchEngine(
            TorchSettings(str(folder), **{"max_seq_len": 64, "kv_cache_tokens": 256} | settings),
            folder,
        )
    text = str(rejected.value)
    assert "\n" not in text
    return text.replace(str(folder), "FOLDER")


def test_a_checkpoint_that_lacks_a_weight_is_rejected(folder):
    """Transformers would fill the weight with random numbers."""
    change_weights(folder, lambda weights: {n: w for n, w in weights.items() if n != LOST})
    assert rejection(folder) == (
        f"the checkpoint lacks weights that its config.json requires: {LOST}; download it again"
    )


@pytest.fixture
def pickled(folder):
    """A checkpoint whose only weights are the pickle file ../pytorch_model.bin."""
    weights = folder / "model.safetensors"
    torch.save(load_file(weights), folder.parent / "pytorch_model.bin")
    weights.unlink()
    return folder


@pytest.mark.parametrize("name", ["pytorch_model.bin", "adapter_model.bin", "model.pt", "x.pth"])
def test_pickled_weights_are_rejected_with_a_way_to_convert_them(pickled, name):
    (pickled.parent / "pytorch_model.bin").rename(pickled / name)
    line = f"FOLDER has no weights (*.safetensors); {name} is a pickle file, which can run code: "
    assert rejection(pickled).startswith(line)
    assert rejection(pickled).endswith(".save_pretrained(...)")


@pytest.mark.parametrize("index", ["model.safetensors.index.json", "x.safetensors.index.json"])
@pytest.mark.parametrize("name", ["../pytorch_model.bin", "pytorch_model.bin", "/etc/passwd"])
def test_an_index_cannot_name_pickles_or_files_elsewhere(pickled, index, name):
    (pickled / "pytorch_model.bin").symlink_to(pickled.parent / "pytorch_model.bin")
    (pickled / index).write_text(json.dumps({"metadata": {}, "weight_map": {LOST: name}}))
    change_config(pickled, transformers_weights=index)
    assert rejection(pickled) == f"FOLDER names '{name}', which isn't a safetensors file in it"


@pytest.mark.parametrize("name", ["adapter_model.bin", "../other/model.safetensors"])
def test_a_configuration_cannot_name_pickles_or_files_elsewhere(folder, name):
    torch.save(load_file(folder / "model.safetensors"), folder / "adapter_model.bin")
    change_config(folder, transformers_weights=name)
    assert rejection(folder) == f"FOLDER names '{name}', which isn't a safetensors file in it"


def test_a_config_with_more_layers_than_the_weights_is_rejected(folder):
    change_config(folder, num_hidden_layers=4)
    assert "requires: model.layers.3.input_layernorm.weight and 8 more" in rejection(folder)


def test_weights_of_another_shape_are_rejected(folder):
    change_config(folder, vocab_size=200)
    assert rejection(folder) == (
        "the checkpoint's config.json requires lm_head.weight of shape [200, 48]; got [131, 48]; "
        "download it again"
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-100],
        lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
        lambda _: b"",
    ],
)
def test_an_incomplete_file_is_named(folder, damage):
    path = folder / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    assert rejection(folder).startswith("can't read FOLDER/model.safetensors: ")
    assert rejection(folder).endswith("; download it again, or run git lfs pull in a git clone")


def test_a_file_that_cannot_be_read_is_named_without_its_link(folder):
    """`tandem up` links to the user's files from a temporary folder."""
    path = folder / "model.safetensors"
    path.unlink()
    path.symlink_to(folder / "absent")
    assert rejection(folder).startswith("can't read FOLDER/absent: No such file")


def test_a_checkpoint_larger_than_the_memory_is_rejected(folder, monkeypatch):
    def too_large(*_):
        raise LoadError("weights exceed the memory")

    monkeypatch.setattr(checkpoint, "require_memory", too_large)
    assert rejection(folder) == "weights exceed the memory"


def test_weights_that_are_not_numbers_are_rejected(folder):
    change_weights(folder, lambda weights: weights | {LOST: weights[LOST] * torch.nan})
    assert rejection(folder) == (
        "the checkpoint's logits aren't finite in float32; check its weights, or use another dtype"
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"max_position_embeddings": None}, "'max_position_embeddings': TypeError: Field"),
        ({"dtype": "float7"}, "AttributeError: module 'torch' has no attribute 'float7'"),
        ({"rope_parameters": {"rope_type": "x", "rope_theta": 1e4}}, "KeyError: 'x'"),
    ],
)
def test_the_reason_why_transformers_rejects_a_config_is_reported(folder, change, reason):
    change_config(folder, **change)
    text = rejection(folder)
    assert text.startswith("can't load the checkpoint: ")
    assert reason in text


def test_an_error_without_a_message_is_reported_by_its_type_once(folder, monkeypatch):
    def out_of_memory(*_):
        raise MemoryError

    monkeypatch.setattr(checkpoint, "require_memory", out_of_memory)
    assert rejection(folder) == "can't load the checkpoint: MemoryError"


def test_layers_of_an_unsupported_type_are_rejected(folder):
    """Chunks longer than the check of the logits would change only longer contexts."""
    change_config(folder, layer_types=["full_attention", "chunked_attention", "full_attention"])
    assert rejection(folder) == (
        "architecture 'llama' isn't supported: it has layers of type 'chunked_attention'"
    )


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_context_shorter_than_the_check_at_load_works(make_harness, name):
    engine = make_harness(name, max_seq_len=8, max_draft_len=2)
    assert len(engine.tokens([3, 4, 5], 5)) == 5
