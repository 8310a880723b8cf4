"""A variant of decoding: who drafts, how many tokens, by what n-grams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from tandem.bls.settings import AUTO, DrafterName
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.client.client import Inputs, Value
from tandem.tools.errors import TandemError

MODEL_DRAFTERS: tuple[DrafterName, ...] = ("draft_model", "hybrid")
LOOKUP_DRAFTERS: tuple[DrafterName, ...] = ("prompt_lookup", "hybrid")


@dataclass(frozen=True)
class Variant:
    """What a request says of its drafts.

    draft_len: AUTO, or tokens; None: as served. ngram_size: the longest that is looked up; None: as
    served, or nothing is looked up. use_draft_logits: of a draft model. draft_ahead: auto, true or
    false, of a draft model; None: as served.
    """

    drafter: DrafterName
    draft_len: int | None = None
    ngram_size: int | None = None
    use_draft_logits: bool = False
    draft_ahead: str | None = None

    @property
    def is_control(self) -> bool:
        """Whether this is the target alone."""
        return self.drafter == "none"

    @property
    def length(self) -> str:
        """The draft length, in words."""
        if self.is_control:
            return ""
        if self.draft_len is None:
            return "served"
        return "auto" if self.draft_len == AUTO else str(self.draft_len)

    @property
    def inputs(self) -> Inputs:
        """What a request carries."""
        given: dict[Tensor, Value] = {tensors.DRAFTER: self.drafter}
        if self.draft_len is not None:
            given[tensors.NUM_DRAFT_TOKENS] = self.draft_len
        if self.ngram_size is not None:
            given[tensors.MAX_MATCHING_NGRAM_SIZE] = self.ngram_size
        if self.use_draft_logits:
            given[tensors.USE_DRAFT_LOGITS] = True
        if self.draft_ahead is not None:
            given[tensors.DRAFT_AHEAD] = self.draft_ahead
        return given

    def __str__(self) -> str:
        parts = [self.drafter, self.length]
        if self.ngram_size is not None:
            parts.append(f"n-gram {self.ngram_size}")
        if self.draft_ahead is not None:
            parts.append(f"ahead {self.draft_ahead}")
        return " ".join(part for part in parts if part)


CONTROL = Variant("none")


def variants_of(
    drafters: Sequence[DrafterName],
    draft_lens: Sequence[int | None],
    ngram_sizes: Sequence[int | None],
    *,
    use_draft_logits: bool = False,
    draft_aheads: Sequence[str | None] = (None,),
) -> list[Variant]:
    """Return the control and every combination that means something, each once.

    `auto` and drafting ahead are matters of a draft model, n-grams are one of lookup. Raises
    TandemError where nothing is left to compare with the control.
    """
    variants = {CONTROL: None}
    for drafter, draft_len, ngram_size, ahead in product(
        drafters, draft_lens, ngram_sizes, draft_aheads
    ):
        if drafter == CONTROL.drafter:
            continue
        if draft_len == AUTO and drafter not in MODEL_DRAFTERS:
            continue
        looks_up, asks = drafter in LOOKUP_DRAFTERS, drafter in MODEL_DRAFTERS
        variant = Variant(
            drafter,
            draft_len,
            ngram_size if looks_up else None,
            use_draft_logits and asks,
            ahead if asks else None,
        )
        variants[variant] = None
    if len(variants) == 1:
        raise TandemError(
            f"nothing to compare with drafter '{CONTROL.drafter}': say --drafter draft_model or "
            "hybrid, or prompt_lookup with a --num-draft-tokens that is not auto"
        )
    return [*variants]
