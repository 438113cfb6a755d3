"""Files in every format, made such that a careless reader needs too much time or memory.

Many of the files declare more data than they contain, or are much larger after decompression.
"""

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

from tests.support import crafted_pickles
from tests.support.mutated_files import hdf5, keras
from tests.support.torch_files import WEIGHT


def crafted() -> Iterator[tuple[str, bytes]]:
    """More than a hundred files by name."""
    yield from crafted_pickles.crafted()
    yield from msgpack_files()
    yield from safetensors_files()
    yield from zip_files()
    yield from keras_files()


def extension(payload: bytes, code: int = 1) -> bytes:
    return b"\xc9" + struct.pack(">IB", len(payload), code) + payload


def array(shape: bytes, dtype: bytes = b"\xa7float32", content: bytes = bytes(36)) -> bytes:
    return extension(b"\x93" + shape + dtype + b"\xc6" + struct.pack(">I", len(content)) + content)


def nested_maps() -> bytes:
    """15^5 empty maps inside five levels of lists."""
    value = b"\x80"
    for _ in range(5):
        value = b"\x9f" + 15 * value
    return value


def integers(keys: list[int]) -> bytes:
    """A mapping whose keys are the given integers."""
    pairs = b"".join(b"\xd3" + struct.pack(">q", key) + b"\xc0" for key in keys)
    return b"\xdf" + struct.pack(">I", len(keys)) + pairs


