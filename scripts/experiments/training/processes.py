"""One run in several processes: how they start, and what they decide together."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments.cli import InputError


def check(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Refuse options of which one needs another.

    Raises:
      InputError: A process is numbered without a coordinator, or is not with one.
    """
    numbers = (processes, process)
    if coordinator in (None, "auto"):
        if numbers != (None, None):
            raise InputError("--processes and --process need --coordinator HOST:PORT")
    elif None in numbers:
        raise InputError("--coordinator HOST:PORT needs --processes and --process")


def init_distributed(
    coordinator: str | None, processes: int | None, process: int | None, heartbeat: int
) -> None:
    """Connect to the other processes, before anything is computed; without coordinator, to none.

    JAX ends all processes when one has not been heard of for `heartbeat` seconds.

    Raises:
      InputError: They cannot be reached.
    """
    if coordinator is None:
        return
    try:
        if coordinator == "auto":
            jax.distributed.initialize(heartbeat_timeout_seconds=heartbeat)
        else:
            jax.distributed.initialize(
                coordinator, processes, process, heartbeat_timeout_seconds=heartbeat
            )
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"--coordinator must lead to the other processes; {reason}") from error


@contextmanager
def together() -> Iterator[None]:
    """Say where other processes have ended: what is computed with them fails at once.

    Raises:
      InputError: A computation of several processes has failed.
    """
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if not jax.distributed.is_initialized():
            raise
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"all processes must run to the end, and another one seems to have ended; {reason}"
        ) from error


def is_main_process() -> bool:
    """Whether this process is the one that writes and prints."""
    return jax.process_index() == 0


def any_process(*flags: bool) -> tuple[bool, ...]:
    """For each flag, whether any process has raised it: all must save, and end, at one step."""
    if jax.process_count() == 1:
        return flags
    gathered = multihost_utils.process_allgather(np.array(flags))
    return tuple(map(bool, np.asarray(gathered).reshape(-1, len(flags)).max(0).tolist()))
