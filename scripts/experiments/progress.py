"""The progress bar of a command, on the standard error."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from experiments.texts import printable


class Stages:
    """A progress bar in units of one epoch's training, and the seconds of every stage."""

    def __init__(self, progress: Progress, units: float):
        self.progress = progress
        self.task = progress.add_task("starting", total=units)
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Describe the stage while it runs, time it, and print its time."""
        self.describe(name)
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start
        self.log(f"{name}: {self.seconds[name]:.1f} s")

    def describe(self, description: str) -> None:
        """Show beside the bar what is being done."""
        self.progress.update(self.task, description=description)

    def advance(self, units: float = 1) -> None:
        self.progress.advance(self.task, units)

    def reach(self, earlier: float, units: float) -> None:
        """Move the bar to `units` after `earlier` ones."""
        self.progress.update(self.task, completed=earlier + units)

    def log(self, line: str) -> None:
        """Print a line above the bar."""
        print_above(self.progress, line)


def print_above(progress: Progress, line: str) -> None:
    """Print a line above a bar, as it is and in one piece."""
    progress.console.print(printable(line), soft_wrap=True)


def progress_bar(*fields: str, disable: bool = False) -> Progress:
    """A bar with the time that has passed and that remains; `fields` of its tasks are shown."""
    columns = (
        text("{task.description}"),
        BarColumn(12 if fields else 40),
        *(text(f"{{task.fields[{name}]}}") for name in fields),
        TimeElapsedColumn(),
        text("still"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    return Progress(*columns, console=console, disable=disable)


def text(template: str) -> TextColumn:
    """A column of text as it is, without markup."""
    return TextColumn(template, markup=False)
