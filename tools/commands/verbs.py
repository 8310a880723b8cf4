"""The help of every verb of the `tandem` command. Its module has the same name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Verb(NamedTuple):
    """summary: its line in the overview. description, examples: of its own help."""

    summary: str
    description: str
    examples: tuple[str, ...]


GROUPS: Mapping[str, Mapping[str, Verb]] = {
    "serve and ask": {
        "up": Verb(
            "Start Triton and serve until Ctrl-C.",
            "Start Triton and serve until Ctrl-C. The models are those of a profile, or named by "
            "--target and --draft, which share a tokenizer: folders, models of the Hugging Face "
            "Hub, or GGUF files. Without --draft, prompt lookup drafts.",
            (
                "tandem up",
                "tandem up --profile emulated-70b-1b --grpc-port 9001",
                "tandem up --target path/to/target --draft path/to/draft",
                "tandem up --target Qwen/Qwen2.5-1.5B-Instruct --draft Qwen/Qwen2.5-0.5B-Instruct",
            ),
        ),
        "generate": Verb(
            "Stream the answer to a prompt from a running server.",
            "Stream the answer to a prompt from a running server. On a terminal, accepted draft "
            "tokens are green. The closing line goes to standard error.",
            (
                'tandem generate "def main():" --max-tokens 64',
                'tandem generate "def main():" --drafter none --url 127.0.0.1:9001',
                "tandem generate - --temperature 0.7 --seed 1 --explain < prompt.txt",
            ),
        ),
        "gateway": Verb(
            "Serve OpenAI's API and a page in front of a running server.",
            "Serve OpenAI's API, and a page that shows which tokens were drafted, in front of a "
            "Triton that serves Tandem's models. `tandem up` starts one with its server.",
            (
                "tandem gateway --tokenizer path/to/target",
                "tandem gateway --url triton.example:8001 --tokenizer path/to/target --port 80",
            ),
        ),
        "run": Verb(
            "Serve engines, answer prompts and stop, like NVIDIA's run.py.",
            "Serve engines, answer prompts in order and stop. The options are those of NVIDIA's "
            "run.py, spelt with dashes or underscores.",
            ("tandem run --engine-dir path/to/target --input-text 'Once upon a time'",),
        ),
    },
    "measure": {
        "demo": Verb(
            "Answer prompts with and without speculation, side by side.",
            "Serve the demo's models, answer its prompts with and without speculation, compare "
            "texts and times, and stop. The demo fails if any text differs.",
            ("tandem demo",),
        ),
        "bench": Verb(
            "Measure speedup and latency on a live server.",
            "Measure the speedup of drafters and draft lengths on a live server. Drafter 'none' "
            "runs in turns with them, as the baseline.",
            (
                "tandem bench",
                "tandem bench --url 127.0.0.1:8001 --num-draft-tokens 2,4,8,auto",
                "tandem bench --profile emulated-70b-1b --concurrency 1,16 --json results.json",
            ),
        ),
        "summarize": Verb(
            "Score answers with and without speculation, like summarize.py.",
            "Answer a dataset with and without speculation and score the texts by ROUGE. The "
            "options are those of NVIDIA's summarize.py.",
            (
                "tandem summarize --limit 4",
                "tandem summarize --url 127.0.0.1:8001 --drafter prompt_lookup --check-accuracy",
            ),
        ),
        "perf": Verb(
            "Put load on a server with Triton's perf_analyzer.",
            "Put load on the entries of a server with Triton's own perf_analyzer. The exit "
            "status is that of perf_analyzer.",
            (
                "tandem perf --url 127.0.0.1:8001 --concurrency 1:16:5",
                "tandem perf --url 127.0.0.1:8001 --folder results -- --percentile=99",
            ),
        ),
    },
    "deploy": {
        "doctor": Verb(
            "Check what this machine needs to serve.",
            "Check what this machine needs to serve, and say how to get what is missing. The exit "
            "status is 1 if something required is missing.",
            ("tandem doctor",),
        ),
        "render": Verb(
            "Write a model repository for another Triton server.",
            "Write the model repository of a profile, or of checkpoints. A Triton server with the "
            "engines' packages serves it; Tandem doesn't have to be installed there.",
            (
                "tandem render --output my-repository",
                "tandem render --target path/to/target --output my-repository",
            ),
        ),
        "build": Verb(
            "Print the script that builds the TensorRT engines of a profile.",
            "Print the script that builds the TensorRT engines of a profile. The command fails if "
            "its settings don't fit together or the engines don't fit into the GPUs.",
            (
                "tandem build --profile llama-3.1-70b",
                "tandem build --profile llama-3.1-70b > build.sh && sh build.sh",
            ),
        ),
    },
}
VERBS: Mapping[str, Verb] = {
    name: verb for verbs in GROUPS.values() for name, verb in verbs.items()
}
DESCRIPTION = """\
Tandem makes a language model answer faster on Triton Inference Server, and changes no text: a
small draft model proposes the next tokens, the large target verifies them in one step."""
FIRST_STEPS = {
    "tandem doctor": "check this machine",
    "tandem demo": "see the speedup on the models of the demo",
    "tandem up": "serve, in one terminal",
    'tandem generate "def main():"': "ask, in another",
}


def overview() -> str:
    verbs = [
        f"{group}:\n" + "\n".join(f"  {name:<11}{verb.summary}" for name, verb in verbs.items())
        for group, verbs in GROUPS.items()
    ]
    steps = [f"  {command:<31}# {purpose}" for command, purpose in FIRST_STEPS.items()]
    return "\n\n".join(
        (
            "usage: tandem COMMAND [OPTION...]\n       tandem --version",
            DESCRIPTION,
            "first steps:\n" + "\n".join(steps),
            *verbs,
            "`tandem COMMAND --help` shows the options and examples of a command.",
        )
    )
