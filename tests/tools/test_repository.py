"""A rendered repository is valid and complete, and replaces only earlier repositories."""

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from checkpoints import write_empty, write_tokenizer
from google.protobuf import text_format
from paths import PROFILES, ROOT, TOKENIZER
from profile_files import load, profile
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tandem.bls.settings import ForwarderSettings, LoopSettings
from tandem.contract import model_parameters
from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment
from tandem.tools.triton import repository


def plan(folder):
    """Return a deployment with custom entry names and dummy weights."""
    size = write_tokenizer(folder / "target")
    write_empty(folder / "target", size, eos_token_id=[0, 7])
    write_empty(folder / "draft", size)
    content = profile(
        engines={
            "target": {"checkpoint": "target", "max_seq_len": 512},
            "draft": {"checkpoint": "draft"},
        },
        tokenizer={"folder": "target"},
        models={"target": "large", "draft": "small"},
        entries=[
            {"name": "streaming", "kind": "stream"},
            {"name": "tensorrt_llm_bls", "kind": "forward"},
            {"name": "control", "kind": "forward", "drafter": "none"},
        ],
        max_batch_size=4,
        timeouts={"startup": 1800},
        admission={"max_requests": 8, "max_queue": 0},
    )
    return load(folder, content)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A rendered repository, for tests that only read it."""
    folder = tmp_path_factory.mktemp("shared")
    repository.render(plan(folder), folder / "repository")
    return folder / "repository"


@pytest.fixture
def planned(tmp_path):
    return plan(tmp_path)


@pytest.fixture
def rendered(planned, tmp_path):
    output = tmp_path / "out" / "repository"
    repository.render(planned, output)
    return output


def config(folder):
    return text_format.Parse((folder / "config.pbtxt").read_text(), ModelConfig())


def settings(kind, folder):
    """Read a model's settings from its configuration in the same way as the model."""
    written = config(folder)
    given = {name: {"string_value": p.string_value} for name, p in written.parameters.items()}
    return model_parameters.decode(kind, {"name": written.name, "parameters": given})


