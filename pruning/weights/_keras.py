"""Reads Keras's files by h5py's low-level functions.

For small arrays, h5py's low-level functions are four times as fast as its usual functions.
"""

import io
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np

from pruning.weights._formats import natural
from pruning.weights._limits import (
    MAX_DEPTH,
    PiecewiseReader,
    WeightsError,
    bytes_of,
    check_bytes,
    entry,
    max_arrays,
    n_elements,
)

# This pattern matches the first bytes of an HDF5 heap of strings. Group 1 of the match is the size
# of the heap.
HEAP = re.compile(rb"GCOL\x01\0\0\0(.{8})", re.DOTALL)


def keras(path: Path, max_bytes: int) -> Mapping:
    with PiecewiseReader(path) as file, ZipFile(file) as archive:
        content = entry(archive, "model.weights.h5", max_bytes)
    return _h5(content, path.stat().st_size, max_bytes - bytes_of(content).size)


def h5(path: Path, max_bytes: int) -> Mapping:
    return _h5(path, path.stat().st_size, max_bytes)


def _h5(file: Path | io.BytesIO, size: int, max_bytes: int) -> Mapping:
    try:
        import h5py
    except ImportError as error:
        raise ImportError("reading Keras files needs h5py: pip install 'jaxnorm[keras]'") from error
    root: Any
    with h5py.File(file, "r") as root:
        arrays = _arrays(h5py, root, _datasets(h5py, root, size), size, max_bytes)
        content = file.read_bytes() if isinstance(file, Path) else bytes_of(file)
        layers = _layer_names(_weights_group(h5py, root), content, max_bytes)
    position = {name: i for i, name in enumerate(layers)}
    first = {name: position.get(name.split(".")[0], len(position)) for name in arrays}
    return dict(sorted(arrays.items(), key=lambda item: (first[item[0]], natural(item[0]))))


def _datasets(h5py: Any, root: Any, size: int) -> list[bytes]:
    """The paths of all datasets that are not part of an optimizer. Links are not followed."""
    paths, left = [], 4 * max_arrays(size)

    def visit(path: bytes, info: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0 or path.count(b"/") >= MAX_DEPTH or len(path) > 1000:
            raise WeightsError(
                f"the file must have at most {4 * max_arrays(size)} groups and datasets, at most "
                f"{MAX_DEPTH} deep, with paths of at most 1000 bytes; got {path[:60]!r}"
            )
        if info.type == h5py.h5o.TYPE_DATASET and b"optimizer" not in path:
            paths.append(path)

    h5py.h5o.visit(root.id, visit, info=True)
    if len(paths) > max_arrays(size):
        raise WeightsError(
            f"the file must hold at most {max_arrays(size)} arrays; it has {len(paths)}"
        )
    return paths


def _arrays(
    h5py: Any, root: Any, paths: list[bytes], size: int, max_bytes: int
) -> dict[str, np.ndarray]:
    arrays, parts = {}, 4 * max_arrays(size)
    simple = (h5py.h5t.FLOAT, h5py.h5t.INTEGER, h5py.h5t.STRING)
    for path in paths:
        name, dataset = path.decode(), h5py.h5d.open(root.id, path)
        kind = dataset.get_type().get_class()
        if kind != h5py.h5t.FLOAT or dataset.shape is None:
            # A compound datatype counts as 400 parts, because it can have thousands of fields,
            # which are slow to read.
            parts -= 1 if kind in simple else 400
            _check_parts(parts)
            continue
        claimed = n_elements(dataset.shape) * dataset.dtype.itemsize
        check_bytes(name, claimed, max_bytes)
        parts -= _n_chunks(h5py, dataset, name)
        _check_parts(parts)
        max_bytes -= claimed
        array = np.empty(dataset.shape, dataset.dtype)
        dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
        arrays[_name(name)] = array
    return arrays


def _check_parts(left: int) -> None:
    if left < 0:
        raise WeightsError("chunks and types must not exceed the limit for a file of this size")


def _n_chunks(h5py: Any, dataset: Any, path: str) -> int:
    """The number of chunks of a dataset.

    Compressed chunks raise an error, because HDF5 does not limit their size after decompression.
    """
    created = dataset.get_create_plist()
    layout = created.get_layout()
    if created.get_external_count() or layout == h5py.h5d.VIRTUAL:
        raise WeightsError(f"{path} must be stored in the file itself")
    if created.get_nfilters():
        raise WeightsError(f"{path} must be stored uncompressed (h5repack -f NONE writes it so)")
    if layout != h5py.h5d.CHUNKED:
        return 1
    chunk = created.get_chunk()
    return math.prod(-(-n // c) for n, c in zip(dataset.shape, chunk, strict=True))


def _weights_group(h5py: Any, root: Any) -> Any:
    """The group that contains the layers.

    A soft or external link raises an error, because it can open another file.
    """
    name, links = b"model_weights", root.id.links
    if not links.exists(name):
        return root
    if links.get_info(name).type != h5py.h5l.TYPE_HARD:
        raise WeightsError("model_weights must be stored in the file itself; it is a link")
    return root["model_weights"]


def _layer_names(group: Any, content: bytes | np.ndarray, max_bytes: int) -> list[str]:
    """The names of the layers in order.

    HDF5 may store each name in a heap of strings. The check of the total size assumes that all
    names are in the largest heap.
    """
    if "layer_names" not in group.attrs:
        return []
    buffer = memoryview(content)  # pyright: ignore[reportArgumentType]
    heaps = [int.from_bytes(size, "little") for size in HEAP.findall(buffer)]
    count = n_elements(group.attrs.get_id("layer_names").shape)
    check_bytes("layer_names", count * max(heaps, default=1000), max_bytes)
    names = group.attrs["layer_names"]
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names]


def _name(path: str) -> str:
    """The parts of a name except `model_weights` and `layers`, joined by dots.

    Old files repeat the name of the layer, as in `conv/conv/kernel:0`. The result is `conv.kernel`.
    """
    parts = path.removesuffix(":0").split("/")
    parts = [p for i, p in enumerate(parts) if i == 0 or p != parts[i - 1]]
    return ".".join(p for p in parts if p not in ("model_weights", "layers"))
