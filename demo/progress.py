"""The progress bar of a long job, or log lines if the output is not a terminal."""

from __future__ import annotations

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class JobProgress(Progress):
    """A bar for `total` steps, `done` of them by an earlier run."""

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
        """Print a line that stays, with the seconds since this run began."""
        self.console.print(f"{line} ({self.tasks[0].elapsed or 0:.0f} s)")
