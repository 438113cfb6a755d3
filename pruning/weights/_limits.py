"""Limits on the data that a file may declare, and the error for a file that exceeds a limit.

With the limits, reading a file takes at most 64 MiB of memory plus four times the size of the file.
Reading takes at most a second plus the time to read the bytes of the file.
"""

import io
import math
import shutil
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np

INDEX = ".safetensors.index.json"  # The file that lists the shards has this ending.
MAX_DEPTH = 64  # A deeper tree of arrays is not read.
MAX_INTEGER_KEY = 2**60


class WeightsError(ValueError):
    """The file has no readable weights; the message says why."""


def default_max_bytes(path: Path) -> int:
    """The default limit on the bytes of all arrays.

    The limit on memory is larger by 32 MiB, which names and parsers may need.
    """
    return 32 * 2**20 + 4 * file_bytes(path)


def file_bytes(path: Path) -> int:
    """The size of a file in bytes.

    For an index of shards, the result is the size of all safetensors files in the index's folder.
    """
    if path.name.endswith(INDEX):
        return sum(file.stat().st_size for file in path.parent.glob("*.safetensors"))
    return path.stat().st_size


def max_arrays(size: int) -> int:
    """The limit on the number of arrays in a file of `size` bytes."""
    return 3000 + size // 2**16


def max_steps(size: int) -> int:
    """The limit on a parser's steps for a file of `size` bytes. An array takes about 50 steps."""
    return 64 * max_arrays(size)


def max_names(size: int) -> int:
    """The limit on the bytes of names and shapes in a file of `size` bytes."""
    return 2**20 + size // 2**7


class PiecewiseReader(io.BufferedReader):
    """A file whose `read` raises an error for more than `limit` bytes at once.

    The limit is `max_names(size)`, where `size` is the size of the file. Therefore no memory is
    allocated for a large length that a file only declares.
    """

    def __init__(self, path: Path):
        super().__init__(io.FileIO(path))
        self.limit = max_names(path.stat().st_size)

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > self.limit:
            raise WeightsError(
                f"a name or a directory must have at most {self.limit} bytes; one declares {size}"
            )
        return super().read(size)

    def readline(self, size: int | None = -1, /) -> bytes:
        return super().readline(self.limit)


def entry(archive: ZipFile, name: str, limit: int) -> io.BytesIO:
    """The bytes of an entry of a zip archive. Raise if the entry has more than `limit` bytes."""
    info = archive.getinfo(name)
    if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise WeightsError(f"{name} must be stored or deflated; it is neither")
    check_bytes(name, info.file_size, limit)
    content = io.BytesIO()
    # All bytes are allocated at once, because a growing buffer reserves up to an eighth more.
    if info.file_size:
        content.seek(info.file_size - 1)
        content.write(b"\0")
        content.seek(0)
    with archive.open(name) as file:
        shutil.copyfileobj(file, content, 2**20)
    content.seek(0)
    return content


def bytes_of(content: io.BytesIO) -> np.ndarray:
    """The bytes of `content` as an array, without a copy.

    A `memoryview` is not used, because an error refers to the buffers of the functions that failed.
    When Python 3.13 collects an error that refers to a `memoryview` of an `io.BytesIO`, Python
    prints a `BufferError`.
    """
    return np.frombuffer(content.getbuffer(), np.uint8)


def check_bytes(name: str, size: int, limit: int) -> None:
    """Raise if `size`, the declared bytes of an array or a file, is above the remaining `limit`."""
    if size > limit:
        raise WeightsError(
            f"{name[:100]} must fit into the {max(limit, 0)} bytes that are left of max_bytes; its "
            f"declared size is {size}"
        )


def string_key(key: Any) -> str:
    """A key of a mapping, converted to a string.

    The key is not hashed before its conversion to a string. Python's hash of an integer is known,
    so a file could choose integers that collide. The hash of a string has a random salt in each
    process.
    """
    if type(key) is int and abs(key) > MAX_INTEGER_KEY:
        raise WeightsError("integer keys must lie within ±2**60; one key does not")
    if type(key) not in (str, int):
        raise WeightsError(f"a key must be a string or an integer, not a {type(key).__name__}")
    return str(key)


def n_elements(shape: tuple[int, ...] | list[int]) -> int:
    """The number of elements, without overflow even if the declared sizes are very large."""
    return math.prod(int(n) for n in shape)
