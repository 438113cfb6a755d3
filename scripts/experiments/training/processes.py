"""Connect the processes of one run, and let all processes act equally."""

import ctypes
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments.cli import InputError, say

ENDED = "all processes must run to the end; another process seems to have ended"
# Exceptions of collectives, barriers and connections contain one of these words.
BETWEEN_PROCESSES = re.compile(
    "gloo|nccl|barrier|coordination|connection|socket|unavailable|heartbeat|deadline", re.IGNORECASE
)
WAITING = 120  # The seconds to wait until all processes are connected.
SOURCE = re.compile(r"\[external/[^\]]*\] ")  # The source locations in XLA's messages.


def init_distributed(
    coordinator: str | None, processes: int | None, process: int | None, heartbeat: int
) -> None:
    """Connect to the other processes before any computation.

    Without a coordinator, the function does nothing. If one process is silent for `heartbeat`
    seconds, JAX ends all processes. If process 0 ends, JAX ends all processes at once. Each process
    then prints a sentence and exits with status 2.

    Raises:
      InputError: The other processes cannot be reached.
    """
    if coordinator is None:
        return
    if coordinator != "auto":
        say(f"process {process} waits for {processes} processes at {coordinator}")
    try:
        if coordinator == "auto":
            jax.distributed.initialize(heartbeat_timeout_seconds=heartbeat)
        else:
            jax.distributed.initialize(
                coordinator,
                processes,
                process,
                heartbeat_timeout_seconds=heartbeat,
                initialization_timeout=WAITING,
            )
    except (RuntimeError, ValueError) as error:
        reason = first_line(error)
        raise InputError(
            f"--coordinator must be an address that connects all processes; {reason}"
        ) from error
    ctypes.CDLL(None).signal(signal.SIGABRT, _aborted)


# If another process ends, a thread of JAX aborts this process (SIGABRT). The handler `_aborted`
# catches the signal, prints one sentence and exits with status 2. Python's signal handlers do not
# run in a thread of JAX, so the handler is a C function.
@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _aborted(_: int) -> None:
    os.write(2, f"error: {ENDED}; JAX's message is above\n".encode())
    os._exit(2)


@contextmanager
def together() -> Iterator[None]:
    """A context that turns exceptions caused by other processes into an `InputError`.

    If one process has ended, a computation of several processes fails, and the error is one
    sentence. Exceptions with other causes are raised unchanged.

    Raises:
      InputError: A computation of several processes has failed.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if not jax.distributed.is_initialized() or not BETWEEN_PROCESSES.search(str(error)):
            raise
        raise InputError(f"{ENDED}; {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """The first line of XLA's message, without source locations and without repeated parts."""
    lines = SOURCE.sub("", str(error)).strip().splitlines() or [type(error).__name__]
    parts = [part for part in re.split(r":\s+", lines[0].rstrip(": ")) if part]
    return ": ".join(dict.fromkeys(parts))[:300]


def is_main_process() -> bool:
    """Whether this process is process 0, which alone writes files and prints."""
    return jax.process_index() == 0


def any_process(*flags: bool) -> tuple[bool, ...]:
    """For each flag, whether at least one process has set the flag.

    All processes get the same result, so that they end at the same step.
    """
    if jax.process_count() == 1:
        return flags
    gathered = multihost_utils.process_allgather(np.array(flags))
    return tuple(map(bool, np.asarray(gathered).reshape(-1, len(flags)).max(0).tolist()))
