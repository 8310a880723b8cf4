"""The `local-completions` model of lm-evaluation-harness works, with small custom tasks."""

import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from .conftest import API_KEY, ROOT

TASKS = Path(__file__).parent / "tasks"
STOP, LENGTH = "\n\n", 24  # the same as in complete_code.yaml
BATCH = 3


class Evaluated(NamedTuple):
    """The files of lm_eval, and the gateway's counters for lm_eval's requests.

    tokenizer: whether the gateway ("remote") or lm_eval ("local") tokenizes.
    """

    tokenizer: str
    results: dict[str, dict[str, float]]
    folder: Path
    counted: Counter[str]

    def samples(self, task):
        """Return the requests and answers of each document."""
        (file,) = self.folder.rglob(f"samples_{task}_*.jsonl")
        return [json.loads(line) for line in file.read_text().splitlines()]

    def requests(self, path):
        """Return the number of requests to a path, by status."""
        begin = f'tandem_gateway_requests_total{{endpoint="{path}",status='
        return {
            k.removeprefix(begin)[1:4]: n for k, n in self.counted.items() if k.startswith(begin)
        }


@pytest.fixture(scope="module")
def theirs(pair):
    """The tokenizer and model of the target, loaded with transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(pair / "target", dtype=torch.float32).eval()
    return AutoTokenizer.from_pretrained(pair / "target"), model


def continuation(theirs, prompt):
    """Return the continuation by transformers' `generate`, up to the stop string."""
    tokenizer, model = theirs
    inputs = tokenizer(prompt, return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=LENGTH, do_sample=False)
    text = tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return text.partition(STOP)[0]


def likelihood(theirs, context, text):
    """Return the log-likelihood of a text after a context, and whether it is the greedy output.

    As in lm_eval, trailing spaces of the context belong to the text.
    """
    import torch

    tokenizer, model = theirs
    ids = tokenizer(context + text, return_tensors="pt")["input_ids"]
    begin = len(tokenizer(context.rstrip())["input_ids"])
    with torch.no_grad():
        log_probs = model(ids).logits[0, begin - 1 : -1].log_softmax(-1)
    log_likelihood = log_probs.gather(1, ids[0, begin:, None]).sum().item()
    return log_likelihood, bool((log_probs.argmax(-1) == ids[0, begin:]).all())


@pytest.fixture(scope="module")
def data(theirs, tmp_path_factory):
    """A folder with the data of both tasks. The last expected completion is wrong on purpose."""
    lines = (ROOT / "tandem" / "demo" / "prompts.jsonl").read_text().splitlines()[:6]
    prompts = [json.loads(line)["prompt"] for line in lines]
    answers = [continuation(theirs, prompt) for prompt in prompts]
    folder = tmp_path_factory.mktemp("data")
    write(
        folder / "complete_code.jsonl",
        [
            {"prompt": prompt, "answer": answer}
            for prompt, answer in zip(prompts, [*answers[:-1], "nothing"], strict=True)
        ],
    )
    write(
        folder / "choose_code.jsonl",
        [
            {"prompt": prompt, "choices": [answers[number - 1], answers[number]], "answer": 1}
            for number, prompt in enumerate(prompts)
        ],
    )
    return folder


def write(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module", params=["remote", "local"])
def evaluated(request, run, gateway, pair, data):
    """The results of both tasks.

    By default, the gateway tokenizes and lm_eval sends batches sequentially. With a local
    tokenizer, lm_eval sends batches concurrently.
    """
    output, before = data / request.param, gateway.counters()
    local = [f"tokenizer={pair / 'target'}", "tokenizer_backend=huggingface", "num_concurrent=2"]
    run(
        "lm_eval",
        "run",
        *("--model", "local-completions"),
        "--model_args",
        f"base_url={gateway.url}/v1/completions",
        "model=bls_stream",
        f"auth_token={API_KEY}",
        *(local if request.param == "local" else []),
        *("--tasks", "complete_code", "choose_code"),
        *("--include_path", TASKS),
        *("--batch_size", BATCH),
        *("--output_path", output),
        "--log_samples",
        folder=data,
    )
    (results,) = output.rglob("results_*.json")
    counted = gateway.counters() - before
    return Evaluated(request.param, json.loads(results.read_text())["results"], output, counted)


def test_generated_output_equals_transformers(evaluated):
    assert evaluated.results["complete_code"]["exact_match,none"] == pytest.approx(5 / 6)


def test_likelihoods_equal_transformers(evaluated, theirs):
    assert evaluated.results["choose_code"]["acc,none"] == 1
    greedy = []
    for sample in evaluated.samples("choose_code"):
        asked = sample["arguments"].values()
        for (context, text), [[log_likelihood, is_greedy]] in zip(
            map(dict.values, asked), sample["resps"], strict=True
        ):
            expected, expected_greedy = likelihood(theirs, context, text)
            assert float(log_likelihood) == pytest.approx(expected, abs=1e-3)
            assert is_greedy == str(expected_greedy)
            greedy.append(expected_greedy)
    assert len(greedy) == 12
    assert len(set(greedy)) == 2


def test_each_batch_is_one_request_and_no_request_is_rejected(evaluated):
    """Otherwise, lm_eval would retry rejected requests."""
    assert evaluated.requests("/v1/completions") == {"200": (6 + 12) / BATCH}
    tokenized = evaluated.requests("/tokenize")
    assert set(tokenized) == ({"200"} if evaluated.tokenizer == "remote" else set())
