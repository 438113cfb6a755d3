"""Read and write folders in Hugging Face's format, one tensor at a time.

A safetensors file begins with the length of a JSON header. For each tensor, the header has the
name, the dtype, the shape and the two offsets of its bytes. Files are not memory-mapped, so a
process needs memory only for the arrays that it has read.
"""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

from experiments import files
from experiments.cli import InputError

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
HEADER_BYTES = 2**17  # The bytes at the start of a new shard that are reserved for the JSON header.
TENSOR_BYTES = 200  # The largest number of bytes of one tensor's entry in the header.
SHARD_BYTES = 4 * 2**30
NOT_COPIED = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")


class Tensor(NamedTuple):
    """The place of a tensor in a file."""

    path: Path
    start: int
    dtype: np.dtype
    shape: tuple[int, ...]

    def read(self) -> np.ndarray:
        """The elements of the tensor, in the dtype of the file.

        Raises:
          InputError: The file has become shorter since its header was read.
        """
        array = np.empty(self.shape, self.dtype)
        with self.path.open("rb") as file:
            file.seek(self.start)
            if array.size and file.readinto(as_bytes(array)) != array.nbytes:
                raise InputError(f"{self.path} must not change while it is read; it became shorter")
        return array


Tensors = dict[str, Tensor]


def read_config(folder: Path) -> dict[str, Any]:
    """The contents of the folder's `config.json`.

    Raises:
      InputError: The folder has no `config.json`.
    """
    config = files.read_json(folder / "config.json", dict)
    if config is None:
        raise InputError(f"the folder of a model must have a config.json; {folder} has none")
    return config


def tensors(folder: Path) -> Tensors:
    """The tensors of a folder by name, in one file or in the shards that the index lists.

    Raises:
      InputError: The folder has no weights, a shard or a tensor that the index lists is missing, or
        a file is damaged.
    """
    index = files.read_json(folder / INDEX, dict)
    if index is None:
        if not (folder / SINGLE).is_file():
            raise InputError(f"{folder} must have {SINGLE} or {INDEX}; it has neither")
        return shard(folder / SINGLE)
    placed = index.get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise InputError(f"{folder / INDEX} must have a weight_map; it has none")
    names = sorted(set(map(str, placed.values())))
    missing = [name for name in names if not (folder / Path(name).name).is_file()]
    if missing:
        raise InputError(
            f"all {len(names)} shards of {INDEX} must be in {folder}; {len(missing)} are missing, "
            f"such as {missing[0]}"
        )
    found = {k: t for name in names for k, t in shard(folder / Path(name).name).items()}
    if absent := sorted(placed.keys() - found.keys()):
        raise InputError(
            f"the shards must hold every tensor of {INDEX}; {len(absent)} are missing, such as "
            f"{absent[0]}"
        )
    return found


def shard(path: Path) -> Tensors:
    """The tensors of one safetensors file by name; their dtypes must be in `DTYPES`.

    Raises:
      InputError: The file is truncated or damaged, or has a dtype that is not supported.
    """
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, size)))
        header.pop("__metadata__", None)
        dtypes = {entry["dtype"] for entry in header.values()}
        if unknown := sorted(dtypes - DTYPES.keys()):
            raise InputError(
                f"the tensors of {path} must have a dtype of {', '.join(DTYPES)}; "
                f"got {unknown[0]!r}"
            )
        found = {
            name: Tensor(
                path,
                8 + length + entry["data_offsets"][0],
                DTYPES[entry["dtype"]],
                tuple(entry["shape"]),
            )
            for name, entry in header.items()
        }
    except KeyError as error:
        raise InputError(
            f"{path} must be a whole safetensors file; a tensor in its header has no {error}"
        ) from error
    except (ValueError, AttributeError, TypeError, IndexError) as error:
        raise InputError(f"{path} must be a whole safetensors file; {error}") from error
    end = max((t.start + n_bytes(t) for t in found.values()), default=8 + length)
    if end > size:
        raise InputError(
            f"{path} must have the {end} bytes that its header declares; it has {size}"
        )
    return found


