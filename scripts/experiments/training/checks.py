"""Check options before JAX is imported, because the import of JAX takes seconds."""

import re
from pathlib import Path

from experiments.cli import InputError
from experiments.recipes import STREAMED, Evaluation, Recipe


def check_processes(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Raise an error if the options for several processes are incomplete or out of range.

    Raises:
      InputError: The options are incomplete or exclude each other, the coordinator is neither
        HOST:PORT nor auto, or the number of the process is too large.
    """
    if coordinator is None or coordinator == "auto":
        if (processes, process) != (None, None):
            raise InputError("--processes and --process need --coordinator HOST:PORT")
    elif processes is None or process is None:
        raise InputError("--coordinator HOST:PORT needs --processes and --process")
    elif not re.fullmatch(r"\S+:\d{1,5}", coordinator):
        raise InputError(f"--coordinator must be HOST:PORT or auto; got {coordinator}")
    elif not process < processes:
        raise InputError(f"--process must be from 0 to {processes - 1}; got {process}")


def check_evaluations(recipe: Recipe, evaluations: tuple[Evaluation, ...]) -> None:
    """Raise an error if an evaluation is not possible for the data set or the network.

    Raises:
      InputError: The data set is in memory, or the evaluation uses whole images and the network
        accepts only images of one size.
    """
    if evaluations and recipe.dataset not in STREAMED:
        raise InputError(f"--evaluations needs a streamed data set; {recipe.dataset} is in memory")
    if "whole" in evaluations and recipe.model.startswith("vgg"):
        raise InputError(
            f"--evaluations whole needs a network for images of any size; {recipe.model} has dense "
            "layers, which take images of one size"
        )


def check_trained(out: Path, *, needed: bool) -> None:
    """Raise an error if a checkpoint is `needed` and the run has no checkpoint.

    Raises:
      InputError: A checkpoint is needed, and the folder has no checkpoint.
    """
    if needed and not any(path.name.isdigit() for path in out.glob("checkpoints-*/*")):
        raise InputError(f"--evaluate-only needs a run with a checkpoint; {out} has none")
