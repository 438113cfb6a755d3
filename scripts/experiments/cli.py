"""What every script is as a command: one sentence for bad input, and a record of what ran where."""

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import tyro

LIBRARIES = ("jaxnorm", "jax", "flax", "optax", "orbax-checkpoint")


class InputError(Exception):
    """What was asked cannot be done; the message says what must hold and what came."""


@contextmanager
def ending(again: str = "start again to begin anew") -> Iterator[None]:
    """Let errors end the command with a sentence and a status.

    Status 2 on wrong input, 130 where it was interrupted: then `again` says what a new start does.
    """
    try:
        yield
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"stopped; {again}", file=sys.stderr)
        sys.exit(130)


def run(main: Callable[..., None], **words: str) -> None:
    """Call `main` with the command line's arguments, as `ending` has it."""
    with ending(**words):
        tyro.cli(main)


def at_least(least: int, **options: int) -> None:
    """Refuse options below `least`."""
    for name, value in options.items():
        if value < least:
            option = name.replace("_", "-")
            raise InputError(f"--{option} must be at least {least}; got {value}")


def compiled_in(cache: Path) -> None:
    """Keep compiled programs there, unless the environment names another place."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(cache.absolute()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def provenance(script: str) -> dict[str, Any]:
    """Command, date and environment of a run, without the folders of this machine."""
    arguments = (Path(a).name if a.startswith("/") else a for a in sys.argv[1:])
    return {
        "command": " ".join(["python", f"scripts/{Path(script).name}", *arguments]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(),
    }


def environment() -> dict[str, Any]:
    device = jax.devices()[0]
    return versions() | {
        "python": platform.python_version(),
        "device": device.device_kind,
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "commit": commit(),
    }


def versions() -> dict[str, str]:
    return {name: version(name) for name in LIBRARIES}


def commit() -> str:
    """Of the checkout that this script lies in, or why there is none to name."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "not a git checkout"