def n_bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * tensor.dtype.itemsize


def as_bytes(array: np.ndarray) -> memoryview:
    """A view of a contiguous array of any dtype as bytes, without a copy."""
    return memoryview(array.reshape(-1).view(np.uint8))  # pyright: ignore[reportArgumentType]


@contextmanager
def staging(folder: Path, *, replace: bool = False) -> Iterator[Path]:
    """A context with a temporary folder inside `folder`, whose files move to `folder` at the end.

    The moved files replace files with the same names. `config.json` is moved last, because readers
    begin with this file. If the body of the `with` statement raises an error, no file moves.

    Args:
      folder: The destination, which must exist.
      replace: Whether `folder` is allowed to have a model already. The new files must have the same
        names as the old files.

    Raises:
      InputError: The folder already has a model, and `replace` is false.
    """
    if not replace and (folder / "config.json").exists():
        raise InputError(f"--out must be a folder without a model; {folder} has a config.json")
    for left in folder.glob(".unfinished-*"):  # a killed command has left this folder
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as name:
        yield Path(name)
        made = sorted(Path(name).iterdir(), key=lambda path: path.name == "config.json")
        for path in made:
            os.replace(path, folder / path.name)
    files.sync(folder)


def write(
    folder: Path, arrays: Iterable[tuple[str, np.ndarray]], *, shard_bytes: int = SHARD_BYTES
) -> int:
    """Write tensors to files (shards) in the given order, and then write the index.

    The function returns the number of elements of all tensors.
    """
    placed: dict[str, int] = {}
    elements = total = 0
    stream, number = iter(arrays), 0
    for first in stream:
        number += 1
        path = folder / f"shard-{number}"
        with files.name_path(path), path.open("wb") as file:
            for name, array in fill(file, first, stream, shard_bytes):
                placed[name] = number
                elements, total = elements + array.size, total + array.nbytes
            file.flush()
            os.fsync(file.fileno())
    names = {i: f"model-{i:05}-of-{number:05}.safetensors" for i in range(1, number + 1)}
    for i, name in names.items():
        (folder / f"shard-{i}").rename(folder / name)
    index = {
        "metadata": {"total_parameters": elements, "total_size": total},
        "weight_map": {name: names[i] for name, i in placed.items()},
    }
    files.write(folder / INDEX, json.dumps(index, indent=2) + "\n")
    return elements


def fill(
    file: BinaryIO,
    first: tuple[str, np.ndarray],
    stream: Iterator[tuple[str, np.ndarray]],
    shard_bytes: int,
) -> Iterator[tuple[str, np.ndarray]]:
    """Write tensors to one shard until it is full, then write its header; yield each tensor."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    file.write(b" " * (8 + HEADER_BYTES))
    at, following = 0, first
    while following is not None:
        name, array = following
        file.write(as_bytes(np.ascontiguousarray(array)))
        end = at + array.nbytes
        header[name] = {
            "dtype": DTYPE_NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [at, end],
        }
        at = end
        yield name, array
        full = at >= shard_bytes or len(header) * TENSOR_BYTES > HEADER_BYTES - TENSOR_BYTES
        following = None if full else next(stream, None)
    text = json.dumps(header).encode()
    file.seek(0)
    file.write(HEADER_BYTES.to_bytes(8, "little") + text)  # the JSON text is followed by spaces


def copy_others(source: Path, target: Path) -> None:
    """Copy a model's files other than weights and `config.json`, such as tokenizer and licence."""
    for path in sorted(source.iterdir()):
        weights = path.name.endswith(NOT_COPIED) or path.name.endswith(".index.json")
        if path.is_file() and not weights and path.name not in ("config.json", files.LOCK):
            shutil.copyfile(path, target / path.name)
