"""The folder of a run: its recipe, and the metrics of its seeds, of which each has a folder."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from experiments.cli import InputError
from experiments.training.processes import is_main_process
from experiments.training.recipes import Recipe


def prepare(out: Path, recipe: Recipe, *, vmapped_seeds: int, images: int | None = None) -> None:
    """Make the folder of a run, or check that it has a run of the same recipe.

    Args:
      out: The folder.
      recipe: What is trained.
      vmapped_seeds: Number of seeds in one program.
      images: Number of training images, where they are not all of the data set.

    Raises:
      InputError: The folder has a run of another recipe, or cannot be written.
    """
    path = out / "recipe.json"
    settings = dataclasses.asdict(recipe) | {"vmapped_seeds": vmapped_seeds, "images": images}
    settings = json.loads(json.dumps(settings))
    try:
        existing = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        existing = None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} must be the readable recipe of a run; {error}") from error
    if existing is None:
        try:
            if is_main_process():
                write_text(path, json.dumps(settings, indent=1, allow_nan=False) + "\n")
        except OSError as error:
            raise InputError(f"--out must be a folder that can be written; {error}") from error
        return
    for name, value in settings.items():
        if name not in existing or existing[name] != value:
            raise InputError(
                f"--out must be a new folder or a run of this recipe; {out} has {name} "
                f"{existing.get(name)}, not {value}"
            )


class MetricsLog:
    """The metrics of a seed's epochs, in a file and for TensorBoard; the main process writes."""

    def __init__(self, folder: Path, epochs: int):
        """Open the log of a seed whose checkpoint is of the end of epoch `epochs`."""
        self.path = folder / "metrics.jsonl"
        self.lines = read_lines(self.path)[:epochs]
        self._events: SummaryWriter | None = None
        if is_main_process():
            # What an interrupted run wrote after its checkpoint is purged. Names of files differ by
            # seconds: without the suffix, a run resumed within one would overwrite its own file.
            self._events = SummaryWriter(
                str(folder / "events"),
                purge_step=epochs + 1,
                filename_suffix=f".from-epoch-{epochs + 1}",
            )

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *_: object) -> None:
        if self._events:
            self._events.close()

    def add(self, line: dict[str, Any]) -> None:
        """Append the metrics of an epoch."""
        self.lines.append(line)
        if self._events:
            write_text(self.path, "".join(json.dumps(line) + "\n" for line in self.lines))
            for name in line.keys() - {"epoch"}:
                self._events.add_scalar(name, line[name], line["epoch"])
            self._events.flush()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a file that need not exist."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines


def write_text(path: Path, text: str) -> None:
    """Write a file completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
