"""Loads a custom drafter: a Python file that defines ``DRAFTER`` and a function ``make``."""

from __future__ import annotations

import dataclasses
import sys
import traceback
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from tandem.bls.drafters.registry import DrafterKind

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
