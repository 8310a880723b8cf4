"""A fake Triton for gateway tests, which follows a script and records cancellations."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, TypeAlias

from paths import TOKENIZER

from tandem.contract.entry import KINDS
from tandem.contract.tensor import Tensor
from tandem.gateway.answers.tokens import ORIGINS
from tandem.gateway.errors import ApiError, gateway_stopped
from tandem.gateway.models import LoopFacts, ServedModel, ServedModels, TargetFacts
from tandem.gateway.triton.backend import Inputs, ResponseChunk
from tandem.postprocessing.detokenizer import Detokenizer, make_detokenizer
from tandem.preprocessing.tokenizer import load_tokenizer

FACTS = LoopFacts(
    preprocessing_model="preprocessing",
    postprocessing_model="postprocessing",
    max_requests=64,
    target=TargetFacts(vocab_size=4096, max_seq_len=116, max_draft_len=16),
    drafters=("prompt_lookup", "hybrid", "repeat", "none"),
)
MODELS = ServedModels(
    models=(
        ServedModel("bls_stream"),
        ServedModel("bls"),
        ServedModel("ensemble", "none"),
    ),
    loop=FACTS,
    add_special_tokens=True,
    skip_special_tokens=True,
)
# A script is a sequence of steps: a chunk to send, an error to raise, or FOREVER.
FOREVER = "wait until the client leaves"
Script: TypeAlias = Sequence["ResponseChunk | ApiError | str"]


def statistics(*accepted: int, drafted: int = 4, cached: int | None = None) -> dict[str, Any]:
    """Return the statistics of a request. accepted: number of accepted tokens in each round."""
    histogram = [accepted.count(number) for number in range(max(accepted) + 1)]
    return {
        "num_spec_steps": len(accepted),
        "num_draft_tokens": drafted * len(accepted),
        "num_accepted_draft_tokens": sum(accepted),
        "acceptance_histogram": histogram,
        "num_cached_prompt_tokens": cached,
    }


def origins(*tokens: tuple[int, str, int], rejected: int = -1) -> dict[str, list[int]]:
    """Return the outputs that contain token origins. tokens: (round, kind, text length).

    rejected: the draft token that the last token replaces, or -1.
    """
    rounds, kinds, lengths = (list(column) for column in zip(*tokens, strict=True))
    indices = [KINDS.index(kind) for kind in kinds]
    replaced = [-1] * (len(tokens) - 1) + [rejected]
    return dict(zip(ORIGINS, (rounds, indices, lengths, replaced), strict=True))


FIRST = origins((1, "accepted", 1), (1, "correction", 2))
SECOND = origins((2, "accepted", 1), (2, "correction", 1))
HELLO = (
    ResponseChunk("Hel", [39, 301], 1, 4, 1, extras=FIRST),
    ResponseChunk("lo", [302, 78], 2, 8, 2, "stop", statistics(1, 1), SECOND),
)


class ScriptedTriton:
    """A fake Triton that answers every request according to a script.

    script: returns the script for a request's inputs. If the request isn't streamed, the chunks are
    joined.
    """

    def __init__(self, script: Callable[[Inputs], Script] = lambda _: HELLO) -> None:
        self.script = script
        self.models_served = MODELS
        self.is_ready = True
        self.asked: list[Inputs] = []
        self.extras: list[Tensor] = []
        self.named: list[str] = []
        self.commands: list[str] = []  # for lookup pools
        self.pools: list[dict[str, Any]] = []
        self.sent = 0
        self.running = 0
        self.left = 0
        self._stopped = asyncio.Event()

    async def ready(self) -> bool:
        return self.is_ready

    async def models(self) -> ServedModels:
        return self.models_served

    async def manage_pools(self, command: str) -> list[dict[str, Any]]:
        self.commands.append(command)
        return self.pools

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        self._stopped.set()

    def start_again(self) -> None:
        self._stopped = asyncio.Event()

    async def close(self) -> None:
        pass

    async def generate(
        self, model: str, inputs: Inputs, extras: Sequence[Tensor] = ()
    ) -> AsyncGenerator[ResponseChunk, None]:
        if self._stopped.is_set():
            raise gateway_stopped()
        self.named.append(model)
        self.asked.append(inputs)
        self.extras = list(extras)
        self.running += 1
        left = 0
        try:
            for step in self._steps(inputs):
                await asyncio.sleep(0)
                if isinstance(step, ApiError):
                    raise step
                if isinstance(step, ResponseChunk):
                    self.sent += 1
                    yield step
                else:
                    await self._stopped.wait()
                    raise gateway_stopped()
        except (asyncio.CancelledError, GeneratorExit):
            left = 1
            raise
        finally:
            self.running -= 1
            self.left += left  # last, because tests wait for it

    def _steps(self, inputs: Any) -> Script:
        steps = list(self.script(inputs))
        if not inputs["exclude_input_in_output"] and isinstance(steps[0], ResponseChunk):
            shown = detokenizer().decode_complete(inputs["input_ids"])
            steps[0] = steps[0]._replace(text=shown + steps[0].text)
        if inputs["stream"] or not all(isinstance(step, ResponseChunk) for step in steps):
            return steps
        return [joined(steps)]


@functools.cache
def detokenizer() -> Detokenizer:
    """Return the demo's detokenizer, which omits special tokens."""
    return make_detokenizer(load_tokenizer(TOKENIZER), skip_special_tokens=True)


def joined(chunks: Sequence[Any]) -> ResponseChunk:
    """Join chunks into one."""
    text = "".join(chunk.text for chunk in chunks)
    extras = {name: [row for c in chunks for row in c.extras[name]] for name in chunks[0].extras}
    tokens = [token for chunk in chunks for token in chunk.tokens]
    return chunks[-1]._replace(text=text, tokens=tokens, extras=extras)
