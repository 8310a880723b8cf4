"""Packages import only lower packages: tools -> shims -> bls.triton -> bls -> the rest."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from paths import ROOT

from tandem.tools.commands.command_line import COMMANDS

TRITON = {"triton_python_backend_utils", "c_python_backend_utils", "tritonclient"}
# Packages and their allowed imports. A module belongs to the longest matching package.
ARROWS = {
    "contract": {"contract"},
    "sampling": {"sampling", "contract"},
    "lookup": {"lookup"},
    "guides": {"guides", "contract", "preprocessing"},
    "bls": {
        "bls",
        "contract",
        "sampling",
        "lookup",
        "guides",
        "preprocessing",
        "postprocessing",
    },
    "bls.triton": {"bls", "bls.triton", "contract", "guides", "triton"},
    "engines": {"engines", "engines.kinds", "contract", "sampling", "lookup"},
    "engines.kinds": {"engines", "engines.remote", "contract"},  # it starts each kind
    "engines.remote": {"engines", "engines.remote", "contract", "triton"},
    "engines.triton": {"engines", "engines.kinds", "contract", "triton"},
    "gateway": {"gateway", "gateway.triton", "contract", "preprocessing", "postprocessing"},
    "gateway.triton": {"gateway", "gateway.triton", "contract", "triton"},
    "preprocessing": {"preprocessing", "contract"},
    "preprocessing.triton": {"preprocessing", "contract", "triton"},
    "postprocessing": {"postprocessing", "preprocessing", "contract"},  # the loader of tokenizers
    "postprocessing.triton": {
        "postprocessing",
        "preprocessing",
        "preprocessing.triton",
        "contract",
        "triton",
    },
    "examples": {"triton"},  # client code must not import Tandem
    "examples.drafters": {"bls"},
}
# The folders of tools/. Each folder may import only earlier folders.
TOOLS = (
    "errors",
    "folders",
    "signals",
    "profiles",
    "trtllm",
    "triton",
    "models",
    "client",
    "benchmark",
    "commands",
    "cli",
)
TOP = {path.name for path in (ROOT / "tandem").iterdir() if path.is_dir()} - {"__pycache__"}
PACKAGES = [f"tandem/{name}" for name in sorted(TOP)]


def sources(*folders):
    """Return our Python files in these folders, relative to the checkout."""
    return sorted(
        path.relative_to(ROOT)
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if ".venv" not in path.parts
    )


MODULES = sources(
    *(f"tandem/{name}" if name in TOP else name for name in {r.partition(".")[0] for r in ARROWS})
)


def room(module):
    """Return a module's package without `tandem.`, or "triton" for Triton's own modules."""
    if module.partition(".")[0] in TRITON:
        return "triton"
    name = module.removeprefix("tandem.")
    rooms = [room for room in ARROWS if f"{name}.".startswith(f"{room}.")]
    return max(rooms, key=len, default=name.partition(".")[0])


@cache
def imported(path):
    """Return the full names of all modules that a file imports."""
    names = []
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: import by the whole name"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def test_modules_import_only_allowed_packages():
    wrong = []
    for path in MODULES:
        allowed = ARROWS[room(".".join(path.with_suffix("").parts))]
        targets = {name: room(name) for name in imported(path)}
        ours = {name: to for name, to in targets.items() if to in {*ARROWS, *TOP, "triton"}}
        wrong += [f"{path} imports {name}" for name, to in ours.items() if to not in allowed]
    assert wrong == []


def test_tool_packages_import_only_lower_tool_packages():
    for path in sources("tools"):
        if path.parts[1:] == ("__init__.py",):
            continue
        mine = TOOLS.index(path.with_suffix("").parts[1])
        for name in imported(path):
            if name.startswith("tandem.tools."):
                theirs = name.split(".")[2]
                assert TOOLS.index(theirs) <= mine, f"{path} imports {name}"


def test_commands_do_not_import_each_other():
    folder = Path("tools", "commands")
    modules = {path.stem for path in (ROOT / folder).glob("*.py")}
    assert modules >= {*COMMANDS}
    for module in modules:
        others = {
            name.removeprefix("tandem.tools.commands.").partition(".")[0]
            for name in imported(folder / f"{module}.py")
            if name.startswith("tandem.tools.commands.")
        }
        assert not others & {*COMMANDS}, f"{module} imports {others & {*COMMANDS}}"


def test_our_packages_are_imported_from_tandem():
    """In the root of a checkout, imports without `tandem.` would load a second copy."""
    bare = "|".join(TOP)
    for path in sources(*PACKAGES, "tests", "benchmarks", "deploy"):
        found = re.findall(
            rf"^ *(?:from|import) (?:{bare})\b.*", (ROOT / path).read_text(), re.MULTILINE
        )
        assert found == [], path


def test_class_names_are_unique():
    """TritonPythonModel is an exception, because Triton requires it in each model."""
    homes = {}
    for path in sources(*PACKAGES, "benchmarks", "deploy", "examples", "docs"):
        for name in re.findall(r"^ *class (\w+)[(:]", (ROOT / path).read_text(), re.MULTILINE):
            if name != "TritonPythonModel":
                homes.setdefault(name, []).append(path)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_commands_start_without_pytorch():
    """Also because importing it takes seconds."""
    code = "import sys; sys.modules |= dict.fromkeys(('torch', 'transformers')); from importlib "
    code += "import import_module as load; from tandem.tools.commands.command_line import COMMANDS"
    code += "; [load(f'tandem.tools.commands.{name}') for name in COMMANDS]"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_settings_modules_import_no_large_libraries():
    """The renderer imports settings modules in a process that must not load PyTorch."""
    heavy = {"torch", "transformers", "numpy", "tokenizers"}
    for path in MODULES:
        if path.name == "settings.py":
            assert not heavy & {name.partition(".")[0] for name in imported(path)}, path
