"""Imports point one way: tools -> shims -> bls.triton -> bls -> contract, lookup <- engines."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TRITON = {"triton_python_backend_utils", "c_python_backend_utils", "tritonclient"}
# Room -> the rooms that it may import. The longest name that a module's begins with is its room.
ARROWS = {
    "contract": {"contract"},
    "lookup": {"lookup"},
    "bls": {"bls", "contract", "lookup"},
    "bls.triton": {"bls", "bls.triton", "contract", "triton"},
    "engines": {"engines", "contract", "lookup"},
    "engines.triton": {"engines", "contract", "triton"},
    "preprocessing": {"preprocessing", "contract"},
    "preprocessing.triton": {"preprocessing", "contract", "triton"},
    "postprocessing": {"postprocessing", "preprocessing", "contract"},  # one tokenizer loader
    "postprocessing.triton": {"postprocessing", "preprocessing", "contract", "triton"},
}
PACKAGES = {room.partition(".")[0] for room in ARROWS} | {"tools", "tandem", "demo"}
MODULES = sorted(
    path.relative_to(ROOT)
    for package in ("contract", "lookup", "bls", "engines", "preprocessing", "postprocessing")
    for path in (ROOT / package).rglob("*.py")
)


def room(module):
    """The room that a module stands in; Triton's own modules make one."""
    if module.partition(".")[0] in TRITON:
        return "triton"
    rooms = [name for name in ARROWS if f"{module}.".startswith(f"{name}.")]
    return max(rooms, key=len, default=module.partition(".")[0])


def imported(path):
    """Every module that a file imports, relative ones resolved."""
    package = list(path.parent.parts)
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_module_imports_only_what_its_room_may(path):
    allowed = ARROWS[room(".".join(path.with_suffix("").parts))]
    ours = {name: room(name) for name in imported(path)}
    wrong = {
        name: target
        for name, target in ours.items()
        if target not in allowed and (target in ARROWS or target in PACKAGES | {"triton"})
    }
    assert not wrong, f"{path} may import {sorted(allowed)} of ours, and imports {wrong}"


def test_settings_import_nothing_heavy():
    """The renderer reads them, in a process that must not load PyTorch."""
    heavy = {"torch", "transformers", "numpy", "tokenizers"}
    for path in MODULES:
        if path.name == "settings.py":
            assert not heavy & {name.partition(".")[0] for name in imported(path)}, path


def test_shims_only_wire():
    shims = sorted(ROOT.glob("model_repository/*/1/model.py"))
    for path in shims:
        assert len(path.read_text().splitlines()) <= 40, path
