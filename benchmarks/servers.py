"""Starts servers to measure."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tandem.tools.profiles import deployment
from tandem.tools.profiles.profile import EntrySection, Profile
from tandem.tools.triton import repository
from tandem.tools.triton.server import TritonServer

ENTRY = "loop"  # name of the stream entry


@contextmanager
def serving_loop(
    profile: Profile,
    change: Callable[[Path], None] = lambda _: None,
    threads: int | None = None,
) -> Iterator[TritonServer]:
    """Serve a stream entry.

    change: edits the rendered repository. threads: Triton's threads per model (None: as many as
    needed).
    """
    entries = (EntrySection(name=ENTRY, kind="stream"),)
    planned = deployment.check(profile.model_copy(update={"entries": entries}))
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "repository")
        repository.render(planned, models, link=True)
        change(models)
        with TritonServer(models, thread_pool_size=threads or planned.thread_pool_size) as server:
            yield server
