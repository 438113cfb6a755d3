"""Folders on object storage, `gs://` and `s3://`, beside those of this machine.

A remote folder is an `etils.epath.Path`, which has the methods of `pathlib.Path` that are used here
and reads and writes through fsspec (gcsfs, s3fs). An object appears whole or not at all, and is
replaced whole. There is no append, no lock, no folder without a file, and renaming is copying.
"""

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from experiments.cli import InputError

SCHEMES = ("gs", "s3")
CLIENTS = ("gcsfs", "s3fs")


def location(text: str) -> Path:
    """A folder or file of this machine, also by `file://`, or of a bucket.

    Raises:
      InputError: The scheme is not supported, or the bucket is missing.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        return Path(text)
    if scheme == "file" and rest.startswith("/"):
        return Path(unquote(rest))
    if scheme not in SCHEMES or rest[:1] in ("", "/"):
        raise InputError(
            f"a path must be local or begin with file:///, gs://BUCKET or s3://BUCKET; got {text}"
        )
    from etils import epath

    for client in CLIENTS:  # these clients log their own exceptions with a traceback
        logging.getLogger(client).setLevel(logging.CRITICAL + 1)
    return cast(Path, epath.Path(text))


def local(text: str) -> Path:
    """A folder or file of this machine.

    Raises:
      InputError: The path is in a bucket, or the scheme is unknown.
    """
    path = location(text)
    if is_remote(path):
        raise InputError(f"a path of this option must be local; got {text}")
    return path


def is_remote(path: Path) -> bool:
    """Whether a path is in a bucket."""
    return str(path).partition("://")[0] in SCHEMES and "://" in str(path)


def absolute(path: Path) -> Path:
    """The path without symbolic links; one of a bucket has none."""
    return path if is_remote(path) else path.resolve()


def make_folder(path: Path) -> None:
    """Make a folder and those above it; in a bucket, names of objects are enough.

    Clients of buckets would make the bucket itself where its name is mistyped.
    """
    if not is_remote(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def reachable(path: Path) -> Iterator[None]:
    """One sentence for the many exceptions of clients of object storage; local ones pass.

    Raises:
      InputError: A remote path cannot be read or written.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if not is_remote(path):
            raise
        reason = str(error).strip().splitlines() or [""]
        raise InputError(
            f"{path} must be reachable; {type(error).__name__}: {reason[0]}"
        ) from error


def copy_local(folder: Path, cache: Path) -> Path:
    """A local copy, in `cache`, of a remote folder that has no folders.

    A file that is there with as many bytes is not copied again; what another process copies
    meanwhile is the same.

    Raises:
      InputError: The remote folder cannot be read.
    """
    scheme, _, name = str(folder).partition("://")
    local = cache / scheme / name
    local.mkdir(parents=True, exist_ok=True)
    with reachable(folder):
        for path in folder.iterdir():
            copy, remote = local / path.name, cast(Any, path.stat())
            if not copy.exists() or copy.stat().st_size != remote.length:
                unfinished = local / f".{path.name}.{os.getpid()}"
                with path.open("rb") as source, unfinished.open("wb") as target:
                    shutil.copyfileobj(source, target, 2**22)
                unfinished.replace(copy)
    return local
