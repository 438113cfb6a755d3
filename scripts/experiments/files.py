"""Files that are written whole or not at all, JSON that is checked, folders of one run at a time.

What a run has written survives a kill, a full disk and a power failure at any moment: a file is
written beside its place, synchronized with the disk, and renamed.
"""

import errno
import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from experiments.cli import InputError, sentence

Kind = TypeVar("Kind", dict, list)

LOCK = ".in-use"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of some network file systems


def write(path: Path, text: str) -> None:
    """Write a file, in a folder that exists: readers see the old one or the new one, whole."""
    temporary = path.with_name(f".{path.name}.part")
    temporary.unlink(missing_ok=True)
    try:
        with named(path), temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Name `path` in errors of the system: those of a write name no file."""
    try:
        yield
    except OSError as error:
        error.filename = path
        raise


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path, kind: type[Kind]) -> Kind | None:
    """What a file of JSON holds, None where there is no file.

    Raises:
      InputError: It cannot be read, or is not JSON of this kind.
    """
    try:
        value: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} must be JSON in UTF-8; {error}") from error
    if not isinstance(value, kind):
        found = type(value).__name__
        raise InputError(f"{path} must hold a JSON {kind.__name__}; it holds one {found}")
    return value


@contextmanager
def in_use(folder: Path) -> Iterator[Callable[[], None]]:
    """Keep a folder, which is made, to this process; the value checks that it is still there.

    The kernel frees a folder when its process ends, however it ends.

    Raises:
      InputError: Another process uses the folder, or it is gone when the check is called.
    """
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"--out must be a folder that can be written; {sentence(error)}"
        ) from error
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            owner = file.readline().strip() or "another process"
            raise InputError(f"--out must not be in use; {owner} uses {folder}") from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        inode = os.fstat(file.fileno()).st_ino

        def check() -> None:
            if not path.exists() or path.stat().st_ino != inode:
                raise InputError(f"--out must remain while it is in use; {folder} was removed")

        yield check
