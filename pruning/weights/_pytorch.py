"""Reads PyTorch's files without PyTorch.

The newer format is a zip archive of a pickle and the raw bytes of each storage. The older format is
five consecutive pickles, followed by the storages. Only the functions and types of `NAMES` are
used. Objects that need other functions or types are left out with a warning.
"""

import io
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile, is_zipfile

import ml_dtypes
import numpy as np

from pruning.weights._interpreter import Function, Interpreter, Unknown, dictionary
from pruning.weights._limits import (
    PiecewiseReader,
    WeightsError,
    bytes_of,
    check_bytes,
    entry,
    max_names,
    max_steps,
    n_elements,
)
from pruning.weights._tree import add, leaves, unwrap

MAGIC = 0x1950A86A20F9469CFC6C
STORAGES = {
    "FloatStorage": np.float32,
    "DoubleStorage": np.float64,
    "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    dtype: np.dtype
    size: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _storage(pid: Any) -> _Storage | Unknown:
    match pid:
        case "storage", np.dtype() as dtype, str() | int() as key, _, int() as size, *view if (
            not any(view)
        ):
            return _Storage(str(key), dtype, size)
        case "storage", Unknown() as dtype, *_:
            return dtype
    raise WeightsError(
        "a storage must have a kind, a name and a size, and must not be a view of another storage"
    )


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> Any:
    if type(storage) is Unknown:
        return storage
    if type(storage) is not _Storage or not type(shape) is type(strides) is tuple:
        raise WeightsError("a tensor must have a storage, an offset, a shape and strides")
    if len(shape) != len(strides) or len(shape) > 8:
        raise WeightsError(
            f"a tensor must have at most 8 axes, each with a stride; got {len(shape)} and "
            f"{len(strides)}"
        )
    if not all(type(n) is int and 0 <= n < 2**48 for n in (offset, *shape, *strides)):
        raise WeightsError("the offset, sizes and strides of a tensor must be natural numbers")
    return _Tensor(storage, offset, shape, strides)


NAMES: dict[str, Any] = {
    "collections.OrderedDict": Function(dictionary),
    "torch._utils._rebuild_tensor_v2": Function(_tensor),
    "torch._utils._rebuild_tensor": Function(_tensor),
    "torch._utils._rebuild_parameter": Function(lambda tensor, *_: tensor),
    "torch.Size": Function(lambda sizes: sizes),
    **{f"torch.{name}": np.dtype(dtype) for name, dtype in STORAGES.items()},
}


def read(path: Path, max_bytes: int) -> Mapping:
    with PiecewiseReader(path) as file:
        if is_zipfile(path):
            with ZipFile(file) as archive:
                return _zipped(archive, path, max_bytes)
        return _in_a_row(file, path, max_bytes)


def _interpreter(path: Path, persistent: Callable[[Any], Any] = _storage) -> Interpreter:
    size = path.stat().st_size
    return Interpreter(NAMES, persistent, steps=max_steps(size), max_bytes=8 * max_names(size))


def _zipped(archive: ZipFile, path: Path, max_bytes: int) -> Mapping:
    names = archive.namelist()
    pickles = [name for name in names if name.split("/")[-1] == "data.pkl"]
    if len(pickles) != 1:
        raise WeightsError(f"the file must hold one data.pkl; it holds {len(pickles)}")
    if any(info.compress_type != ZIP_STORED for info in archive.infolist()):
        raise WeightsError("the entries of the file must not be compressed; some are compressed")
    prefix = pickles[0].removesuffix("data.pkl")
    order = prefix + "byteorder"
    if order in names and entry(archive, order, 16).getvalue() != b"little":
        raise WeightsError("the bytes of the file must be in little-endian order")
    interpreter = _interpreter(path)
    tree = interpreter.load(entry(archive, pickles[0], interpreter.max_bytes))

    def content(key: str) -> np.ndarray:
        nonlocal max_bytes
        data = bytes_of(entry(archive, f"{prefix}data/{key}", max_bytes))
        max_bytes -= len(data)
        return data

    return _arrays(tree, content, path.name)


def _in_a_row(file: io.BufferedReader, path: Path, max_bytes: int) -> Mapping:
    storages = []

    def persistent(pid: Any) -> _Storage | Unknown:
        storages.append(_storage(pid))
        return storages[-1]

    interpreter = _interpreter(path, persistent)
    if interpreter.load(file) != MAGIC:
        raise WeightsError("the file must begin with the bytes of a PyTorch file")
    # The next four pickles hold the format version, the machine that wrote the file, the tensors,
    # and the names of their storages.
    _, _, tree, keys = (interpreter.load(file) for _ in range(4))
    sizes = {s.key: s.size * s.dtype.itemsize for s in storages if type(s) is _Storage}
    starts = {}
    for key in keys:
        if type(key) is not str or key not in sizes:
            raise WeightsError("each storage must belong to a tensor; one storage does not")
        starts[key] = file.seek(8, io.SEEK_CUR)  # `seek` skips the number of elements
        file.seek(sizes[key], io.SEEK_CUR)
    check_bytes(path.name, path.stat().st_size, max_bytes)
    data = memoryview(path.read_bytes())
    return _arrays(tree, lambda key: bytes(data[starts[key] :][: sizes[key]]), path.name)


def _arrays(
    tree: Any, content: Callable[[str], bytes | memoryview | np.ndarray], file: str
) -> Mapping:
    """The tensors of a file as arrays by name.

    Objects that cannot be read are left out. A warning names up to five of the left-out objects.
    """
    if not isinstance(tree, Mapping):
        kind = tree.name if type(tree) is Unknown else type(tree).__name__
        raise WeightsError(f"the file must hold a dictionary of tensors; it holds a {kind}")
    unknown = {name: leaf.name for name, leaf in leaves(tree) if type(leaf) is Unknown}
    if unknown:
        listed = ", ".join(f"{name} ({kind})" for name, kind in [*unknown.items()][:5])
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        message = f"{file}: objects that cannot be read were left out: {listed[:400]}{more}"
        warnings.warn(" ".join(message.split()), stacklevel=7)
    content = cache(content)
    arrays = {}
    for name, leaf in leaves(unwrap(tree)):
        if type(leaf) is _Tensor:
            add(arrays, name, _array(leaf, content(leaf.storage.key)))
    return arrays


def _array(tensor: _Tensor, data: bytes | memoryview | np.ndarray) -> np.ndarray:
    dtype = tensor.storage.dtype
    flat = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
    if n_elements(tensor.shape) == 0:
        return np.zeros(0, dtype)
    axes = zip(tensor.shape, tensor.strides, strict=True)
    last = tensor.offset + sum((n - 1) * stride for n, stride in axes)
    if n_elements(tensor.shape) > flat.size or last >= flat.size:
        raise WeightsError(
            f"a tensor of shape {tensor.shape} must fit its storage of {flat.size} elements"
        )
    steps = [stride * dtype.itemsize for stride in tensor.strides]
    return np.lib.stride_tricks.as_strided(
        flat[tensor.offset :], tensor.shape, steps, writeable=False
    )
