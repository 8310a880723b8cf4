"""What to measure: decoding variants, and groups of prompts from a file or with random tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tandem.bls.drafters import registry as drafter_registry
from tandem.bls.drafters.registry import DRAFTERS, DrafterKind, DrafterName
from tandem.bls.settings import AUTO
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.client.client import Inputs, Value
from tandem.tools.client.dataset import read_prompts
from tandem.tools.errors import TandemError

# Range of random token ids. Every vocabulary contains them, and special tokens that a vocabulary
# numbers first have lower ids.
LOWEST_ID, HIGHEST_ID = 300, 1000


class Scenario(NamedTuple):
    """Prompts that are measured together. prompts: for each prompt, the inputs that contain it."""

    name: str
    prompts: Sequence[Inputs]


def scenarios_of_file(path: Path, limit: int) -> list[Scenario]:
    """Return one scenario per kind of prompt in a file, with at most ``limit`` prompts each.

    The scenario of prompts without a kind has the file's name.
    """
    kinds: dict[str, list[Inputs]] = {}
    for prompt in read_prompts(path):
        inputs = {tensors.TEXT_INPUT: prompt.text}
        if prompt.prediction:
            inputs[tensors.PREDICTION] = prompt.prediction
        kinds.setdefault(prompt.kind or path.stem, []).append(inputs)
    return [Scenario(kind, prompts[:limit]) for kind, prompts in kinds.items()]


def scenarios_of_lengths(lengths: Sequence[int], limit: int) -> list[Scenario]:
    """Return one scenario per prompt length, with ``limit`` prompts of random token ids each.

    lengths: in tokens. The ids are the same in every run.
    """

    def prompt(length: int, number: int) -> Inputs:
        ids = np.random.default_rng([length, number]).integers(LOWEST_ID, HIGHEST_ID, length)
        return {tensors.INPUT_IDS: ids.tolist()}

    return [
        Scenario(f"{length} tokens", [prompt(length, number) for number in range(limit)])
        for length in dict.fromkeys(lengths)
    ]


@dataclass(frozen=True)
class Variant:
    """The draft settings of a request. None means the server's default.

    draft_len: tokens, or AUTO. use_draft_logits, draft_ahead ("auto", "true" or "false"): for draft
    models only.
    """

    drafter: DrafterName
    draft_len: int | None = None
    use_draft_logits: bool = False
    draft_ahead: str | None = None

    @property
    def is_baseline(self) -> bool:
        return self.drafter == drafter_registry.BASELINE.name

    @property
    def learns(self) -> bool:
        """Whether its draft length may be `auto`."""
        return not self.is_baseline and self.draft_len in (None, AUTO)

    @property
    def length(self) -> str:
        if self.is_baseline:
            return ""
        if self.draft_len is None:
            return "served"
        return "auto" if self.draft_len == AUTO else str(self.draft_len)

    @property
    def inputs(self) -> Inputs:
        given: dict[Tensor, Value] = {tensors.DRAFTER: self.drafter}
        if self.draft_len is not None:
            given[tensors.NUM_DRAFT_TOKENS] = self.draft_len
        if self.use_draft_logits:
            given[tensors.USE_DRAFT_LOGITS] = True
        if self.draft_ahead is not None:
            given[tensors.DRAFT_AHEAD] = self.draft_ahead
        return given

    def __str__(self) -> str:
        parts = [self.drafter, self.length]
        if self.draft_ahead is not None:
            parts.append(f"ahead {self.draft_ahead}")
        return " ".join(part for part in parts if part)


BASELINE = Variant(drafter_registry.BASELINE.name)


def make_variants(
    drafters: Sequence[DrafterKind],
    draft_lens: Sequence[int | None],
    draft_aheads: Sequence[str | None],
    *,
    use_draft_logits: bool,
) -> list[Variant]:
    """Return the baseline and every meaningful combination of the settings, each once.

    Drafting ahead applies only to draft models. Raises TandemError if
    nothing is left to compare with the baseline.
    """
    variants = {BASELINE: None}
    for drafter, draft_len, ahead in product(drafters, draft_lens, draft_aheads):
        if not drafter.drafts_in_loop:
            continue
        variant = Variant(
            drafter.name,
            draft_len,
            use_draft_logits and drafter.samples_from_draft_model,
            ahead if drafter.drafts_ahead else None,
        )
        variants[variant] = None
    if len(variants) == 1:
        drafting = " or ".join(kind.name for kind in DRAFTERS.values() if kind.drafts_in_loop)
        raise TandemError(
            f"nothing to compare with drafter '{BASELINE.drafter}'; set --drafter to {drafting}"
        )
    return [*variants]
