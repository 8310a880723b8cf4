"""Models are found by name, in folders and on a fake Hugging Face Hub."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from checkpoints import write_empty, write_tokenizer
from error_lines import error_line
from hub import hub

from tandem.tools.commands.command_line import make_parser
from tandem.tools.commands.options import chosen_deployment
from tandem.tools.errors import TandemError
from tandem.tools.models import fit
from tandem.tools.models import named as named_module
from tandem.tools.models.fit import count_parameters
from tandem.tools.models.named import HubModel, find_model

ID = "owner/small-model"


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint folder with the files of a Hub repository."""
    folder = tmp_path / "repository"
    write_empty(folder, write_tokenizer(folder), torch_dtype="bfloat16")
    write_safetensors(folder / "model.safetensors", {"a": [4, 8], "b": [8]})
    (folder / "README.md").write_text("not needed")
    return folder


@pytest.fixture
def served(tmp_path, checkpoint, monkeypatch):
    """A running fake Hub, which the library calls, with an empty cache."""
    from huggingface_hub import constants

    with hub(tmp_path) as running:
        running.add(ID, checkpoint)
        ask(running.url, monkeypatch)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield running


def ask(url, monkeypatch):
    """Redirect the library to a URL, because it reads HF_ENDPOINT only at import."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def write_safetensors(path, shapes):
    """Write bfloat16 tensors without data."""
    at, header = 0, {"__metadata__": {"format": "pt"}}
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(at))


def test_small_files_are_downloaded_before_the_weights(served, checkpoint):
    model = HubModel(ID).find()
    assert set(served.fetched) == {"config.json", "tokenizer.json", "tokenizer_config.json"}
    size = (checkpoint / "model.safetensors").stat().st_size
    assert model.num_parameters == size // 2
    folder = model.checkpoint()
    assert folder == model.folder
    assert served.fetched[3:] == ["model.safetensors"]
    assert count_parameters(folder) == size // 2


def test_downloaded_files_are_not_downloaded_again(served):
    folder = HubModel(ID).find().checkpoint()
    before = list(served.fetched)
    assert HubModel(ID).find().checkpoint() == folder
    assert served.fetched == before


def test_all_parts_of_the_weights_are_downloaded(served, checkpoint):
    (checkpoint / "model.safetensors").unlink()
    parts = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for part in parts:
        write_safetensors(checkpoint / part, {part: [8]})
    index = {"weight_map": {name: name for name in parts}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    write_safetensors(checkpoint / "consolidated.safetensors", {"twice": [8]})
    folder = HubModel(ID).find().checkpoint()
    assert sorted(path.name for path in folder.glob("*.safetensors")) == parts


def test_the_requested_revision_of_a_model_is_downloaded(served, tmp_path, checkpoint):
    other = tmp_path / "other"
    shutil.copytree(checkpoint, other)
    commit = served.add(ID, other, "v2")
    by_branch, by_commit = HubModel(ID, "v2").find(), HubModel(ID, commit).find()
    assert by_branch.checkpoint().name == commit
    assert by_commit.checkpoint() == by_branch.checkpoint()
    assert by_branch.name == f"{ID}@v2"


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (
            HubModel(ID, "v9"),
            "{0} has no revision 'v9'; {1}/{0}/commits/main lists its commits; or remove @v9",
        ),
        (
            HubModel("owner/absent"),
            "owner/absent is neither a local folder nor a model at {1}; check the name, or log",
        ),
        (HubModel("a/b--c"), "a/b--c is neither a local folder nor a valid model name"),
    ],
)
def test_an_unknown_model_name_is_reported_in_one_line(served, model, line):
    assert error_line(TandemError, model.find).startswith(line.format(ID, served.url))


def test_a_gated_model_error_says_where_to_request_access(served):
    served.gated.add(ID)
    assert error_line(TandemError, HubModel(ID).find) == (
        f"{ID} is gated; accept its terms at {served.url}/{ID}, then log in "
        "(hf auth login, or HF_TOKEN=...)"
    )


@pytest.mark.parametrize("status", [200, 403, 429, 503])
def test_a_failing_hub_is_reported_in_one_line(served, status):
    served.failing = status
    text = error_line(TandemError, HubModel(ID).find)
    assert text.startswith(
        f"there is no local folder {ID}, and it can't be downloaded from {served.url}: "
    )
    assert str(status) in text or status == 200


@pytest.mark.parametrize("broken", ["closed", "failing", "offline"])
def test_cached_models_load_without_the_hub(served, monkeypatch, broken):
    from huggingface_hub import constants

    folder = HubModel(ID).find().checkpoint()
    if broken == "closed":
        ask("http://127.0.0.1:9", monkeypatch)
    elif broken == "failing":
        served.failing = 503
    else:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert HubModel(ID).find().checkpoint() == folder
    assert "doesn't have all of it" in error_line(TandemError, HubModel("owner/other").find)


def test_a_repository_without_safetensors_is_rejected(served, checkpoint):
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")
    assert error_line(TandemError, HubModel(ID).find).startswith(
        f"{ID} has no model*.safetensors; choose"
    )


def test_a_full_disk_is_reported_before_weights_are_downloaded(served, monkeypatch):
    model = HubModel(ID).find()
    monkeypatch.setattr(named_module.shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    text = error_line(TandemError, model.checkpoint)
    assert text.startswith(f"{ID} needs 1 MB in ")
    assert text.endswith("free; free some space, or set HF_HOME to another folder")
    assert "model.safetensors" not in served.fetched


def test_a_hub_name_can_have_dots_and_a_revision_with_slashes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(HubModel, "find", lambda model: model)
    assert find_model("a/Qwen2.5-B@refs/pr/1") == HubModel("a/Qwen2.5-B", "refs/pr/1")


def test_an_existing_folder_takes_precedence_over_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    model = find_model("a/b")
    assert (model.name, model.checkpoint()) == ("b", Path("a/b"))


@pytest.mark.parametrize("text", ["absent", "./a/b", "/a/b", "a/b/c", "~/a"])
def test_the_error_for_a_path_says_that_the_folder_is_missing(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    said = error_line(TandemError, find_model, text)
    assert said.startswith("no folder ")
    assert said.endswith("named OWNER/NAME or OWNER/NAME@REVISION")


def test_a_file_that_is_not_a_model_is_rejected(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    assert error_line(TandemError, find_model, str(tmp_path / "notes.txt")) == (
        f"{tmp_path / 'notes.txt'} is neither a checkpoint's folder nor a GGUF file"
    )
    assert error_line(TandemError, find_model, "absent.gguf") == "no file absent.gguf"


def test_models_too_large_for_memory_are_rejected_before_the_download(served, monkeypatch):
    monkeypatch.setattr(fit, "free_gpu_memory", lambda _: None)
    monkeypatch.setattr(fit, "free_memory", lambda: 1000)
    options = make_parser("render").read(["--target", ID, "--output", "o"])
    assert "the models need about 0.5 GB of memory" in error_line(
        TandemError, chosen_deployment, options
    )
    assert "model.safetensors" not in served.fetched
    assert chosen_deployment(options, here=False).profile.name == ID
    assert "model.safetensors" in served.fetched


def test_commands_accept_a_model_name(served, checkpoint, tmp_path):
    """Runs the command as a process, because the library reads environment variables at import."""
    render = ["render", "--target", ID, "--draft", f"{ID}@main", "--output", "models"]
    done = subprocess.run(
        [sys.executable, "-m", "tandem", *render],
        env=os.environ | {"HF_ENDPOINT": served.url, "HF_HOME": str(tmp_path / "home")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0].startswith(f"downloading {ID} (1 MB) to {tmp_path}/home/hub")
    linked = tmp_path / "models" / "target" / "1" / "checkpoint" / "model.safetensors"
    assert linked.read_bytes() == (checkpoint / "model.safetensors").read_bytes()
