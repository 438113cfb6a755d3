"""PyTorch's files without PyTorch: a pickle of tensors, by an interpreter that knows nothing else.

The newer format is a zip archive of a pickle and the raw bytes of each storage; the older is five
pickles in a row and the storages after them. Before a pickle is interpreted its opcodes are read:
those that call, build or look up anything but what a state dictionary needs are refused, as are
claims of more memory than the file can fill. What it may name are the functions in `KNOWN`.
"""

import io
import pickle
import pickletools
import re
import struct
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZIP_STORED, ZipFile, is_zipfile

import ml_dtypes
import numpy as np

from pruning.weights._limits import WeightsError, allowed, entry

MAGIC = 0x1950A86A20F9469CFC6C
OPCODES = re.compile(
    "PROTO|FRAME|MARK|STOP|POP|(STACK_)?GLOBAL|REDUCE|BUILD|BINPERSID|NONE|NEWTRUE|NEWFALSE"
    "|BININT[12]?|LONG1|BINFLOAT|(SHORT_)?BIN(UNICODE|STRING)|EMPTY_(TUPLE|LIST|DICT)|TUPLE[123]?"
    "|APPENDS?|SETITEMS?|(LONG_)?BIN(PUT|GET)|MEMOIZE"
)
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


class _Dictionary(dict):
    """An OrderedDict, whose attributes are left out."""

    def __setstate__(self, state: object) -> None:
        pass


class _Storage(NamedTuple):
    key: str
    dtype: Any
    size: int


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
    numbers = (offset, *shape, *strides)
    if not isinstance(storage, _Storage) or not all(
        type(n) is int and 0 <= n < 2**48 for n in numbers
    ):
        raise WeightsError("a tensor must have a storage, an offset, a shape and strides")
    if len(shape) != len(strides) or len(shape) > 8:
        raise WeightsError(f"a tensor must have as many strides as axes; got {shape}, {strides}")
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): _Dictionary,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    ("torch", "Size"): tuple,
    **{("torch", name): dtype for name, dtype in STORAGES.items()},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in KNOWN:
            raise WeightsError(f"the file must hold tensors only; it names {module}.{name}"[:200])
        return KNOWN[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _, size, *_ = pid
        if kind != "storage" or type(size) is not int or dtype not in STORAGES.values():
            raise WeightsError("a storage must have a kind, a name and a size")
        return _Storage(str(key), np.dtype(dtype), size)


def read(path: Path) -> Mapping:
    tree, storage = _zipped(path) if is_zipfile(path) else _in_a_row(path)
    if not isinstance(tree, Mapping):
        raise WeightsError(f"it must be a dictionary of tensors; it holds a {type(tree).__name__}")
    return _filled(tree, storage, allowed(path))


def _zipped(path: Path) -> tuple[Any, Callable[[_Storage], bytes]]:
    archive, limit = ZipFile(path), path.stat().st_size
    pickles = [name for name in archive.namelist() if name.split("/")[-1] == "data.pkl"]
    if len(pickles) != 1:
        raise WeightsError(f"it must hold one data.pkl; it holds {len(pickles)}")
    if any(info.compress_type != ZIP_STORED for info in archive.infolist()):
        raise WeightsError("its entries must be stored as they are; some are compressed")
    prefix = pickles[0].removesuffix("data.pkl")
    order = prefix + "byteorder"
    if order in archive.namelist() and entry(archive, order, 16) != b"little":
        raise WeightsError("its bytes must be in little-endian order")
    tree = _unpickled(io.BytesIO(entry(archive, pickles[0], limit)))
    return tree, lambda storage: entry(archive, f"{prefix}data/{storage.key}", limit)


def _in_a_row(path: Path) -> tuple[Any, Callable[[_Storage], bytes]]:
    file = io.BytesIO(path.read_bytes())
    if _unpickled(file) != MAGIC:
        raise WeightsError("it must begin as PyTorch's files do")
    # The version, the machine that wrote it, the tensors, the names of their storages.
    _, _, tree, keys = (_unpickled(file) for _ in range(4))
    starts = {}
    storages = [tensor.storage for _, _, tensor in _tensors(tree)]
    sizes = {s.key: s.size * s.dtype.itemsize for s in storages}
    for key in keys:
        (count,) = struct.unpack("<q", file.read(8))
        starts[str(key)] = file.tell()
        size = sizes.get(str(key), -1)
        if size < 0 or count < 0:
            raise WeightsError(f"storage {key} must belong to a tensor"[:200])
        file.seek(size, io.SEEK_CUR)
    data = file.getvalue()
    return tree, lambda s: data[starts[s.key] : starts[s.key] + sizes[s.key]]


def _unpickled(file: io.BytesIO) -> Any:
    """The next pickle of the file, if its opcodes are known and its memo is no larger than it."""
    start = file.tell()
    for step, (opcode, argument, at) in enumerate(pickletools.genops(file)):
        if not OPCODES.fullmatch(opcode.name):
            raise WeightsError(f"a pickle of tensors must do without {opcode.name} (byte {at})")
        if opcode.name == "LONG_BINPUT" and int(str(argument)) > step:
            raise WeightsError(f"a pickle must number its parts in turn; got {argument}")
        if step > 10**7:
            raise WeightsError("a pickle of tensors must have at most ten million steps")
    pickled = file.getvalue()[start : file.tell()]
    return _Unpickler(io.BytesIO(pickled), encoding="latin-1").load()


def _tensors(tree: Any) -> list[tuple[dict, Any, _Tensor]]:
    """Every tensor in nested dictionaries and lists, with its container and its key there."""
    tensors, rest, seen = [], [tree], set()
    while rest:
        node = rest.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        match node:
            case dict():
                children = list(node.items())
            case list():
                children = list(enumerate(node))
            case _:
                children = []
        tensors += [(node, key, child) for key, child in children if type(child) is _Tensor]
        rest += [child for _, child in children if type(child) is not _Tensor]
    return tensors


def _filled(tree: Mapping, storage: Callable[[_Storage], bytes], limit: int) -> Mapping:
    """The tree with its tensors as arrays, of at most `limit` bytes together."""
    read = cache(storage)
    for node, key, tensor in _tensors(tree):
        node[key] = _array(tensor, read(tensor.storage))
        limit -= node[key].nbytes
        if limit < 0:
            raise WeightsError("its tensors must not be far larger than the file")
    return tree


def _array(tensor: _Tensor, data: bytes) -> np.ndarray:
    dtype = tensor.storage.dtype
    flat = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
    size = int(np.prod(tensor.shape, dtype=object))
    if size == 0:
        return np.zeros(0, dtype)
    axes = zip(tensor.shape, tensor.strides, strict=True)
    last = tensor.offset + sum((n - 1) * stride for n, stride in axes)
    if size > flat.size or last >= flat.size:
        raise WeightsError(
            f"a tensor of shape {tensor.shape} must fit its storage of {flat.size} elements"
        )
    steps = [stride * dtype.itemsize for stride in tensor.strides]
    view = np.lib.stride_tricks.as_strided(flat[tensor.offset :], tensor.shape, steps)
    return np.ascontiguousarray(view)
