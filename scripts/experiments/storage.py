"""Use folders on this machine and in object storage (`gs://`, `s3://`) in the same way.

A remote folder is an `etils.epath.Path`, which reads and writes through fsspec (gcsfs, s3fs). A
remote path has all methods of `pathlib.Path` that this project uses. In object storage, a file is
one object. An object appears completely or not at all, and can only be replaced as a whole. Object
storage cannot append, has no locks and no empty folders, and renames a file by copying the file.
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
    """The path of a folder or file on this machine (`file://` is allowed) or in a bucket.

    Raises:
      InputError: The text is empty, the scheme is not supported, or the bucket is missing.
    """
    if not text.strip():
        raise InputError("a path must not be empty; for the current folder, give a dot")
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

    for client in CLIENTS:  # gcsfs and s3fs log their own exceptions with a traceback
        logging.getLogger(client).setLevel(logging.CRITICAL + 1)
    return cast(Path, epath.Path(text))


def local(text: str) -> Path:
    """The path of a folder or file, which must be on this machine.

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
    """The absolute path without symbolic links; a path in a bucket is returned unchanged."""
    return path if is_remote(path) else path.resolve()


def make_folder(path: Path) -> None:
    """Make a folder and its parents.

    In a bucket, the function does nothing, because folders exist only as parts of objects' names. A
    request for a folder could do harm: if the name of the bucket is mistyped, clients would make a
    new bucket.
    """
    if not is_remote(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def reachable(path: Path) -> Iterator[None]:
    """A context that turns exceptions of object storage into an error of one sentence.

    Exceptions about local paths are raised unchanged.

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
    """Copy a remote folder without subfolders to `cache`, and return the copy's path.

    A file is not copied again if `cache` has a copy of the same size. If another process copies the
    same folder at the same time, both processes write the same bytes.

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
