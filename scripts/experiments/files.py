"""Write files completely or not at all, check JSON, and lock folders for one run at a time.

The files of a run survive a kill, a full disk and a power failure at any time. Each file is written
under a temporary name, synchronized with the disk, and then renamed. In a bucket, a file is one
object, which is always replaced as a whole.
"""

import errno
import fcntl
import json
import math
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from experiments import storage
from experiments.cli import InputError, sentence

Kind = TypeVar("Kind", dict, list)

LOCK = ".in-use"
WIDTH = 100  # The maximum number of characters in a line with more than one record.
# A list of at least `CURVE` numbers is a curve. Pages do not quote the numbers of a curve, so these
# numbers are written with fewer digits than other numbers.
CURVE = 9
# Some network file systems raise these errors when a file is locked.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def write(path: Path, text: str) -> None:
    """Write a file in an existing folder; readers see either the old file or the complete new file.

    Raises:
      InputError: `path` is in a bucket that cannot be written.
    """
    if storage.is_remote(path):
        with storage.reachable(path):
            path.write_bytes(text.encode())
        return
    temporary = path.with_name(f".{path.name}.part")
    temporary.unlink(missing_ok=True)
    try:
        with name_path(path), temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def append(path: Path, text: str) -> None:
    """Append text to a file in an existing folder.

    In a bucket, the whole object is written again.

    If the process is killed while `append` runs, the last line of a local file can be incomplete.

    Raises:
      InputError: `path` is in a bucket that cannot be written.
    """
    if storage.is_remote(path):
        write(path, (read_bytes(path) or b"").decode() + text)
        return
    with name_path(path), path.open("a", encoding="utf-8") as file:
        file.write(text)


@contextmanager
def name_path(path: Path) -> Iterator[None]:
    """A context that adds `path` to errors of the operating system, because some name no file."""
    try:
        yield
    except OSError as error:
        if not path.parent.exists():
            raise InputError(
                f"{path.parent} must remain while a run uses it; it was moved or removed"
            ) from error
        error.filename = path
        raise


