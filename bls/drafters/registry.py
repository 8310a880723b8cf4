"""Registry of drafters: one row each with its name, requirements, and module.

The request parser, the metrics, profiles, the commands and their help read this table, so it
imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from tandem.bls.drafters.drafter import Drafter, DrafterContext
    from tandem.bls.request import Request

DrafterName: TypeAlias = str  # of a row


class DrafterExists(ValueError):
    """Raised if the name of a drafter is taken. The message is one line that includes the name."""


@dataclass(frozen=True, kw_only=True)
class DrafterKind:
    """One row of the registry.

    name: in the input `drafter`, in profiles, on the command line and in metrics. description: what
    it does, for help texts; a noun phrase without a period. module: has a function `make(request,
    context)` that returns the drafter of one request. samples_from_draft_model: it may call the
    draft engine, so it needs one, and KV blocks there. looks_up: the inputs of prompt lookup affect
    its drafts. in_engine: the target drafts by itself; the loop proposes nothing. proposes: its
    drafts carry this name; False: they carry other names, or there are none. settings: a dataclass
    with the defaults of its own settings; a profile may change them.
    """

    name: DrafterName
    description: str
    module: str
    samples_from_draft_model: bool = False
    looks_up: bool = False
    in_engine: bool = False
    proposes: bool = True
    settings: Any = None

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(
                "a drafter's name must be a Python identifier (letters, digits and _); "
                f"got {self.name!r}"
            )

    def make(self, request: Request, context: DrafterContext) -> Drafter:
        drafter: Drafter = import_module(self.module).make(request, context)
        return drafter

    @property
    def drafts_in_loop(self) -> bool:
        """Whether the loop requests drafts from it. If not, the target decodes alone."""
        return not self.in_engine and self.name != CONTROL.name

    @property
    def only_looks_up(self) -> bool:
        """Whether `prompt_lookup_num_tokens` alone determines its draft length."""
        return self.looks_up and not self.samples_from_draft_model


DRAFT_MODEL = DrafterKind(
    name="draft_model",
    description="a small model",
    module="tandem.bls.drafters.draft_model",
    samples_from_draft_model=True,
)
PROMPT_LOOKUP = DrafterKind(
    name="prompt_lookup",
    description="what followed the same tokens earlier, in the prompt or the answer",
    module="tandem.bls.drafters.prompt_lookup",
    looks_up=True,
)
HYBRID = DrafterKind(
    name="hybrid",
    description="prompt lookup, or the draft model if no match is long enough",
    module="tandem.bls.drafters.hybrid",
    samples_from_draft_model=True,
    looks_up=True,
    proposes=False,
)
ENGINE = DrafterKind(
    name="engine",
    description="the target itself, inside one call",
    module="tandem.bls.drafters.no_drafter",
    in_engine=True,
)
CONTROL = DrafterKind(
    name="none",
    description="no drafts: the target alone",
    module="tandem.bls.drafters.no_drafter",
    proposes=False,
)

# By name, in order of preference of a deployment.
DRAFTERS: dict[DrafterName, DrafterKind] = {
    kind.name: kind for kind in (DRAFT_MODEL, PROMPT_LOOKUP, HYBRID, ENGINE, CONTROL)
}
BUILT_IN = frozenset(DRAFTERS)
# Sources of drafts that prompt lookup copied from elsewhere: a pool, or the request's prediction.
# They are no rows: requests name prompt lookup.
LOOKUP_POOL: DrafterName = "lookup_pool"
PREDICTION: DrafterName = "prediction"
COPIED_FROM = frozenset({LOOKUP_POOL, PREDICTION})


def join(kind: DrafterKind) -> None:
    """Add a custom drafter; raise DrafterExists if its name is taken."""
    refuse_taken(kind, DRAFTERS)
    DRAFTERS[kind.name] = kind


def refuse_taken(kind: DrafterKind, names: Iterable[DrafterName]) -> None:
    """Raise DrafterExists if the name is one of ``taken``."""
    taken = list(names)
    if kind.name in taken:
        raise DrafterExists(
            f"drafter '{kind.name}' already exists; choose a name other than {', '.join(taken)}"
        )
