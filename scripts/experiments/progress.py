"""Show the progress of a script by a bar on the standard error."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column
from rich.text import Text

from experiments.texts import printable

BETWEEN_LINES = 60.0  # the smallest number of seconds between two lines


class Stages:
    """A progress bar whose unit of work is the training of one epoch.

    A `Stages` object also measures the seconds of every stage.
    """

    def __init__(self, progress: Progress, units: float):
        self.progress = progress
        self.task = progress.add_task("starting", total=units)
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Show the description of a stage while the stage runs, and then print the stage's time."""
        self.describe(name)
        if not self.progress.console.is_terminal:
            self.log(f"{name} ...")
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start
        self.log(f"{name}: {self.seconds[name]:.1f} s")

    def describe(self, description: str) -> None:
        """Show a description of the current work next to the bar."""
        self.progress.update(self.task, description=description)

    def advance(self, units: float = 1) -> None:
        self.progress.advance(self.task, units)

    def reach(self, units: float) -> None:
        """Move the bar to the position at which `units` units of work are finished."""
        self.progress.update(self.task, completed=units)

    def log(self, line: str) -> None:
        """Print a line above the bar."""
        print_above(self.progress, line)


class TrainingView:
    """A display that shows the progress of `loop.train` on the bar of a `Stages` object.

    The bar also counts `earlier` epochs, which other networks have already finished.
    """

    def __init__(self, stages: Stages, steps_per_epoch: int, earlier: int = 0):
        self.stages, self.steps_per_epoch, self.earlier = stages, steps_per_epoch, earlier
        self.log = stages.log

    def update(self, steps: int, description: str, numbers: str) -> None:
        """Move the bar to the position after `steps` steps of the current network."""
        self.stages.reach(self.earlier + steps / self.steps_per_epoch)


def print_above(progress: Progress, line: str) -> None:
    """Print a line above a bar, unchanged and without wrapping."""
    progress.console.print(printable(line), soft_wrap=True)


class Bar(Progress):
    """A progress bar on a terminal.

    If the standard error is not a terminal, an update prints a line instead, but at most one line
    each minute.
    """

    said: float | None = None

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Update a task of the bar; if no bar is shown, print a line instead."""
        super().update(task_id, **changes)
        self._say(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """Advance a task of the bar; if no bar is shown, print a line instead."""
        super().advance(task_id, advance)
        self._say(task_id)

    def _say(self, task_id: TaskID) -> None:
        now = time.monotonic()
        if self.disable or self.console.is_terminal:
            return
        if self.said is None or now - self.said >= BETWEEN_LINES:
            self.said = now
            task = next(task for task in self.tasks if task.id == task_id)
            parts = (task.description, f"{task.percentage:.0f} %", *task.fields.values())
            print_above(self, ", ".join(filter(None, parts)))


class Remaining(ProgressColumn):
    """A column of a progress bar that shows the remaining time, if the time is known."""

    def render(self, task: Task) -> Text:
        """A text such as "still 0:01:30", or an empty text."""
        seconds = task.time_remaining
        return Text(f"still {timedelta(seconds=round(seconds))}" if seconds else "")


def progress_bar(*fields: str, disable: bool = False) -> Progress:
    """A bar with the elapsed and the remaining time, and with the values of the tasks' `fields`."""
    columns = (
        text("{task.description}"),
        BarColumn(6 if fields else 20),
        *(text(f"{{task.fields[{name}]}}") for name in fields),
        TimeElapsedColumn(),
        Remaining(),
    )
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    return Bar(*columns, console=console, disable=disable)


def text(template: str) -> TextColumn:
    """A column of text that is shown unchanged, without markup, and wrapped if it is too long."""
    return TextColumn(template, markup=False, table_column=Column(overflow="fold"))
