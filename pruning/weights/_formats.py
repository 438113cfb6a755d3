"""Readers of safetensors, npz, Flax msgpack, Orbax directories and Keras files: path to tree."""

import io
import logging
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import flax.serialization
import ml_dtypes
import numpy as np
import safetensors as library

from pruning.weights._limits import WeightsError, allowed, entry

DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


def safetensors(path: Path) -> Mapping:
    """The format checks itself: lengths, offsets, the size of the header."""
    arrays = {}
    for name, tensor in library.deserialize(path.read_bytes()):
        if tensor["dtype"] in DTYPES:
            dtype = np.dtype(DTYPES[tensor["dtype"]])
            arrays[name] = np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"])
    return dict(sorted(arrays.items(), key=lambda item: natural(item[0])))


def npz(path: Path) -> Mapping:
    """Arrays in the order in which they were saved; no pickled objects."""
    limit = allowed(path)
    arrays = {}
    with ZipFile(path) as archive:
        for name in archive.namelist():
            data = io.BytesIO(entry(archive, name, limit))
            limit -= data.getbuffer().nbytes
            arrays[name.removesuffix(".npy")] = _npy(data, name)
    return arrays


def _npy(data: io.BytesIO, name: str) -> np.ndarray:
    """An array, after its header is known to claim no more than there is."""
    version = np.lib.format.read_magic(data)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(data)
    rest = data.getbuffer()[data.tell() :]
    size = int(np.prod([int(n) for n in shape], dtype=object))
    if dtype.hasobject or min(shape, default=0) < 0 or size * dtype.itemsize != len(rest):
        raise WeightsError(
            f"{name} must hold the {size} elements that its header claims; it has {len(rest)} "
            f"bytes of {dtype}"
        )
    array = np.frombuffer(rest, dtype)
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


def msgpack(path: Path) -> Mapping:
    tree = flax.serialization.msgpack_restore(path.read_bytes())
    if not isinstance(tree, Mapping):
        raise WeightsError(f"it must be a mapping of weights; it holds a {type(tree).__name__}")
    return tree


def orbax(path: Path) -> Mapping:
    """The newest step of a directory of steps, or the directory itself."""
    import orbax.checkpoint as ocp  # takes a second

    steps = [int(child.name) for child in path.iterdir() if child.name.isdigit()]
    if steps:
        path = path / str(max(steps))
    if (path / "default").is_dir():
        path = path / "default"
    if not (path / "_METADATA").is_file():
        raise WeightsError(
            f"the directory {path.name} must be an Orbax checkpoint; it has no _METADATA"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that shardings are unknown: arrays go to the host
        logging.disable(logging.WARNING)
        try:
            tree = ocp.PyTreeCheckpointer().restore(path.resolve())
        finally:
            logging.disable(logging.NOTSET)
    tree = _natural_tree(tree)
    return tree if isinstance(tree, Mapping) else {"": tree}


def _natural_tree(tree: Any) -> Any:
    match tree:
        case {**entries}:
            names = sorted(entries, key=lambda name: natural(str(name)))
            return {name: _natural_tree(entries[name]) for name in names}
    return tree


def keras(path: Path) -> Mapping:
    with ZipFile(path) as archive:
        return _h5(io.BytesIO(entry(archive, "model.weights.h5", allowed(path))), allowed(path))


def keras_h5(path: Path) -> Mapping:
    return _h5(path, allowed(path))


def _h5(file: Path | io.BytesIO, limit: int) -> Mapping:
    try:
        import h5py
    except ImportError as error:
        raise ImportError("reading Keras files needs h5py: pip install 'jaxnorm[keras]'") from error
    arrays: dict[str, np.ndarray] = {}
    left = limit

    def visit(name: str, item: Any) -> None:
        nonlocal left
        if not isinstance(item, h5py.Dataset) or item.dtype.kind != "f" or "optimizer" in name:
            return
        size = int(np.prod([int(n) for n in item.shape], dtype=object)) * item.dtype.itemsize
        left -= size
        if left < 0 or item.external or item.is_virtual:
            raise WeightsError(
                f"{name} must lie in the file and be no larger; it claims {size} bytes"
            )
        # Old files repeat the layer: conv/conv/kernel:0.
        parts = name.removesuffix(":0").split("/")
        parts = [p for i, p in enumerate(parts) if i == 0 or p != parts[i - 1]]
        arrays[".".join(p for p in parts if p not in ("model_weights", "layers"))] = item[()]

    h5: Any
    with h5py.File(file, "r") as h5:
        h5.visititems(visit)  # follows no links
        group = h5.get("model_weights", h5)
        names = [
            n.decode() if isinstance(n, bytes) else n for n in group.attrs.get("layer_names", [])
        ]
    position = {name: i for i, name in enumerate(names)}
    first = {name: position.get(name.split(".")[0], len(position)) for name in arrays}
    return dict(sorted(arrays.items(), key=lambda item: (first[item[0]], natural(item[0]))))


def natural(name: str) -> list[tuple[int, str]]:
    """A key by which `layer10` follows `layer2`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
