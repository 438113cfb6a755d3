"""Readers of safetensors, npz, Flax msgpack and Orbax directories.

Each reader is a function from a path to a tree of arrays.
"""

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import ml_dtypes
import numpy as np
import safetensors as library
from flax import traverse_util

from jaxnorm.internal import checkpoints
from pruning.weights._limits import (
    INDEX,
    PiecewiseReader,
    WeightsError,
    bytes_of,
    check_bytes,
    entry,
    file_bytes,
    max_arrays,
    max_names,
    max_steps,
    n_elements,
)
from pruning.weights._msgpack import Parser

# Orbax checkpoints store their weights under one of these names.
ITEMS = ("default", "params", "model", "state")
DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "I64": np.int64,
    "I32": np.int32,
    "U32": np.uint32,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


def safetensors(path: Path, max_bytes: int) -> Mapping:
    """Read a safetensors file. The safetensors library checks lengths, offsets and the header."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
    if header > max_names(size):
        raise WeightsError(f"the header must have at most {max_names(size)} bytes; it has {header}")
    check_bytes(path.name, size, max_bytes)
    arrays = {}
    for name, tensor in library.deserialize(path.read_bytes()):
        if tensor["dtype"] in DTYPES:
            dtype = np.dtype(DTYPES[tensor["dtype"]])
            arrays[name] = np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"])
    return dict(sorted(arrays.items(), key=lambda item: natural(item[0])))


def index(path: Path, max_bytes: int) -> Mapping:
    """Read the shards of a Hugging Face model, which lie in the folder of their index."""
    size, limit = path.stat().st_size, max_names(file_bytes(path))
    if size > limit:
        raise WeightsError(
            f"the file must have at most {limit} bytes without its shards; it has {size}"
        )
    match json.loads(path.read_bytes()):
        case {"weight_map": {**placed}} if placed:
            shards = sorted(set(map(str, placed.values())), key=natural)
        case _:
            raise WeightsError("the file must have a weight_map that names a shard for every array")
    beside = {file.name for file in path.parent.glob("*.safetensors")}
    if missing := [name for name in shards if name not in beside]:
        raise WeightsError(
            f"the {len(shards)} shards must lie in the folder of the index; {len(missing)} are "
            f"missing, such as {missing[0][:100]}"
        )
    arrays: dict[str, np.ndarray] = {}
    for name in shards:
        arrays |= safetensors(path.parent / name, max_bytes)
        max_bytes -= (path.parent / name).stat().st_size
    return dict(sorted(arrays.items(), key=lambda item: natural(item[0])))


def hugging_face(folder: Path) -> Path | None:
    """The file of weights, or the index of shards, in a folder of a Hugging Face model.

    The result is None for other folders.
    """
    single = folder / "model.safetensors"
    indices = sorted(folder.glob(f"*{INDEX}"))
    return single if single.is_file() else indices[0] if len(indices) == 1 else None


def npz(path: Path, max_bytes: int) -> Mapping:
    """Read arrays in the order in which they were saved. Pickled objects raise an error."""
    arrays, limit = {}, max_arrays(path.stat().st_size)
    with PiecewiseReader(path) as file, ZipFile(file) as archive:
        names = archive.namelist()
        if len(names) > limit:
            raise WeightsError(f"the file must hold at most {limit} arrays; it has {len(names)}")
        for name in names:
            data = entry(archive, name, max_bytes)
            max_bytes -= bytes_of(data).size
            arrays[name.removesuffix(".npy")] = _npy(data, name)
    return traverse_util.unflatten_dict(arrays, sep="/")


def _npy(data: io.BytesIO, name: str) -> np.ndarray:
    """Read an array, after a check that the data have exactly the size that the header declares."""
    version = np.lib.format.read_magic(data)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(data)
    rest = bytes_of(data)[data.tell() :]
    size = n_elements(shape)
    if dtype.hasobject or min(shape, default=0) < 0 or size * dtype.itemsize != len(rest):
        raise WeightsError(
            f"{name} must hold the {size} elements that its header declares; it has {len(rest)} "
            f"bytes of {dtype}"
        )
    array = np.frombuffer(rest, dtype)
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


def msgpack(path: Path, max_bytes: int) -> Mapping:
    size = path.stat().st_size
    check_bytes(path.name, size, max_bytes)
    parser = Parser(path.read_bytes(), steps=max_steps(size), max_text=8 * max_names(size))
    tree = parser.value()
    if not isinstance(tree, Mapping):
        raise WeightsError(
            f"the file must hold a mapping of weights; it holds a {type(tree).__name__}"
        )
    if rest := len(parser.data) - parser.at:
        raise WeightsError(f"the file must end after its mapping; {rest} bytes follow")
    return tree


def orbax(path: Path) -> Mapping:
    """Read the weights of the newest step in a directory, or all weights if there are no steps."""
    steps = [int(child.name) for child in path.iterdir() if child.name.isdigit()]
    if steps:
        path = path / str(max(steps))
    items = [child.name for child in path.iterdir() if (child / "_METADATA").is_file()]
    known = [name for name in ITEMS if name in items]
    if known or len(items) == 1:
        path = path / (known or items)[0]
    if not (path / "_METADATA").is_file():
        raise WeightsError(
            f"the directory {path.name} must be an Orbax checkpoint; it has no _METADATA"
        )
    tree = checkpoints.read_tree(path)
    if isinstance(tree, list | tuple):
        raise WeightsError(
            "the arrays must have names, which distinguish weights from an optimizer's state; "
            f"the file holds a list of {len(tree)} arrays"
        )
    tree = _natural_tree(tree)
    return tree if isinstance(tree, Mapping) else {"": tree}


def _natural_tree(tree: Any) -> Any:
    match tree:
        case {**entries}:
            names = sorted(entries, key=lambda name: natural(str(name)))
            return {name: _natural_tree(entries[name]) for name in names}
    return tree


def natural(name: str) -> str:
    """A sort key that orders `layer10` after `layer2`."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(9), name)
