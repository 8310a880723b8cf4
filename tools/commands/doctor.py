"""Check what this machine needs to serve, and how to get what is missing.

With --profile, also check that profile and the servers of its remote engines. The exit status is 1
if a requirement is missing.

    tandem doctor
    tandem doctor --profile mine.yaml
"""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tandem.tools.commands.gateway_options import add_base_port, usual_ports
from tandem.tools.commands.options import add_profile, named_profile
from tandem.tools.errors import TandemError, install_extra
from tandem.tools.models.fit import check_fit, count_gpus, free_memory
from tandem.tools.profiles.deployment import load
from tandem.tools.profiles.engines.remote import Reading, RemoteDraft
from tandem.tools.profiles.profile import convert_errors, read_profile
from tandem.tools.triton.install import PYTHON, WHEEL, find_libpython, find_triton
from tandem.tools.triton.server import LOOPBACK, Ports, claim_ports
from tandem.tools.triton.supervisor import SHARED_MEMORY

GLIBC = (2, 35)
MEMORY_MB = 1536  # the most that the embedded profile needs
SHARED_MEMORY_MB = 64  # one megabyte per model, plus space for tensors
GGUF = f"only for GGUF files: {install_extra('gguf')}"
OPTIONAL = {  # package -> when it is needed
    "gguf": GGUF,
    "xllamacpp": GGUF,
    "tensorrt-llm": "use NVIDIA's image: docs/deploy/tensorrt-llm.md",
    "vllm": "only for kind: vllm; its key `python` may name another Python: docs/deploy/vllm.md",
}
MARKS = {True: "[green]ok[/]", False: "[red]missing[/]", None: "[yellow]optional[/]"}


@dataclass(frozen=True)
class Finding:
    """The result of one check. good: whether it passed; None if something optional is missing."""

    subject: str
    found: str
    good: bool | None
    fix: str = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_base_port(parser)
    add_profile(parser)


def run(options: argparse.Namespace) -> int:
    findings = list(examine(usual_ports(options.base_port)))
    if options.profile is not None:
        findings += examine_profile(named_profile(options.profile))
    table = Table(box=None, pad_edge=False)
    for heading in ("", "what", "found", "fix"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        fix = "" if finding.good else finding.fix
        cells = finding.subject, finding.found, fix
        table.add_row(MARKS[finding.good], *map(escape, cells))
    Console().print(table)
    return int(any(finding.good is False for finding in findings))


def examine(ports: Mapping[str, int]) -> Iterator[Finding]:
    """Check everything that serving needs, and yield findings in the order in which to fix them.

    ports: of `tandem up` by name.
    """
    system = f"{platform.system()} {platform.machine()}"
    good = system == "Linux x86_64"
    yield Finding("system", system, good, "use a Linux x86-64 machine or VM")
    if not good:
        return  # the other checks need Linux
    glibc = platform.libc_ver()[1]
    numbers = tuple(int(part) for part in re.findall(r"\d+", glibc)[:2])
    fix = f"needs {'.'.join(map(str, GLIBC))}: Debian 12, Ubuntu 22.04 or later"
    yield Finding("glibc", glibc or "none", numbers >= GLIBC, fix)
    library = find_libpython()
    found = f"{PYTHON}, {'shared' if library else 'without a shared libpython'}"
    fix = "use a Python built with --enable-shared (the distribution's, conda's)"
    yield Finding("Python", found, library is not None, fix)
    yield _triton()
    for package in ("torch", "transformers"):
        yield _package(package, install_extra("embedded"))
    size = free_memory() // 2**20
    yield Finding("memory", f"{size} MB free", size >= MEMORY_MB, f"needs {MEMORY_MB} MB")
    size = shutil.disk_usage(SHARED_MEMORY).free // 2**20 if SHARED_MEMORY.is_dir() else 0
    fix = f"needs {SHARED_MEMORY_MB} MB; in Docker: --shm-size=1g"
    yield Finding(str(SHARED_MEMORY), f"{size} MB free", size >= SHARED_MEMORY_MB, fix)
    for name, port in ports.items():
        yield examine_port(name, port)
    yield _gpu()
    for package, fix in OPTIONAL.items():
        yield _package(package, fix, missing=None)


def examine_profile(path: Path) -> Iterator[Finding]:
    """Check a profile, and first all replicas of its remote engines."""
    try:
        with convert_errors(path):
            engines = read_profile(path).engines
        for role, section in engines:
            if isinstance(section, RemoteDraft):
                yield from _replicas(role, section)
        deployment = load(path)
        check_fit(deployment)
    except TandemError as error:
        yield Finding("profile", str(path), good=False, fix=str(error))
    else:
        yield Finding("profile", str(path), good=True)
        if deployment.advice:
            yield Finding("drafts", "vLLM's processes", good=None, fix=deployment.advice)


def _replicas(role: str, section: RemoteDraft) -> Iterator[Finding]:
    first: Reading | None = None
    for reading in section.readings():
        subject, fix = f"{role} at {reading.name}", reading.problem
        if not fix and first and reading.facts != first.facts:
            fix = f"serves another model or version than {first.name}; all replicas must be equal"
        first = first or (reading if reading.facts else None)
        found = "can't be used" if fix else f"serves '{section.model}'"
        yield Finding(subject, found, not fix, fix)


def _triton() -> Finding:
    try:
        install = find_triton()
    except TandemError as error:
        return Finding("Triton", "none", good=False, fix=str(error))
    source = f"{WHEEL} {install.wheel}" if install.wheel else str(install.binary)
    found = f"{install.version} ({source})"
    linked = install.stub_python
    fix = f"its Python models need Python {linked}; use it instead of {PYTHON}"
    return Finding("Triton", found, linked == PYTHON, fix)


def _package(name: str, fix: str, *, missing: bool | None = False) -> Finding:
    """missing: the value of `Finding.good` if the package is missing."""
    try:
        return Finding(name, metadata.version(name), good=True)
    except metadata.PackageNotFoundError:
        return Finding(name, "not installed", missing, fix)


def examine_port(name: str, port: int) -> Finding:
    try:
        claim_ports(Ports(http=port, grpc=0, metrics=0), LOOPBACK)
    except TandemError:
        fix = f"use another --base-port or --{name}-port; 0 picks a free one"
        return Finding(f"{name} port", f"{port} is taken", good=None, fix=fix)
    return Finding(f"{name} port", f"{port} is free", good=True)


def _gpu() -> Finding:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return Finding("GPU", "none", good=None, fix="engines will run on the CPU")
    listed = subprocess.run([smi, "-L"], capture_output=True, text=True, check=False)
    if listed.returncode != 0 or not listed.stdout.strip():
        found = " ".join(listed.stdout.split()) or "nvidia-smi fails"
        return Finding("GPU", found, good=None, fix="fix the driver, or serve on the CPU")
    gpu = listed.stdout.strip().splitlines()[0]
    fix = "PyTorch doesn't see it; install a CUDA build of torch"
    return Finding("GPU", gpu, good=True if count_gpus() else None, fix=fix)
