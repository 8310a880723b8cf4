"""The loop works with a repository for `tensorrtllm`, served by a stub of NVIDIA's backend."""

import shutil
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from checkpoints import write_empty, write_tokenizer
from crowd import ask
from entries import ask_one, rejection
from live_triton import KilledServer, alive, eventually, leftovers
from scale import first_of

from tandem.tools.profiles import deployment
from tandem.tools.triton import repository, server
from tandem.tools.triton.install import find_triton
from tandem.tools.triton.server import TritonServer

STUB = Path(__file__).parents[1] / "support" / "tensorrtllm_stub" / "model.py"
PROMPT = "def add(a, b):"


def write_profile(folder, *, excludes_input=True, logits_dtype="float32", tp_size=1, draft=True):
    size = write_tokenizer(folder / "checkpoint")
    write_empty(folder / "checkpoint", size)
    write_tokenizer(folder / "padded")
    write_empty(folder / "padded", size + 12)
    run = {"max_tokens_in_paged_kv_cache": 32768, "exclude_input_in_output": excludes_input}
    build = {
        "max_batch_size": 8,
        "max_seq_len": 512,
        "gather_generation_logits": True,
        "logits_dtype": logits_dtype,
    }
    engine = {
        "kind": "tensorrtllm",
        "checkpoint": "checkpoint",
        "tp_size": tp_size,
        "device_ids": list(range(tp_size)),
        "build": build,
        "run": run,
    }
    profile = {
        "name": "stub",
        "engines": {
            "target": {**engine, "engine_dir": "engines/target"},
            "draft": {**engine, "engine_dir": "engines/draft", "checkpoint": "padded"},
        },
        "decoding": {"draft_len": 4},
        "timeouts": {"drafter_pause": 0.1},
    }
    if not draft:
        del profile["engines"]["draft"]
    (folder / "profile.yaml").write_text(yaml.safe_dump(profile))
    return folder / "profile.yaml"


def add_adapters(path, **values):
    """Add LoRA adapters to a profile. values: sum of the weights of each adapter, by name."""
    profile = yaml.safe_load(path.read_text())
    target = profile["engines"]["target"]
    target["build"] = target["build"] | {"lora_plugin": "auto"}
    target["lora_adapters"] = {name: name for name in values}
    path.write_text(yaml.safe_dump(profile))
    for name, value in values.items():
        (path.parent / name).mkdir()
        np.save(path.parent / name / "model.lora_weights.npy", np.float16([[[value]]]))
        np.save(path.parent / name / "model.lora_config.npy", np.int32([[[1, 0, 1]]]))


@contextmanager
def stub_backend(folder):
    """Add the stub to Triton's backends under the name `tensorrtllm`."""
    install = find_triton()
    backends = folder / "backends"
    shutil.copytree(install.backends, backends, symlinks=True)
    (backends / "tensorrtllm").mkdir()
    shutil.copy(STUB, backends / "tensorrtllm")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(server, "find_triton", lambda: replace(install, backends=backends))
        yield


