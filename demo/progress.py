"""Shows the progress of a long job: a bar on a terminal, otherwise log lines."""

from __future__ import annotations

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class JobProgress(Progress):
    """A bar for `total` steps, of which an earlier run completed `done`."""

    def __init__(self, title: str, total: int, done: int) -> None:
        super().__init__(
            TextColumn(title),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
        )
        self.task = self.add_task("", total=total, completed=done)

    def stepped(self, note: str = "") -> None:
        """Advance the bar by one step, and show `note` next to it."""
        self.update(self.task, advance=1, description=note)

    def milestone(self, line: str) -> None:
        """Print a permanent line, with the seconds since this run began."""
        self.console.print(f"{line} ({self.tasks[0].elapsed or 0:.0f} s)")
