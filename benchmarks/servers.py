"""Starts servers to measure."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tandem.tools.profiles import deployment
from tandem.tools.profiles.profile import EntrySection, Profile
from tandem.tools.triton import repository
from tandem.tools.triton.server import TritonServer


def entry_name(instances: int) -> str:
    """Return the name of the stream entry with this number of loop processes."""
    return f"loops_{instances}"


@contextmanager
def serving_loops(
    profile: Profile,
    instances: Sequence[int] = (1,),
    change: Callable[[Path], None] = lambda _: None,
    threads: int | None = None,
) -> Iterator[TritonServer]:
    """Serve one stream entry per number of loop processes, all with the same engines.

    change: edits the rendered repository. threads: Triton's threads per model (None: as many as
    needed).
    """
    planned = {
        number: deployment.check(
            profile.model_copy(
                update={
                    "instances": number,
                    "entries": (EntrySection(name=entry_name(number), kind="stream"),),
                }
            )
        )
        for number in instances
    }
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "repository")
        for number, plan in planned.items():
            rendered = Path(folder, str(number))
            repository.render(plan, rendered, link=True)
            if models.exists():
                (rendered / entry_name(number)).rename(models / entry_name(number))
            else:
                rendered.rename(models)
        change(models)
        needed = max(plan.thread_pool_size for plan in planned.values())
        with TritonServer(models, thread_pool_size=threads or needed) as server:
            yield server
