"""The registry of drafters: one row per drafter with its name, requirements, and module.

The request parser, the metrics, profiles, and the command line read this table, so it imports
nothing heavy. A custom drafter is a Python file that defines ``DRAFTER``, its row, and a function
``make``.
"""

from __future__ import annotations

import dataclasses
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
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
    module="tandem.bls.drafters.drafter",
    in_engine=True,
)
BASELINE = DrafterKind(
    name="none",
    description="no drafts: the target alone",
    module="tandem.bls.drafters.drafter",
    has_own_counters=False,
)

# By name. A deployment prefers the first drafter that its engines support.
DRAFTERS: dict[DrafterName, DrafterKind] = {
    kind.name: kind for kind in (HYBRID, DRAFT_MODEL, PROMPT_LOOKUP, ENGINE, BASELINE)
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


ROW, MAKE = "DRAFTER", "make"
FOLDER = "drafters"  # folder of the rendered model, next to its model.py


class DrafterModuleError(ValueError):
    """A file contains no valid drafter. The message is one line."""


def read_kind(path: Path) -> DrafterKind:
    """Import a file and return its ``DRAFTER``; raise DrafterModuleError if it is invalid."""
    if not path.is_file():
        raise DrafterModuleError(f"{path} isn't a file")
    module = _imported(path)
    kind = getattr(module, ROW, None)
    if not isinstance(kind, DrafterKind):
        raise DrafterModuleError(f"{path} has no {ROW}; define {ROW} = DrafterKind(...)")
    if not callable(getattr(module, MAKE, None)):
        raise DrafterModuleError(f"{path} has no function {MAKE}; define {MAKE}(request, context)")
    if kind.module != module.__name__:
        raise DrafterModuleError(f"{path}: {ROW}.module must be __name__; got {kind.module!r}")
    if kind.in_engine:
        raise DrafterModuleError(f"{path}: {ROW}.in_engine is for built-in engines only; remove it")
    return kind


def with_settings(kind: DrafterKind, changes: Mapping[str, Any]) -> DrafterKind:
    """Return the row with changed settings; raise DrafterModuleError for an invalid setting."""
    if not changes:
        return kind
    known = [f.name for f in dataclasses.fields(kind.settings)] if kind.settings else []
    for key in changes:
        if key not in known:
            hint = f"choose one of: {', '.join(known)}" if known else f"'{kind.name}' has none"
            raise DrafterModuleError(f"setting '{key}' isn't known; {hint}")
    try:
        return dataclasses.replace(kind, settings=dataclasses.replace(kind.settings, **changes))
    except Exception as error:
        raise DrafterModuleError(described(error)) from error


def described(error: BaseException) -> str:
    """Format an error and its location on one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not frames:
        return text
    return f"{text} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


def _imported(path: Path) -> ModuleType:
    spec = spec_from_file_location(f"tandem_drafter_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise DrafterModuleError(f"{path} must be a Python file; its name must end in .py")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # the registry finds `make` there; dataclasses resolve types
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        raise DrafterModuleError(f"can't import {path}: {described(error)}") from error
    return module
