"""One repository with a stream entry for each number of loop processes, over the same engines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from benchmarks.soak.processes import name_of
from tandem.tools.profiles import deployment
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.profiles.profile import EntrySection
from tandem.tools.triton import repository
from tandem.tools.triton.server import TritonServer

TICKS = os.sysconf("SC_CLK_TCK")


def entry_of(instances: int) -> str:
    """Return the name of the stream entry with so many loops."""
    return f"loops_{instances}"


def planned_loops(profile: Path, instances: int) -> Deployment:
    """Return the deployment with so many loops; its stream entry is named after their number."""
    plan = deployment.load(profile).profile
    entry = EntrySection(name=entry_of(instances), kind="stream")
    changes = {"instances": instances, "entries": (entry,)}
    return deployment.check(plan.model_copy(update=changes))


def render_loops(planned: Mapping[int, Deployment], folder: Path) -> Path:
    """Write one repository with the engines, and every stream entry."""
    models = folder / "repository"
    for number, plan in planned.items():
        rendered = folder / str(number)
        repository.render(plan, rendered, link=True)
        if models.exists():
            (rendered / entry_of(number)).rename(models / entry_of(number))
        else:
            rendered.rename(models)
    return models


def processor_seconds(server: TritonServer, entry: str) -> float:
    """Processor time so far of all loops of an entry."""
    fields = [
        Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        for process in server.processes
        if name_of(process) == entry
    ]
    return sum(int(times[11]) + int(times[12]) for times in fields) / TICKS
