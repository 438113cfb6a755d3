"""Run scripts, report errors in one sentence, print tables, and record the environment."""

import errno
import functools
import os
import platform
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

import tyro
from rich.console import Console
from rich.table import Table

from experiments import signals
from experiments.texts import printable

START = time.monotonic()
# If the system limits the address space of a process, a command needs a limit of at least this
# number of bytes. The smallest training run needs 2.6 GB of address space.
ADDRESS_SPACE = 4 * 2**30
LIBRARIES = ("jaxnorm", "jax", "flax", "optax", "orbax-checkpoint")


class InputError(Exception):
    """The input is invalid; the message says what must hold and what was given."""


class StoppedError(Exception):
    """A signal asked the run to end; the state of the run is saved."""

    def __init__(self, signum: int):
        super().__init__()
        self.signum = signum


# For each error code of a read or a write, the condition that the path must satisfy.
NEEDS = {
    errno.ENOSPC: "on a disk that has room",
    errno.EDQUOT: "within the quota of a disk",
    errno.EFBIG: "within the limit of a file's size",
    errno.EROFS: "on a file system that can be written",
    errno.EACCES: "one that this user may use",
    errno.EPERM: "one that this user may use",
    errno.ENOTDIR: "below folders, not below a file",
    errno.EISDIR: "a file",
    errno.EEXIST: "a folder, not a file",
    errno.ENOENT: "there",
    errno.EIO: "on a disk that works",
}


def sentence(error: OSError) -> str:
    """An error message that says what must hold for a path, and what the operating system said."""
    path = error.filename or "a file of the run"
    return f"{path} must be {NEEDS.get(error.errno or 0, 'usable')}; {error.strerror or error}"


@contextmanager
def ending(again: str = "start again from the beginning") -> Iterator[None]:
    """If an error occurs, end the script with a sentence and an exit status, without a traceback.

    The status is 2 for invalid input, for files that the system refuses, and if memory runs out.
    After a signal, the status is 128 plus the signal's number. After Ctrl-C, the sentence ends with
    `again`, or says that the state is saved. If the reader of the output has ended, as after `|
    head`, the script prints nothing and ends with the status of SIGPIPE.
    """
    try:
        try:
            with signals.ctrl_c_ends(f"interrupted; {again}"):
                yield
        finally:
            sys.stdout.flush()  # this raises BrokenPipeError if the reader of the pipe has ended
    except InputError as error:
        stop(2, f"error: {error}")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        stop(2, f"error: {sentence(error)}")
    except MemoryError as error:
        said = f"; {error}" if str(error) else ""
        stop(2, f"error: there must be enough memory for this command; it ran out{said}")
    except KeyboardInterrupt:
        stop(128 + signal.SIGINT, f"interrupted; {again}")
    except StoppedError as error:
        word = "interrupted" if error.signum == signal.SIGINT else "terminated"
        stop(128 + error.signum, f"{word}; the state is saved, start again to resume")


def stop(status: int, line: str) -> NoReturn:
    """End the script with an exit status, after printing a line on the standard error."""
    print(printable(line), file=sys.stderr, flush=True)
    jax = sys.modules.get("jax")
    if jax and jax.distributed.is_initialized():
        sys.stdout.flush()
        os._exit(status)  # an ordinary exit would wait for other processes, even dead ones
    sys.exit(status)


def run(main: Callable[..., None], **ending_options: str) -> None:
    """Call `check_start`, then `main` with the command line's options, in the context `ending`."""

    @functools.wraps(main)
    def checked(*args: Any, **options: Any) -> None:
        check_start()
        main(*args, **options)

    with ending(**ending_options):
        tyro.cli(checked)


def check_start() -> None:
    """Raise an error if the environment would make the script fail later, or wait forever.

    Raises:
      InputError: A library whose version is recorded in results is not installed, or the limit on
        the address space is below `ADDRESS_SPACE`. With a smaller address space, threads of a
        library would wait forever for memory.
    """
    versions()
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < ADDRESS_SPACE:
        raise InputError(
            f"a command must have an address space of at least {ADDRESS_SPACE >> 20} MiB; the "
            f"limit is {limit >> 20} MiB (ulimit -v)"
        )


def show_table(
    title: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    min_width: int = 100,
    left: Sequence[str] = (),
) -> None:
    """Print a table that can be `min_width` characters wide, even if the console is narrower.

    The columns `left` are left-justified, and all other columns are right-justified.

    A text that is longer than its column is wrapped and not cut off, because two names can differ
    only at the end.
    """
    table = Table(title=printable(title))
    for column in head:
        side = "left" if column in left else "right"
        table.add_column(printable(column), justify=side, overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    console(min_width).print(table)


def console(min_width: int = 1) -> Console:
    """A console that prints every text unchanged, without reading square brackets as markup."""
    width = max(Console().width, min_width)
    return Console(width=width, markup=False, emoji=False, highlight=False)


def say(*lines: str) -> None:
    """Print lines without wrapping."""
    for line in lines:
        print(printable(line), flush=True)


def compiled_in(cache: Path) -> None:
    """Make JAX store compiled functions in `cache`, unless the environment names a folder."""
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(cache.absolute()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def provenance(script: str) -> dict[str, Any]:
    """The command line, the date and the environment of a run, without this machine's folders."""
    path = Path(script)
    name = f"-m tools.{path.stem}" if path.parent.name == "tools" else f"scripts/{path.name}"
    return {
        "command": " ".join(["python", name, *map(_without_folders, sys.argv[1:])]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(),
    }


def _without_folders(argument: str) -> str:
    """The argument after the folders of an absolute path are removed, also after `--option=`."""
    path = re.sub(r"^--[^=]*=", "", argument)
    option = argument.removesuffix(path)
    return option + Path(path).name if path.startswith("/") else argument


def seconds() -> float:
    """The seconds since the script began."""
    return time.monotonic() - START


def environment() -> dict[str, Any]:
    """The versions, the device and the commit of this run."""
    import jax

    device = jax.devices()[0]
    return versions() | {
        "python": platform.python_version(),
        "device": device.device_kind,
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "commit": commit(),
    }


def versions() -> dict[str, str]:
    """The versions of the libraries that affect results.

    Raises:
      InputError: A library is not installed, for example because Python only finds its code in a
        folder.
    """
    try:
        return {name: version(name) for name in LIBRARIES}
    except PackageNotFoundError as error:
        raise InputError(
            f"{error.name} must be installed, because its version is recorded: pip install -e ."
        ) from error


def commit() -> str:
    """The commit of the checkout that contains this file, or a note that there is no checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "not a git checkout"