def files(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_a_repository_contains_all_models_under_their_names(shared):
    assert {path.name for path in shared.iterdir() if path.is_dir()} == {
        *("preprocessing", "postprocessing", "large", "small"),
        *("streaming", "tensorrt_llm_bls", "control"),
    }


def test_loop_settings_are_taken_from_the_profile(planned, rendered):
    loop_settings = settings(LoopSettings, rendered / "streaming")
    assert loop_settings == planned.loop_settings()
    assert (loop_settings.target.model, loop_settings.draft.model) == ("large", "small")
    assert loop_settings.end_ids == (0, 7)
    assert loop_settings.target.max_seq_len == 512


def test_forwarding_entries_know_the_name_of_the_stream_model(shared):
    forwarder_settings = settings(ForwarderSettings, shared / "control")
    assert (forwarder_settings.stream_model, forwarder_settings.drafter) == ("streaming", "none")
    assert settings(ForwarderSettings, shared / "tensorrt_llm_bls").drafter is None


def test_no_draft_engine_is_rendered_without_a_draft_model(planned):
    alone = planned.profile.engines.model_copy(update={"draft": None})
    profile = planned.profile.model_copy(update={"engines": alone})
    names = {model.name for model in repository.models(deployment.check(profile))}
    assert "small" not in names


def test_version_folders_contain_everything_that_their_models_import(shared):
    assert (shared / "streaming" / "1" / "tandem" / "bls" / "triton" / "__init__.py").is_file()
    assert (shared / "large" / "1" / "checkpoint" / "config.json").is_file()
    assert (shared / "preprocessing" / "1" / "tokenizer" / "tokenizer.json").is_file()
    for folder in shared.glob("*/1"):
        assert (folder / "model.py").is_file()
        assert (folder / "tandem" / "contract" / "tensor.py").is_file()


def test_the_repositorys_readme_says_how_to_serve_and_call_it(planned, rendered, tmp_path):
    text = (rendered / "README.md").read_text()
    assert "\nsh serve.sh\n" in text
    assert (
        "needs\n`numpy`, `tokenizers`, `llguidance>=1.9,<2`, `torch`, `transformers>=5.3`;" in text
    )
    assert "Entries: `streaming` (streams)" in text
    for entry in planned.profile.entries:
        assert f"`{entry.name}` (" in text
    assert str(tmp_path) not in text


@pytest.fixture
def served(rendered, tmp_path):
    """A function that runs serve.sh, and returns the folder and arguments of `tritonserver`."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "tritonserver"
    script.write_text('#!/bin/sh\npwd; ls -A | wc -l; for word; do echo "$word"; done\n')
    script.chmod(0o755)
    moved = tmp_path / "anywhere"
    rendered.rename(moved)

    def run(*options, cwd=moved):
        done = subprocess.run(
            ["sh", os.path.relpath(moved / "serve.sh", cwd), *options],
            cwd=cwd,
            env=os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=True,
        )
        folder, num_files, *words = done.stdout.splitlines()
        assert int(num_files) == 0  # because models import from the working directory first
        return Path(folder), words

    return run


def test_serve_sh_works_in_any_folder(planned, served, tmp_path):
    _, words = served()
    assert words[0] == f"--model-repository={tmp_path / 'anywhere'}"
    assert f"--backend-config=python,thread-pool-size={planned.thread_pool_size}" in words
    assert "--backend-config=python,stub-timeout-seconds=1800" in words


def test_serve_sh_passes_options_to_triton(served):
    _, words = served("--http-port=9000", "--log-format=a b")
    assert {"--http-port=9000", "--log-format=a b"} <= set(words)


def test_a_repository_in_a_path_with_a_space_is_rejected(rendered, tmp_path):
    """Triton starts Python models by a shell command, so the models would never become ready."""
    rendered.rename(tmp_path / "any where")
    script = tmp_path / "any where" / "serve.sh"
    done = subprocess.run(["sh", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Triton can't serve a path with a space: {script.parent}\n"


def test_serve_sh_stays_in_an_empty_working_directory(served, tmp_path):
    """A container might have no writable folder."""
    (tmp_path / "empty").mkdir()
    assert served(cwd=tmp_path / "empty")[0] == tmp_path / "empty"


def test_rendered_files_contain_no_local_paths(rendered, tmp_path):
    for path in (*rendered.glob("*/config.pbtxt"), rendered / "serve.sh"):
        assert str(tmp_path) not in path.read_text()
        assert str(ROOT) not in path.read_text()


def test_chat_templates_are_rendered_next_to_the_tokenizer(planned, tmp_path):
    (tmp_path / "target" / "chat_template.jinja").write_text("{{ messages }}")
    more = tmp_path / "target" / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("{{ tools }}")
    repository.render(planned, tmp_path / "out")
    tokenizer = tmp_path / "out" / "preprocessing" / "1" / "tokenizer"
    assert (tokenizer / "chat_template.jinja").read_text() == "{{ messages }}"
    assert (tokenizer / more.name / "tool_use.jinja").read_text() == "{{ tools }}"


def test_rerendering_gives_the_same_files(planned, rendered):
    before = files(rendered)
    repository.render(planned, rendered)
    assert files(rendered) == before
    assert list(rendered.parent.iterdir()) == [rendered]


def test_rerendering_removes_models_that_are_not_in_the_profile(planned, rendered):
    (rendered / "stale").mkdir()
    repository.render(planned, rendered)
    assert not (rendered / "stale").exists()


def test_other_folders_are_not_overwritten(planned, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(TandemError, match="exists and isn't from tandem render"):
        repository.render(planned, tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_a_failed_render_keeps_the_old_repository(planned, rendered, monkeypatch):
    before = files(rendered)
    monkeypatch.setattr(repository, "PACKAGE", rendered)
    with pytest.raises(TandemError, match=r"can't write .*: No such file"):
        repository.render(planned, rendered)
    assert files(rendered) == before


def test_the_error_names_an_output_folder_that_is_not_writable(planned, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TandemError, match=r"can't write .*file: "):
        repository.render(planned, tmp_path / "file" / "repository")


@pytest.mark.parametrize("link", [False, True])
def test_the_error_names_a_file_of_the_checkpoint_that_cannot_be_read(planned, tmp_path, link):
    weights = tmp_path / "target" / "model.safetensors"
    weights.unlink()
    weights.symlink_to(tmp_path / "gone")
    with pytest.raises(TandemError) as rejected:
        repository.render(planned, tmp_path / "out", link=link)
    assert str(rejected.value) == f"can't read {weights}: it is missing, a folder or not readable"


@pytest.mark.parametrize("existing", [True, False])
def test_a_link_to_the_output_folder_is_kept(planned, tmp_path, existing):
    link, folder = tmp_path / "link", tmp_path / "folder"
    link.symlink_to("folder")
    if existing:
        folder.mkdir()
    repository.render(planned, link)
    assert link.is_symlink()
    assert (folder / "README.md").is_file()


@pytest.mark.parametrize("name", ["model.py", "loop.py"])
def test_the_error_for_a_full_disk_names_the_file_that_was_not_written(
    planned, tmp_path, monkeypatch, name
):
    copy = shutil.copyfile

    def full(source, target, **options):
        if Path(source).name == name:
            raise OSError(errno.ENOSPC, "No space left on device", str(source), None, str(target))
        return copy(source, target, **options)

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(
        TandemError, match=f"can't write {tmp_path}/.*/{name}: No space left on device; choose"
    ):
        repository.render(planned, tmp_path / "repository")


def test_rendering_with_links_copies_no_weights_and_no_packages(planned, tmp_path):
    repository.render(planned, tmp_path / "linked", link=True)
    version = tmp_path / "linked" / "large" / "1"
    weights = version / "checkpoint" / "model.safetensors"
    assert weights.resolve() == tmp_path / "target" / "model.safetensors"
    assert (version / "tandem" / "engines").resolve() == ROOT / "tandem" / "engines"


def test_pickled_weights_are_not_used(planned, tmp_path):
    (tmp_path / "target" / "pytorch_model.bin").touch()
    models = {m.name: m for m in repository.models(deployment.check(planned.profile))}
    taken = models["large"].files["checkpoint"]
    assert [p.name for p in taken if p.suffix != ".json"] == ["model.safetensors"]


@pytest.mark.skipif(not (TOKENIZER.parent / "target").is_dir(), reason="the demo pair is not there")
def test_the_committed_repository_is_the_rendered_embedded_profile(tmp_path):
    """If this test fails, run `make configs`."""
    repository.render(deployment.load(PROFILES / "embedded.yaml"), tmp_path / "fresh")
    committed = ROOT / "model_repository"
    names = sorted(path.name for path in committed.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "fresh").iterdir() if path.is_dir())
    for name in names:
        fresh = tmp_path / "fresh" / name
        assert config(committed / name) == config(fresh)
        assert (committed / name / "config.pbtxt").read_text() == (
            fresh / "config.pbtxt"
        ).read_text()
        assert (committed / name / "1" / "model.py").read_text() == (
            fresh / "1" / "model.py"
        ).read_text()