def sync(path: Path) -> None:
    """Wait until the contents of a file, or the names in a folder, are written to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_bytes(path: Path) -> bytes | None:
    """The bytes of a file; None if the file does not exist.

    Raises:
      InputError: `path` is in a bucket that cannot be read.
    """
    with storage.reachable(path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def read_json(path: Path, kind: type[Kind]) -> Kind | None:
    """The contents of a JSON file; None if the file does not exist.

    Raises:
      InputError: The file cannot be read, or the JSON in the file is not of the expected type.
    """
    content = read_bytes(path)
    if content is None:
        return None
    try:
        value: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} must be JSON in UTF-8; {error}: restore the file from a copy"
        ) from error
    if not isinstance(value, kind):
        found = type(value).__name__
        raise InputError(f"{path} must hold a JSON {kind.__name__}; its type is {found}")
    return value


@contextmanager
def in_use(folder: Path, script: str | None = None) -> Iterator[Callable[[], None]]:
    """Make a folder, and lock the folder for this process.

    The `with` statement receives a function that checks the folder. Every script with `--out`
    enters the context `in_use` before the script computes anything. The operating system releases
    the lock when the process ends, for any reason. A folder of a bucket cannot be locked. In a
    bucket, the check only detects whether another process has already used the folder.

    Args:
      folder: The folder of `--out`.
      script: The file of the script, if the script writes `results.json` to the folder. A folder
        with a different script's results is refused, because these results would be lost.

    Raises:
      InputError: Another process uses the folder, the folder cannot be written, or the folder holds
        the results of a different script. The check raises `InputError` if the folder no longer
        exists, or if another process has used the folder of a bucket.
    """
    owner = f"process {os.getpid()} on {socket.gethostname()}"
    locked = _signed if storage.is_remote(folder) else _locked
    with locked(folder, owner) as check:
        if script is not None:
            _check_results(folder, f"scripts/{Path(script).name}")
        yield check


def _check_results(folder: Path, command: str) -> None:
    results = read_json(folder / "results.json", dict)
    if results is None:
        others = ("index.html", "config.json")  # a page has index.html, and a model has config.json
        made = next((name for name in others if read_bytes(folder / name) is not None), None)
        other = made and f"{made}, but no results.json"
    else:
        by = str(results.get("command", "another program"))
        other = None if command in by.split() else f"results.json by {by}"
    if other:
        raise InputError(
            f"--out must be a new folder or a folder with results of {command}; {folder} has "
            f"{other}"
        )


@contextmanager
def _signed(folder: Path, owner: str) -> Iterator[Callable[[], None]]:
    path, owner = folder / LOCK, f"{owner}, {secrets.token_hex(4)}"
    write(path, owner)

    def check() -> None:
        other = (read_bytes(path) or b"nobody").decode()
        if other != owner:
            raise InputError(
                f"--out must be used by one run at a time; {other} replaced the signature of this "
                f"run in {path}"
            )

    yield check


@contextmanager
def _locked(folder: Path, owner: str) -> Iterator[Callable[[], None]]:
    path, is_new = folder / LOCK, not folder.exists()
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
            other = file.readline().strip() or "another process"
            raise InputError(f"--out must not be in use; {other} uses {folder}") from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        file.truncate(0)
        file.write(f"{owner}\n")
        file.flush()
        inode = os.fstat(file.fileno()).st_ino

        def check() -> None:
            if not path.exists() or path.stat().st_ino != inode:
                raise InputError(f"--out must not be removed during a run; {folder} was removed")

        try:
            yield check
        except InputError:
            # `rmdir` fails if the folder has results; `unlink` and `rmdir` fail if the folder was
            # removed.
            with suppress(OSError):
                if is_new:
                    path.unlink()
                    folder.rmdir()
            raise


def check_model(model: Path, out: Path) -> None:
    """Raise InputError if a model is not a folder, or if `--out` would replace its files."""
    if not model.is_dir():
        raise InputError(f"the model must be a folder; there is none at {model}")
    if model.resolve() == out.resolve():
        raise InputError(
            f"--out must be another folder than the model's, whose files would be replaced; got "
            f"{out} for both"
        )


def is_in_use(folder: Path) -> bool:
    """Whether a process of this machine uses a folder."""
    try:
        with open(folder / LOCK, encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError as error:
        return error.errno not in NO_LOCKS
    return False


def write_results(path: Path, results: Mapping[str, object]) -> None:
    """Write measured results in the format of `results_text`."""
    write(path, results_text(results))


def results_text(results: Mapping[str, object]) -> str:
    """Results as JSON text with one line for each record or short value.

    A record is a list or a mapping of numbers and texts. The text is easy to read and to compare.
    Fractions have nine significant digits, because nine digits identify every float32. A list of at
    least `CURVE` numbers is a curve, and the fractions of a curve have six significant digits.
    """
    return indented(rounded(plain(results)), "") + "\n"


def rounded(value: Any, digits: int = 9) -> Any:
    """The `value`, with fractions rounded to `digits` significant digits.

    In curves, fractions are rounded to six significant digits.
    """
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item, digits=6 if len(value) >= CURVE else 9) for item in value]
    if isinstance(value, float) and not value.is_integer():
        return float(f"{value:.{digits}g}")
    return value


def indented(value: Any, margin: str) -> str:
    """The JSON text of a value; each line except the first starts with `margin`."""
    line = json.dumps(value, allow_nan=False)
    if not isinstance(value, dict | list) or len(margin + line) <= WIDTH:
        return line
    parts = value.values() if isinstance(value, dict) else value
    if not any(isinstance(item, dict | list) for item in parts):
        return line
    inner, (opening, closing) = margin + " ", (line[0], line[-1])
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {indented(item, inner)}" for key, item in value.items()]
    else:
        items = [indented(item, inner) for item in value]
    lines = ",\n".join(inner + item for item in items)
    return f"{opening}\n{lines}\n{margin}{closing}"


def plain(value: Any) -> Any:
    """Convert `value` to types that JSON has.

    Arrays become lists, and numbers that are not finite become None.
    """
    match value:
        case None | str() | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case _:
            return plain(value.tolist())
