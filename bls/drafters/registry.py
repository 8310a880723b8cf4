"""The registry of drafters: one row per drafter with its name, requirements, and module.

The request parser, the metrics, profiles, and the command line read this table, so it imports
nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from tandem.bls.drafters.drafter import Drafter, DrafterContext
    from tandem.bls.request import Request

DrafterName: TypeAlias = str  # `DrafterKind.name`, `LOOKUP_POOL`, `PREDICTION` or `GRAMMAR`


class DrafterExists(ValueError):
    """The name of a drafter is taken. The message is one line that includes the name."""


@dataclass(frozen=True, kw_only=True)
class DrafterKind:
    """One row of the registry.

    name: name in the input `drafter`, in profiles, on the command line and in metrics. description:
    source of the draft tokens, for help texts; a noun phrase without a period. module: name of the
    Python module whose function `make(request, context)` returns a request's drafter.
    samples_from_draft_model: the drafter may call the draft engine, so it needs one, and KV blocks
    in its cache. looks_up: the inputs of prompt lookup affect its drafts. in_engine: the target
    drafts by itself; the loop proposes nothing. has_own_counters: its drafts are counted under
    its own name. settings: dataclass instance with the defaults of the drafter's settings, which a
    profile may change.
    """

    name: DrafterName
    description: str
    module: str
    samples_from_draft_model: bool = False
    looks_up: bool = False
    in_engine: bool = False
    has_own_counters: bool = True
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
        """Whether the loop requests drafts from this drafter."""
        return not self.in_engine and self.name != BASELINE.name

    @property
    def drafts_ahead(self) -> bool:
        return self.samples_from_draft_model and self.name in BUILT_IN

    @property
    def only_looks_up(self) -> bool:
        """Whether `prompt_lookup_num_tokens` alone limits its draft length."""
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
    has_own_counters=False,
)
ENGINE = DrafterKind(
    name="engine",
    description="the target itself, inside one call",
    module="tandem.bls.drafters.no_drafter",
    in_engine=True,
)
BASELINE = DrafterKind(
    name="none",
    description="no drafts: the target alone",
    module="tandem.bls.drafters.no_drafter",
    has_own_counters=False,
)

# By name. A deployment prefers the first drafter that its engines support.
DRAFTERS: dict[DrafterName, DrafterKind] = {
    kind.name: kind for kind in (DRAFT_MODEL, PROMPT_LOOKUP, HYBRID, ENGINE, BASELINE)
}
BUILT_IN = frozenset(DRAFTERS)
# Sources that prompt lookup copies from, besides the request's own text. They aren't drafters that
# a request can select.
LOOKUP_POOL: DrafterName = "lookup_pool"
PREDICTION: DrafterName = "prediction"
COPIED_FROM = frozenset({LOOKUP_POOL, PREDICTION})


def register(kind: DrafterKind) -> None:
    """Add a custom drafter; raise DrafterExists if its name is taken."""
    reject_taken(kind, DRAFTERS)
    DRAFTERS[kind.name] = kind


def reject_taken(kind: DrafterKind, names: Iterable[DrafterName]) -> None:
    """Raise DrafterExists if the drafter's name is one of ``names``."""
    taken = list(names)
    if kind.name in taken:
        raise DrafterExists(
            f"drafter '{kind.name}' already exists; choose a name other than {', '.join(taken)}"
        )