def msgpack_files(n: int = 2 * 10**7) -> Iterator[tuple[str, bytes]]:
    """Crafted msgpack files. The largest files have about `n` bytes."""
    weights = b"\x81\xa1w"
    bodies = {
        "nils": b"\xdd" + struct.pack(">I", n) + b"\xc0" * n,
        "empty-maps": b"\xdd" + struct.pack(">I", n // 4) + b"\x80" * (n // 4),
        "nested-empty-maps": nested_maps(),
        "integers": b"\xdf" + struct.pack(">I", n // 2) + b"\x01" * n,
        "claimed-list": b"\xdd\xff\xff\xff\xff",
        "claimed-map": b"\xdf\xff\xff\xff\xff",
        "claimed-bytes": b"\xc6\xff\xff\xff\xff",
        "claimed-extension": b"\xc9\xff\xff\xff\xff\x01",
        "deep-lists": b"\x91" * 10**6 + b"\xc0",
        "deep-maps": b"\x81\xa1w" * 10**6 + b"\xc0",
        "deep-extensions": extension(extension(extension(b"\xc0"))),
        "text": b"\xdb" + struct.pack(">I", n) + ("\U0001f600" + "a" * (n - 4)).encode(),
        "bytes": b"\xc6" + struct.pack(">I", n) + bytes(n),
        "long-shape": array(b"\xdd" + struct.pack(">I", n) + b"\x01" * n),
        "nil-shape": array(b"\xdd" + struct.pack(">I", n) + b"\xc0" * n),
        "negative": array(b"\x93\xff\x03\x01"),
        "both-negative": array(b"\x93\xff\xfd\x01"),
        "flag": array(b"\x92\xc3\x09"),
        "large-shape": array(b"\x93" + b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff" * 3),
        "long-content": array(b"\x92\x03\x02"),
        "no-elements": array(b"\x93\xcf\xff\xff\xff\xff\xff\xff\xff\xff\x00\x01", content=b""),
        "objects": array(b"\x93\x03\x03\x01", b"\xa6object"),
        "fields": array(b"\x93\x03\x03\x01", b"\xdb" + struct.pack(">I", n) + b"f4,f" * (n // 4)),
        "bad-text": b"\xa3\xff\xff\xff",
        "reserved": b"\xc1",
        "equal-keys": integers([i * (2**61 - 1) for i in range(-4, 5)] * (n // 90)),
        "walking-keys": integers(crafted_pickles.colliding(87_000, 17)),
        "chunks": b"\x83\xb9__msgpack_chunked_array__\xc3\xa5shape\x81\xa10\xff\xa6chunks\x81\xa10"
        + array(b"\x91\x09"),
    }
    for name, body in bodies.items():
        yield f"{name}.msgpack", weights + body
    yield "list-key.msgpack", b"\x81" + b"\x91" * 40 + b"\xc0" + b"\x01"


def safetensors_files() -> Iterator[tuple[str, bytes]]:
    entry = '{"dtype":"F32","shape":[%s],"data_offsets":[0,0]}'

    def file(header: str, content=b"") -> bytes:
        return struct.pack("<Q", len(header)) + header.encode() + content

    def many(n, shape="0"):
        return "{" + ",".join(f'"{i}":{entry % shape}' for i in range(n)) + "}"

    yield "many.safetensors", file(many(15_000))
    yield "too-many.safetensors", file(many(300_000))
    yield "axes.safetensors", file('{"w":' + entry % ("0," + "1," * 500_000 + "1") + "}")
    yield "too-many-axes.safetensors", file('{"w":' + entry % ("0," + "1," * 10**7 + "1") + "}")
    yield "nested.safetensors", file("[" * 10**6)
    yield "metadata.safetensors", file('{"__metadata__":{"a":"' + "\U0001f600" * 5 * 10**6 + '"}}')
    yield "digits.safetensors", file('{"' + "1a" * 500_000 + '":' + entry % "0" + "}")
    yield "number.safetensors", file('{"w' + "1" * 10**6 + '":' + entry % "0" + "}")
    yield "claimed.safetensors", struct.pack("<Q", 2**63) + bytes(100)
    yield "long-header.safetensors", struct.pack("<Q", 9 * 10**7) + b"{}" + b" " * 10**7
    overlapping = {
        f"{i}.weight": {"dtype": "F32", "shape": [1000, 1, 1], "data_offsets": [0, 4000]}
        for i in range(5000)
    }
    yield "overlapping.safetensors", file(json.dumps(overlapping), bytes(4000))


def npy(shape: tuple, content: bytes, descr="<f4") -> bytes:
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def zip_of(entries: dict[str, bytes], compression=zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return file.getvalue()


def directory(n: int, name: bytes, size=0) -> bytes:
    """A zip archive that consists only of a directory of `n` entries."""
    numbers = (20, 0, 20, 0, 0x800, 0, 0, 0, 0, size, size, len(name), *[0] * 6)
    packed = struct.pack("<4s4B4H3L5H2L", b"PK\1\2", *numbers)
    entries = (packed + name) * n
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(entries), 0, 0)
    return entries + end


def zip_files() -> Iterator[tuple[str, bytes]]:
    zeros = npy((2**20, 3, 1), bytes(12 * 2**20))
    yield "twelve-mebibytes.npz", zip_of({"w.npy": zeros})
    four = npy((2**20, 1, 1), bytes(4 * 2**20))
    yield "nearly-all.npz", zip_of({"a.npy": zeros, "b.npy": zeros, "w.weight.npy": four})
    half = np.random.default_rng(0).bytes(2**23) + bytes(2**26 - 2**23)
    yield "an-eighth.npz", zip_of({"w.weight.npy": npy((2**24, 1, 1), half)})
    yield (
        "eight-parts.npz",
        zip_of({f"{i}.npy": npy((2**21, 1, 1), half[-(2**23) :]) for i in range(4)}),
    )
    yield "too-large.npz", zip_of({f"{i}.npy": zeros for i in range(5)})
    for compression in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        yield f"compression-{compression}.npz", zip_of({"w.npy": bytes(2**26)}, compression)
    yield "bomb.pt", zip_of({"a/data.pkl": bytes(2**27)})
    yield "bomb.keras", zip_of({"model.weights.h5": bytes(2**28)})
    yield "none.keras", zip_of({"config.json": b"{}"})
    yield "pickle.npz", zip_of({"w.npy": npy((3,), bytes(24), "|O")})
    yield "void.npz", zip_of({"w.npy": npy((2**60, 3, 1), b"", "|V0")})
    yield "fields.npz", zip_of({"w.npy": npy((1, 1, 1), bytes(8000), ",".join(["f4"] * 2000))})
    yield "nested-header.npz", zip_of({"w.npy": npy("(" * 5000 + ")" * 5000, b"")})  # pyright: ignore
    yield "axes.npz", zip_of({"w.npy": npy((1,) * 3000, bytes(4))})
    small = npy((1, 1, 1), bytes(4))
    yield "three-thousand.npz", zip_of({f"{i}.npy": small for i in range(2990)}, zipfile.ZIP_STORED)
    yield "ten-thousand.npz", zip_of({f"{i}.npy": small for i in range(10_000)}, zipfile.ZIP_STORED)
    for suffix in ("npz", "pt", "keras"):
        yield f"directory.{suffix}", directory(400_000, b"a")
        yield f"short-directory.{suffix}", directory(20_000, b"a")
        yield f"long-names.{suffix}", directory(300, b"a" * 65_000 + "\U0001f600".encode())
        yield f"claimed-entry.{suffix}", directory(1, b"w.npy", 2**31)


def keras_files() -> Iterator[tuple[str, bytes]]:
    for name, fill in (
        ("nested", nested),
        ("groups", groups),
        ("many-groups", many_groups),
        ("datasets", datasets),
        ("many-datasets", many_datasets),
        ("claimed", claimed),
        ("sparse", sparse),
        ("tiny-chunks", tiny_chunks),
        ("compressed", compressed),
        ("layer-names", layer_names),
        ("loops", loops),
        ("soft-links", soft_links),
        ("external-link", external_link),
        ("external-data", external_data),
        ("virtual", virtual),
        ("soft-weights", soft_weights),
        ("external-weights", external_weights),
        ("compounds", compounds),
        ("long-names", long_names),
        ("empty", empty),
    ):
        content = with_weights(fill)
        yield f"{name}.h5", content
        if len(content) < 3 * 10**6:
            yield f"{name}.keras", keras(content, zipfile.ZIP_DEFLATED)


def with_weights(fill) -> bytes:
    return hdf5({"w/kernel:0": WEIGHT.T}, fill)


def nested(file):
    for _ in range(2000):
        file = file.create_group("g")


def groups(file):
    for i in range(5000):
        h5py.h5g.create(file.id, b"%d" % i)


def many_groups(file):
    for i in range(30_000):
        h5py.h5g.create(file.id, b"%d" % i)


def datasets(file, n=2900):
    space, group = h5py.h5s.create_simple((1, 1, 1)), file.create_group("vars").id
    for i in range(n):
        h5py.h5d.create(group, b"%d" % i, h5py.h5t.IEEE_F32LE, space)


def many_datasets(file):
    datasets(file, 10_000)


def claimed(file):
    file.create_dataset("a", (2**30, 2**10, 3), "f4", chunks=(2**10, 2**10, 3))


def sparse(file):
    file.create_dataset("a", (2**22, 2, 1), "f4", chunks=(2**20, 2, 1))


def tiny_chunks(file):
    file.create_dataset("a", (2**22, 2, 1), "f4", chunks=(1, 1, 1))


def partial_chunks(file):
    """A dataset of 2¹⁴ chunks, because each of its 14 axes has a whole and a partial chunk."""
    file.create_dataset("a", 14 * (3,), "f4", chunks=14 * (2,))


def compressed(file):
    """A dataset whose single chunk should have 36 bytes, but expands to 256 MiB."""
    dataset = file.create_dataset("a", (3, 3, 1), "f4", chunks=(3, 3, 1), compression="gzip")
    packer = zlib.compressobj(1)
    stream = b"".join(packer.compress(bytes(2**20)) for _ in range(2**8)) + packer.flush()
    dataset.id.write_direct_chunk((0, 0, 0), stream)


def layer_names(file):
    """Three thousand names of layers; the first has a megabyte, and each other name one letter."""
    attribute: Any = np.array(["a" * 2**20] + ["b"] * 2999, object)
    file.attrs.create("layer_names", attribute, dtype=h5py.string_dtype())


def loops(file):
    group = file.create_group("a")
    for i in range(50):
        group[f"loop{i}"] = file


def soft_links(file):
    for i in range(20_000):
        file.id.links.create_soft(b"%d" % i, b"/w/kernel:0")


def external_link(file):
    file["a"] = h5py.ExternalLink("/etc/hostname", "/x")


def soft_weights(file):
    file["model_weights"] = h5py.SoftLink("/w")


def external_weights(file):
    file["model_weights"] = h5py.ExternalLink("/etc/hostname", "/")


def external_data(file):
    file.create_dataset("a", (3, 3, 1), "f4", external=[("/dev/zero", 0, 36)])


def virtual(file):
    layout = h5py.VirtualLayout((2**10, 2**10, 3), "f4")
    layout[:] = h5py.VirtualSource("/nowhere.h5", "a", (2**10, 2**10, 3))
    file.create_virtual_dataset("a", layout)


def compounds(file, n=200, fields=1000):
    """Many datasets of one type with many fields."""
    file["type"] = np.dtype([(f"f{i}", "f4") for i in range(fields)])
    for i in range(n):
        h5py.h5d.create(file.id, b"%d" % i, file["type"].id, h5py.h5s.create(h5py.h5s.NULL))


def long_names(file):
    for i in range(300):
        h5py.h5g.create(file.id, b"%d" % i + b"a" * 60_000)


def empty(file):
    file["a"] = h5py.Empty("f4")
