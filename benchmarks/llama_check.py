"""Compare Tandem with llama.cpp's own server on a GGUF file.

    python -m benchmarks.llama_check model.gguf --draft small.gguf

Both serve the file with the same number of threads, through OpenAI's API: Tandem without drafts,
with prompt lookup and with `auto`; llama.cpp's server, from the package xllamacpp, alone and with
its own n-gram drafter. With --draft, both also use a draft model. The variants take turns; a short
first turn isn't counted, so all prompts are cached, except in "new prompt". llama.cpp keeps the KV
cache's values in float16, Tandem in bfloat16, so an output can differ where two tokens are nearly
tied; --same-kv makes llama.cpp use bfloat16. Its JSON has line breaks, so it always differs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.servers import MeasuredTurn, RunningServer, ask_at_once, started
from benchmarks.turns import in_turns
from tandem.tools.models.named import find_model

SLOT_TOKENS = 1024  # context of each of llama.cpp's slots
LLAMA = """
import json, sys, time, xllamacpp as x
o = json.loads(sys.argv[1])
p = x.CommonParams()
p.model.path, p.port, p.n_parallel, p.n_ctx = o["file"], o["port"], o["slots"], o["context"]
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = o["threads"]
if o["same_kv"]:
    p.cache_type_v = x.ggml_type.GGML_TYPE_BF16
if o["drafter"]:
    kind = "COMMON_SPECULATIVE_TYPE_" + o["drafter"]
    p.speculative.types = [getattr(x.common_speculative_type, kind)]
if o["draft"]:
    p.speculative.draft.mparams.path = o["draft"]
