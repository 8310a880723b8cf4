"""The help of every `tandem` command. Each command's module has the same name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class CommandHelp(NamedTuple):
    """Help of one command.

    summary: the line in `tandem --help`. description, examples: shown by `tandem COMMAND --help`.
    """

    summary: str
    description: str
    examples: tuple[str, ...]


GROUPS: Mapping[str, Mapping[str, CommandHelp]] = {
    "serve and generate": {
        "up": CommandHelp(
            "Start Triton and serve until Ctrl-C.",
            "Start Triton and serve until Ctrl-C. A profile names the models, or --target and "
            "--draft do: folders, Hugging Face Hub models or GGUF files with one tokenizer. "
            "Without --draft, Tandem uses prompt lookup.",
            (
                "tandem up",
                "tandem up --profile emulated-70b-1b --grpc-port 9001",
                "tandem up --target path/to/target --draft path/to/draft",
                "tandem up --target Qwen/Qwen2.5-1.5B-Instruct --draft Qwen/Qwen2.5-0.5B-Instruct",
            ),
        ),
        "generate": CommandHelp(
            "Stream the output for a prompt from a running server.",
            "Stream the output for a prompt from a running server. On a terminal, accepted draft "
            "tokens are green. A summary goes to standard error.",
            (
                'tandem generate "def main():" --max-tokens 64',
                'tandem generate "def main():" --drafter none --url 127.0.0.1:9001',
                "tandem generate - --temperature 0.7 --seed 1 --explain < prompt.txt",
            ),
        ),
        "gateway": CommandHelp(
            "Serve the OpenAI API and a web page for a running server.",
            "Serve the OpenAI API, and a web page that shows which tokens were drafted, for a "
            "Triton server with Tandem's models. `tandem up` already includes a gateway.",
            (
                "tandem gateway --tokenizer path/to/target",
                "tandem gateway --url triton.example:8001 --tokenizer path/to/target --port 80",
            ),
        ),
        "run": CommandHelp(
            "Serve engines, run prompts and stop, like NVIDIA's run.py.",
            "Serve engines, run prompts in order and stop. The options match NVIDIA's run.py, "
            "spelled with dashes or underscores.",
            ("tandem run --engine-dir path/to/target --input-text 'Once upon a time'",),
        ),
    },
    "measure": {
        "bench": CommandHelp(
            "Measure speedup and latency on a live server.",
            "Measure the speedup of drafters and draft lengths on a live server. Requests "
            "alternate with drafter 'none', the baseline.",
            (
                "tandem bench",
                "tandem bench --url 127.0.0.1:8001 --num-draft-tokens 2,4,8,auto",
                "tandem bench --profile emulated-70b-1b --concurrency 1,16 --json results.json",
            ),
        ),
        "summarize": CommandHelp(
            "Score outputs with and without speculation, like summarize.py.",
            "Run a dataset with and without speculation, and score the outputs by ROUGE. The "
            "options match NVIDIA's summarize.py.",
            (
                "tandem summarize --limit 4",
                "tandem summarize --url 127.0.0.1:8001 --drafter prompt_lookup --check-accuracy",
            ),
        ),
        "perf": CommandHelp(
            "Put load on a server with Triton's perf_analyzer.",
            "Put load on the entries of a server with Triton's perf_analyzer, whose exit status "
            "is returned.",
            (
                "tandem perf --url 127.0.0.1:8001 --concurrency 1:16:5",
                "tandem perf --url 127.0.0.1:8001 --folder results -- --percentile=99",
            ),
        ),
    },
    "deploy": {
        "doctor": CommandHelp(
            "Check what this machine needs to serve.",
            "Check what this machine needs to serve, and how to get what is missing. The exit "
            "status is 1 if a requirement is missing.",
            ("tandem doctor",),
        ),
        "render": CommandHelp(
            "Write a model repository for another Triton server.",
            "Write the model repository of a profile or of checkpoints, for a Triton server with "
            "the engines' packages. Tandem doesn't have to be installed there.",
            (
                "tandem render --output my-repository",
                "tandem render --target path/to/target --output my-repository",
            ),
        ),
        "build": CommandHelp(
            "Print the script that builds the TensorRT engines of a profile.",
            "Print the script that builds the TensorRT engines of a profile. The command fails if "
            "the settings conflict.",
            (
                "tandem build --profile llama-3.1-70b",
                "tandem build --profile llama-3.1-70b > build.sh && sh build.sh",
            ),
        ),
    },
}
COMMANDS: Mapping[str, CommandHelp] = {
    name: command for commands in GROUPS.values() for name, command in commands.items()
}
DESCRIPTION = """\
Tandem speeds up language models on Triton Inference Server without changing the output: a small
draft model proposes the next tokens, and the large target verifies them in one step."""
FIRST_STEPS = {
    "tandem doctor": "check this machine",
    "tandem bench": "measure the speedup of the demo's models",
    "tandem up": "serve, in one terminal",
    'tandem generate "def main():"': "generate, in another",
}


def overview() -> str:
    groups = [
        "\n".join([f"{group}:", *(f"  {name:<11}{c.summary}" for name, c in commands.items())])
        for group, commands in GROUPS.items()
    ]
    steps = [f"  {command:<31}# {purpose}" for command, purpose in FIRST_STEPS.items()]
    return "\n\n".join(
        (
            "usage: tandem COMMAND [OPTION...]\n       tandem --version",
            DESCRIPTION,
            "first steps:\n" + "\n".join(steps),
            *groups,
            "`tandem COMMAND --help` shows options and examples.",
        )
    )