@pytest.fixture(
    scope="module",
    params=first_of((True, "float32"), (False, "float16")),
    ids=["new-tokens-fp32", "whole-text-fp16"],
)
def stubbed(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stubbed")
    excludes_input, logits_dtype = request.param
    profile = write_profile(folder, excludes_input=excludes_input, logits_dtype=logits_dtype)
    add_adapters(profile, sql=7, legal=20)
    planned = deployment.load(profile)
    repository.render(planned, folder / "repository")
    with (
        stub_backend(folder),
        KilledServer(
            folder / "repository",
            thread_pool_size=planned.thread_pool_size,
            profile=planned.profile,
        ) as running,
    ):
        yield running


@pytest.fixture
def control(stubbed):
    return ask(stubbed, PROMPT, model="ensemble", max_tokens=40).said


@pytest.mark.parametrize("use_draft_logits", [False, True], ids=["ids", "logits"])
def test_drafts_reduce_rounds_without_changing_the_output(stubbed, control, use_draft_logits):
    options = {"drafter": "draft_model", "use_draft_logits": use_draft_logits}
    answer = ask(stubbed, PROMPT, max_tokens=40, **options)
    assert answer.said == control
    assert answer.draft_tokens
    assert len(answer.ids) == 40
    assert answer.rounds < 25


def test_adapter_weights_are_sent_if_the_engine_lacks_them(stubbed, control):
    said = {"": control}
    for name in ("sql", "legal", "sql", ""):
        options = {"max_tokens": 40, "lora_name": name}
        drafted = ask(stubbed, PROMPT, drafter="draft_model", **options)
        assert not drafted.error
        assert drafted.said == ask(stubbed, PROMPT, model="ensemble", **options).said
        assert said.setdefault(name, drafted.said) == drafted.said
    assert len({text for _, text, _ in said.values()}) == 3


@pytest.fixture(scope="module")
def plugged(tmp_path_factory):
    """A server whose target applies adapters, but whose profile has none."""
    folder = tmp_path_factory.mktemp("plugged")
    profile = write_profile(folder)
    add_adapters(profile)
    planned = deployment.load(profile)
    repository.render(planned, folder / "repository")
    threads = planned.thread_pool_size
    with (
        stub_backend(folder),
        TritonServer(folder / "repository", thread_pool_size=threads) as running,
    ):
        yield running


def adapter(task_id, shift):
    """The inputs of an adapter that shifts the stub's tokens by `shift`."""
    return {"lora_task_id": task_id, "lora_weights": [[shift]], "lora_config": [[1, 0, 1]]}


@pytest.mark.parametrize("model", ["bls", "ensemble"])
def test_clients_send_an_adapter_once_and_then_its_id(plugged, model):
    task_id = 2**63 + len(model)
    base = ask_one(plugged, "ensemble", PROMPT, max_tokens=40, end_id=-1).ids
    options = {"max_tokens": 40, "end_id": -1}
    missing = rejection(plugged, model, PROMPT, **options, lora_task_id=task_id)
    assert f"LoRA task {task_id} not found in cache. Please send LoRA weights" in missing
    sent = ask_one(plugged, model, PROMPT, **options, **adapter(task_id, 7)).ids
    named = ask_one(plugged, model, PROMPT, **options, lora_task_id=task_id)
    assert named.ids == sent != base
    assert (named.draft_tokens > 0) == (model != "ensemble")
    assert ask_one(plugged, model, PROMPT, **options).ids == base


SAMPLED = {"temperature": 0.7, "top_k": 5, "repetition_penalty": 1.1, "bad_words": ["zzz"]}


@pytest.mark.parametrize("use_draft_logits", [False, True], ids=["ids", "logits"])
@pytest.mark.parametrize("drafter", ["draft_model", "prompt_lookup", "hybrid"])
def test_sampled_drafts_are_sent_with_their_probabilities(
    stubbed, control, drafter, use_draft_logits
):
    """The stub rejects calls that would change the distribution. The draft has more padding."""
    options = {} if drafter == "prompt_lookup" else {"use_draft_logits": use_draft_logits}
    answer = ask(stubbed, PROMPT, max_tokens=40, drafter=drafter, **SAMPLED, **options)
    assert not answer.error
    assert answer.said == control
    assert answer.draft_tokens or drafter == "prompt_lookup"


def test_top_p_disables_drafting(stubbed, control):
    answer = ask(stubbed, PROMPT, max_tokens=40, top_p=0.9)
    assert (answer.error, answer.said, answer.draft_tokens) == ("", control, 0)


def test_an_end_id_ends_the_answer(stubbed, control):
    ids, *_ = control
    answer = ask(stubbed, PROMPT, max_tokens=40, end_id=ids[9])
    assert answer.ids == ids[: ids.index(ids[9])]


def test_drafts_resume_after_the_engine_recovers(stubbed, control):
    """A strict engine must accept the call that checks whether it has recovered."""
    fault = stubbed.repository / "draft" / "fault"
    fault.touch()
    answer = ask(stubbed, PROMPT, max_tokens=40)
    fault.unlink()
    assert answer.said == control
    assert eventually(lambda: ask(stubbed, PROMPT, max_tokens=40).draft_tokens)


@contextmanager
def launched(folder, **settings):
    """Run a server with two GPUs per engine by its launch command, and check for leftovers."""
    planned = deployment.load(write_profile(folder, tp_size=2, **settings))
    repository.render(planned, folder / "repository")
    threads = planned.thread_pool_size
    with (
        stub_backend(folder),
        TritonServer(
            folder / "repository", thread_pool_size=threads, profile=planned.profile
        ) as running,
    ):
        yield running
        processes = running.processes
    assert not any(alive(process) for process in processes)
    assert leftovers(running.shm_prefix) == []


@pytest.mark.heavy
def test_a_launch_with_one_process_per_gpu_serves_requests(tmp_path):
    """A real mpirun runs the command. Rank 1 loads only the engine, and ends with rank 0."""
    with launched(tmp_path, draft=False) as running:
        alone = ask(running, PROMPT, model="ensemble", max_tokens=40)
        answer = ask(running, PROMPT, max_tokens=40, prediction_ids=alone.ids)
        assert answer.draft_tokens
        assert answer.said == alone.said
        regions = {n.removeprefix(running.shm_prefix)[:2] for n in leftovers(running.shm_prefix)}
        assert regions == {"0-", "1-"}


@pytest.mark.heavy
def test_an_orchestrator_can_serve_two_engines(tmp_path):
    """A real mpirun runs the command, but a stub replaces the backend that spawns workers."""
    with launched(tmp_path) as running:
        answer = ask(running, PROMPT, max_tokens=40, drafter="draft_model")
        assert answer.draft_tokens
        assert answer.said == ask(running, PROMPT, model="ensemble", max_tokens=40).said
        said = [Path(f"/proc/{pid}/environ").read_text().split("\0") for pid in running.processes]
        assert any("TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES=1" in variables for variables in said)
