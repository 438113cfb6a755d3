"""Writes files in PyTorch's formats, of three arrays or of any pickle, without PyTorch."""

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from typing import Any

import numpy as np

RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(5, 2, 3, 3)).astype(np.float32)
BIAS, MATRIX = (RNG.normal(size=s).astype(np.float32) for s in ((5,), (4, 7)))


class Storage:
    """An array that is pickled like a storage of PyTorch."""

    def __init__(self, key, array, old):
        self.pid = ("storage", Name("torch", "FloatStorage"), key, "cpu", array.size)
        self.pid += (None,) * old


class Name:
    """A global name in a pickle, whose module need not exist."""

    def __init__(self, module, name):
        self.module, self.name = module, name


class Call:
    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments


Python: Any = pickle._Pickler  # pyright: ignore  # the pickler in C cannot be extended


class Pickler(Python):
    def persistent_id(self, obj):
        return obj.pid if isinstance(obj, Storage) else None

    def save(self, obj, save_persistent_id=True):
        if isinstance(obj, Name):
            self.write(f"c{obj.module}\n{obj.name}\n".encode())
        elif isinstance(obj, Call):
            self.save(obj.function)
            self.save(obj.arguments)
            self.write(pickle.REDUCE)
        else:
            super().save(obj, save_persistent_id)


def pickled(tree):
    file = io.BytesIO()
    Pickler(file, 2).dump(tree)
    return file.getvalue()


def tensor(array, key, *, old=False, shape=None):
    strides = [s // 4 for s in array.strides]
    rebuild = Name("torch._utils", "_rebuild_tensor_v2")
    flat = array.ravel(order="K")
    made = Call(
        rebuild, Storage(key, flat, old), 0, shape or array.shape, tuple(strides), False, {}
    )
    return made if key != "1" else Call(Name("torch._utils", "_rebuild_parameter"), made, True, {})


def tensors(old):
    return OrderedDict(
        {
            "module.conv1.weight": tensor(WEIGHT, "0", old=old),
            "module.fc.weight": tensor(MATRIX.T, "1", old=old),
            "module.conv1.bias": tensor(BIAS, "2", old=old),
        }
    )


def zipped(tree, **entries):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/data.pkl", pickled(tree) if not isinstance(tree, bytes) else tree)
        for key, array in zip("012", (WEIGHT, MATRIX, BIAS), strict=True):
            archive.writestr(f"a/data/{key}", array.tobytes())
        for name, content in entries.items():
            archive.writestr(f"a/{name}", content)
    return file.getvalue()


def in_a_row(tree):
    parts = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, tree, ["0", "1", "2"]]
    data = b"".join(part if isinstance(part, bytes) else pickled(part) for part in parts)
    for array in (WEIGHT, MATRIX, BIAS):
        data += struct.pack("<q", array.size) + array.tobytes()
    return data
