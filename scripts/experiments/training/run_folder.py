"""Use the folder of a run, which has the recipe and, for each seed, a folder with metrics."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments import files, storage
from experiments.cli import InputError
from experiments.data.datasets import Images, identity
from experiments.data.imagenet import Records
from experiments.recipes import Recipe, is_constant
from experiments.training.events import EventLog
from experiments.training.processes import is_main_process

Lines = list[dict[str, Any]]


def prepare(
    out: Path,
    recipe: Recipe,
    data: Images | Records,
    *,
    vmapped_seeds: int,
    images: int | None = None,
    init_from: str | None = None,
) -> None:
    """Write the recipe of a run, or check that the folder has a run of the same recipe.

    A run with a constant learning rate can be continued for more epochs.

    Args:
      out: The folder of the run, which must exist.
      recipe: Recipe of the run.
      data: The data set.
      vmapped_seeds: The number of seeds that are trained together by vmap.
      images: The number of training images, if not all images of the data set are used.
      init_from: A digest of the initial weights, if these weights come from an earlier run.

    Raises:
      InputError: The folder has a run with an unknown recipe, a different recipe or different data.
    """
    path = out / "recipe.json"
    settings = dataclasses.asdict(recipe) | {"vmapped_seeds": vmapped_seeds, "images": images}
    settings |= {"data": identity(data), "init_from": init_from}
    settings = json.loads(json.dumps(settings))
    existing = files.read_json(path, dict)
    trained = has_trained(out)
    if existing is None and trained:
        raise InputError(
            f"{path} must exist, because {trained} exists; without this file, the settings of the "
            "run are unknown"
        )
    if existing is not None and trained:
        before = {"init_from": None} | existing
        others = {name: value for name, value in settings.items() if name != "init_from"}
        refuse_others(out, before | more_epochs(out, recipe, before), others)
        if before["init_from"] != init_from:
            raise InputError(
                f"--init-from must name the run whose weights started the run in {out}, with the "
                "same weights as then"
                if before["init_from"]
                else f"--init-from must be omitted, because the run in {out} started without it"
            )
    elif existing is not None and "vmapped_seeds" not in existing:
        raise InputError(
            f"--out must be a new folder or the folder of a run; {path} is not the recipe of a run"
        )
    # All networks in this folder were trained with the new settings, so the file of the recipe can
    # be replaced.
    if is_main_process() and existing != (existing or {}) | settings:
        files.write(path, json.dumps(settings, indent=1, allow_nan=False) + "\n")


def more_epochs(out: Path, recipe: Recipe, existing: dict[str, Any]) -> dict[str, int]:
    """{"epochs": the number in `recipe`} if the run in `out` has fewer epochs; otherwise {}.

    Raises:
      InputError: The existing run has fewer epochs than `recipe`, and the schedule of the learning
        rate depends on the number of epochs.
    """
    before = existing.get("epochs")
    if not isinstance(before, int) or recipe.epochs <= before:
        return {}
    same = dataclasses.asdict(dataclasses.replace(recipe, epochs=before))
    if not is_constant(recipe) and agree(same, existing):
        raise InputError(
            f"--epochs must remain {before}, because the schedule of learning rates of the run in "
            f"{out} ends there; got {recipe.epochs}: to train the weights of this run further, use "
            f"--init-from {out} and a new --out"
        )
    return {"epochs": recipe.epochs}


def agree(some: dict[str, Any], existing: dict[str, Any]) -> bool:
    """Whether every setting in `some` has the same value in `existing`."""
    return all(existing.get(name) == value for name, value in json.loads(json.dumps(some)).items())


def is_run(folder: Path) -> bool:
    """Whether a folder is the folder of a run."""
    return (folder / "recipe.json").is_file()


def has_trained(out: Path) -> Path | None:
    """The path of a checkpoint or of the results in a run's folder, or None without either."""
    found = [path for path in out.glob("checkpoints-*/*") if path.name.isdigit()]
    found += out.glob("results.json")
    return min(found, default=None)


def refuse_others(out: Path, existing: dict[str, Any], settings: dict[str, Any]) -> None:
    """Raise an error that names all settings that differ from the folder's existing settings.

    Raises:
      InputError: A setting differs.
    """
    if found := list(_differences(existing, settings)):
        raise InputError(
            f"--out must be a new folder or a run of this recipe; {out} has {'; '.join(found)}"
        )


def _differences(existing: dict[str, Any], settings: dict[str, Any]) -> Iterator[str]:
    for name, value in settings.items():
        before = existing.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            yield from _differences(before, value)
        elif name not in existing or before != value:
            said = "seeds in one program (--vmap-seeds)" if name == "vmapped_seeds" else name
            yield f"{said} {before}, not {value}"


def same_data(out: Path, data: Images | Records) -> None:
    """Record the data of the runs in a folder, or check that the data set has not changed.

    Raises:
      InputError: The data set that was recorded in the folder had other contents.
    """
    path, current = out / "data.json", identity(data)
    known = files.read_json(path, dict) or {}
    refuse_others(out, known, {data.name: current} if data.name in known else {})
    if data.name not in known:
        files.write(path, json.dumps(known | {data.name: current}, indent=1) + "\n")


class MetricsLog:
    """The log of one seed, which has the metrics of every epoch.

    The main process writes the metrics to metrics.jsonl and to a file for TensorBoard.
    """

    def __init__(self, folder: Path, lines: Lines, log: Callable[[str], None]):
        """Open the log of a seed; a file that lacks lines is written again.

        Args:
          folder: Folder of the seed.
          lines: The metrics of the epochs before the checkpoint, as the checkpoint stores them.
          log: A function that prints a line. It is called if the file lacks any of `lines`.
        """
        self.path, self.lines = folder / "metrics.jsonl", lines
        self._events: EventLog | None = None
        if not is_main_process():
            return
        storage.make_folder(folder)
        if lines and read_lines(self.path)[: len(lines)] != lines:
            log(f"{self.path} was incomplete; the file is written again from the checkpoint")
            self._write()
        self._events = EventLog(folder / "events", len(lines) + 1)

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *_: object) -> None:
        if self._events:
            self._events.close()

    def add(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        if self._events:
            self._write()
            scalars = {k: v for k, v in line.items() if isinstance(v, float)}
            self._events.add(line["epoch"], scalars)

    def _write(self) -> None:
        files.write(self.path, "".join(json.dumps(line) + "\n" for line in self.lines))


def read_lines(path: Path) -> Lines:
    """The values in a file of JSON lines up to the first invalid line; [] without a file."""
    lines = []
    for text in (files.read_bytes(path) or b"").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines


def lines_of(notes: Sequence[Lines] | None, seeds: int) -> list[Lines]:
    """The metrics of each seed in a checkpoint's notes; empty lists if there are no notes."""
    return [list(lines) for lines in notes] if notes else [[] for _ in range(seeds)]