server = x.Server(p)
time.sleep(10**6)
"""
CODE = "def area(width, height):\n    '''Return the area.'''\n    return width * height\n\n\n"
MORE = "def volume(width, height, depth):\n    return area(width, height) * depth\n\n\n"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "occupation": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "snow", "trains"]}, "maxItems": 3},
    },
    "required": ["name", "occupation", "age", "likes"],
    "additionalProperties": False,
}
NEW = "new prompt"
WARM_UP_TOKENS = 8  # per answer of the first turn
FRESH = "(fresh)"  # in a prompt that no server has seen
LONG = "The ferry leaves at nine in the morning. Tickets cost four coins. Dogs travel free. " * 20
THINGS = ("moon", "sea", "fox", "bread", "snow", "bee", "train", "tree")
PLACES = ("Rome", "Oslo")


def main() -> None:
    options = _options()
    console, base = Console(), options.base_port
    variants: dict[str, tuple[str, dict[str, Any]]] = {  # name -> server and more fields
        "llama.cpp": ("llama.cpp", {}),
        "Tandem, none": ("Tandem", {"drafter": "none"}),
        "Tandem, prompt lookup": ("Tandem", {"drafter": "prompt_lookup", "num_draft_tokens": 8}),
        "Tandem, auto": ("Tandem", {"drafter": "prompt_lookup", "num_draft_tokens": "auto"}),
    }
    own = {"ngram-simple": "NGRAM_SIMPLE"}
    if options.draft:
        own["draft model"] = "DRAFT_SIMPLE"
        variants["Tandem, draft model"] = (
            "Tandem",
            {"drafter": "draft_model", "num_draft_tokens": "auto"},
        )
    with ExitStack() as stack:
        command = [sys.executable, "-m", "tandem", "up", "--target", str(options.file)]
        command += ["--base-port", str(base)]
        if options.draft:
            command += ["--draft", str(options.draft)]
        find_model(str(options.file))  # reads the tokenizer into the cache, which the start needs
        servers = {"Tandem": stack.enter_context(started(command, base + 3))}
        for number, name in enumerate(("", *own)):
            given = {
                "file": str(options.file),
                "port": base + 10 + number,
                "slots": max(options.requests),
                "context": max(options.requests) * SLOT_TOKENS,
                "threads": len(os.sched_getaffinity(0)),
                "same_kv": options.same_kv,
                "drafter": own.get(name),
                "draft": str(options.draft) if name == "draft model" else None,
            }
            label = f"llama.cpp, {name}" if name else "llama.cpp"
            start = started([sys.executable, "-c", LLAMA, json.dumps(given)], base + 10 + number)
            servers[label] = stack.enter_context(start)
            variants[label] = label, {}
        for kind in options.texts:
            for count in options.requests if kind != NEW else [1]:
                console.print(_table(kind, count, variants, servers, options))
        table = Table("server", "seconds until ready", "MB of memory (PSS)", box=None)
        for name, server in servers.items():
            memory = dict(_memory(server.process))
            table.add_row(name, f"{server.ready:.1f}", f"{sum(memory.values()) / 1e6:.0f}")
            for process, size in memory.items() if len(memory) > 1 else ():
                table.add_row(f"  {process}", "", f"{size / 1e6:.0f}")
        console.print(table)


def _table(
    kind: str,
    count: int,
    variants: dict[str, tuple[str, dict[str, Any]]],
    servers: dict[str, RunningServer],
    options: argparse.Namespace,
) -> Table:
    columns = "tokens/s", "of llama.cpp", "of none", "ms to first text", "equal outputs"
    table = Table(f"{kind}, {count} at once", *columns, box=None)
    bodies = [_body(kind, number, options.tokens) for number in range(count)]
    measure = {
        name: partial(_measure, servers[server].port, [body | more for body in bodies], name)
        for name, (server, more) in variants.items()
    }
    number = max(1, options.turns // count)
    outcomes = in_turns(measure, number, f"{kind}, {count} at once")
    rates = {
        name: median(sum(a.tokens for a in turn.answers) / turn.seconds for turn in turns)
        for name, turns in outcomes.items()
    }
    wanted = [answer.text for answer in outcomes["llama.cpp"][-1].answers]
    for name, turns in outcomes.items():
        texts = [answer.text for answer in turns[-1].answers]
        equal = sum(map(str.__eq__, texts, wanted))
        first = median(answer.first_ms for turn in turns for answer in turn.answers)
        table.add_row(
            *(name, f"{rates[name]:.1f}"),
            f"{rates[name] / rates['llama.cpp']:.2f}",
            f"{rates[name] / rates['Tandem, none']:.2f}" if "Tandem" in name else "",
            *(f"{first:.0f}", f"{equal} of {count}"),
        )
    return table


def _body(kind: str, number: int, tokens: int) -> dict[str, Any]:
    """Return request number `number` of a kind."""
    thing, place = THINGS[number % len(THINGS)], PLACES[number // len(THINGS) % len(PLACES)]
    question = {
        "chat": f"What could a {thing} in {place} think about? Write a few sentences.",
        "edit": f"Repeat this code, with the name {thing}_{place} instead of area:\n\n"
        f"```python\n{CODE}{MORE}print(area({number}, 4), volume(2, {number}, 5))\n```",
        NEW: f"{FRESH} {number}. {LONG}When does the ferry leave?",
        "json": f"Describe a person from {place} who has seen a {thing}, as JSON.",
    }[kind]
    body: dict[str, Any] = {
        "model": "bls_stream",
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": tokens,
    }
    if kind == "json":
        schema = {"name": "person", "schema": PERSON, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body


def _measure(port: int, bodies: Sequence[dict[str, Any]], name: str, turn: int) -> MeasuredTurn:
    if not turn:
        bodies = [body | {"max_tokens": WARM_UP_TOKENS} for body in bodies]
    fresh = [json.loads(json.dumps(body).replace(FRESH, f"{name} {turn}")) for body in bodies]
    return ask_at_once(port, "/v1/chat/completions", fresh)


def _memory(process: int) -> Iterator[tuple[str, int]]:
    """Yield the name and the bytes of a process and its descendants; shared pages count once."""
    folder = Path(f"/proc/{process}")
    command = [Path(word) for word in (folder / "cmdline").read_text().split("\0")]
    # The Python backend's processes have the path of their model: .../target/1/model.py
    models = [word.parts[-3] for word in command if word.name == "model.py"]
    rollup = (folder / "smaps_rollup").read_text()
    own = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    yield f"{' '.join(models) or command[0].name} ({process})", own * 1024
    for file in folder.glob("task/*/children"):
        for child in file.read_text().split():
            yield from _memory(int(child))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="a GGUF file")
    parser.add_argument("--draft", type=Path, help="a smaller GGUF file with the same vocabulary")
    parser.add_argument("--texts", nargs="+", default=["chat", "edit", "json", NEW])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16], help="at once")
    parser.add_argument("--tokens", type=int, default=32, help="maximum per answer")
    parser.add_argument("--turns", type=int, default=4, help="divided by the requests at once")
    parser.add_argument("--same-kv", action="store_true", help="bfloat16 values in llama.cpp, too")
    parser.add_argument("--base-port", type=int, default=18400)
    return parser.parse_args()


if __name__ == "__main__":
    main()
