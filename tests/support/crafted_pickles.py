"""Pickles that would make a reader hang or fill its memory."""

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from functools import cache

import numpy as np

from pruning.weights._interpreter import Function
from pruning.weights._pytorch import NAMES
from tests.support.torch_files import WEIGHT, Call, Name, Storage, in_a_row, pickled, tensor, zipped

START, STOP = b"\x80\x02", b"."
N = 40  # how often a value is doubled, and the memo's index of the last value


def text(content: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(content)) + content


def doubled(leaf=b")", pair=b"h%ch%c\x86q%c0") -> bytes:
    """Opcodes that store a value with 2^40 leaves in entry `N` of the memo.

    Each level of the value contains the level below twice.
    """
    build = leaf + b"q\x000"
    for i in range(N):
        build += pair % (i, i, i + 1)
    return build


TUPLES = doubled()
LISTS = doubled(b"]", b"](h%ch%ceq%c0")
DICTS = doubled(b"}", b"}(K\x00h%cK\x01h%cuq%c0")
ORDERED = b"ccollections\nOrderedDict\n"
BOMB = b"h" + bytes([N])
PID = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\n%sX\x03\x00\x00\x00cpuK\x5at"
REBUILD = (
    b"ctorch._utils\n_rebuild_tensor_v2\n"
    b"(%sK\x00(K\x05K\x02K\x03K\x03t(K\x12K\x09K\x03K\x01t\x89}tR"
)
GOOD = REBUILD % (PID % text(b"0") + b"Q")


def small() -> dict[str, bytes]:
    """Pickles below a kilobyte, named by the place of the malicious value or by the error."""
    bodies = {
        "key": TUPLES + b"}" + BOMB + b"K\x01s",
        "ordered-key": TUPLES + ORDERED + b")R" + BOMB + b"K\x01s",
        "ordered-pair": TUPLES + ORDERED + b"](](" + BOMB + b"K\x01ee\x85R",
        "storage-key": TUPLES + b"}" + text(b"w") + REBUILD % (PID % BOMB + b"Q") + b"s",
        "storage-kind": TUPLES + b"}" + text(b"w") + REBUILD % (BOMB + b"Q") + b"s",
        "called-type": TUPLES + b"ctorch\nFloatStorage\n" + BOMB + b"\x85R",
        "called-half": LISTS + b"ctorch\nHalfStorage\n" + BOMB + b"\x85R",
        "size": TUPLES + b"}" + text(b"w") + b"ctorch\nSize\n" + BOMB + b"\x85Rs",
        "shape": TUPLES
        + b"}"
        + text(b"w")
        + b"ctorch._utils\n_rebuild_tensor_v2\n("
        + PID % text(b"0")
        + b"QK\x00"
        + BOMB * 2
        + b"\x89}tRs",
        "parameter": TUPLES
        + b"}"
        + text(b"w")
        + b"ctorch._utils\n_rebuild_parameter\n"
        + BOMB
        + b"R",
        "leaf-tuples": TUPLES + b"}" + text(b"w") + BOMB + b"s",
        "leaf-lists": LISTS + b"}" + text(b"w") + BOMB + b"s",
        "leaf-dicts": DICTS + b"}" + text(b"w") + BOMB + b"s",
        "state-dicts": DICTS + b"}" + text(b"state_dict") + BOMB + b"s",
        "built": TUPLES + ORDERED + b")R" + BOMB + b"b",
        "unknown-called": TUPLES + b"}" + text(b"w") + b"cos\nsystem\n" + BOMB + b"Rs",
        "unknown-pid": TUPLES + BOMB + b"Q",
        "float-key": b"}G" + bytes(8) + b"K\x01s",
        "wraps-itself": b"}q\x00" + text(b"model") + b"h\x00s",
        "list-of-itself": b"}" + text(b"w") + b"]q\x00h\x00as",
        "no-mark": b"t" * 3,
        "empty-stack": b"000",
        "no-memo": b"h\x09",
        "huge-memo": b"}r\xff\xff\xff\xff",
        "huge-text": b"X\xff\xff\xff\xff",
        "huge-frame": b"\x95" + b"\xff" * 8,
    }
    return {name: START + body + STOP for name, body in bodies.items()}


def large() -> Iterator[tuple[str, bytes]]:
    """Pickles with many opcodes or long texts."""
    n = 2 * 10**6
    parts = {
        "empty-dicts": b"](" + b"}" * n + b"e",
        "empty-lists": b"](" + b"]" * n + b"e",
        "nils": b"](" + b"N" * n + b"e",
        "floats": b"](" + (b"G" + bytes(8)) * (n // 2) + b"e",
        "marks": b"(" * n,
        "nested-lists": b"]" * n + b"a" * (n - 1),
        "nested-tuples": b")" + b"\x85" * n,
        "memo": b"}" + b"".join(b"r" + struct.pack("<I", i) for i in range(n // 4)),
        "long-integers": b"](" + (b"\x8a\xff" + b"\x7f" * 255) * 30_000 + b"e",
        "astral-text": b"}" + text("\U0001f600".encode() + b"a" * 2 * 10**7) + b"K\x01s",
        "astral-texts": b"](" + text("\U0001f600".encode() + b"a" * 10**5) * 200 + b"e",
        "no-newline": b"c" + b"a" * 2 * 10**7,
        "wide-shared": b"](" + b"N" * 10**5 + b"eq\x000](" + b"h\x00" * 40_000 + b"e",
        "wide-shape": b"(" + b"K\x01" * 50_000 + b"tq\x000]("
        b"ctorch._utils\n_rebuild_tensor_v2\nq\x010"
        + PID % text(b"0")
        + b"Qq\x020"
        + b"h\x01(h\x02K\x00h\x00h\x00tR" * 9000
        + b"e",
        "wide-pairs": ORDERED + b"q\x010](" + b"]K\x01aK\x01a" * 20_000 + b"eq\x000]("
        b"" + b"h\x01h\x00\x85R" * 30_000 + b"e",
        "wide-size": b"ctorch\nSize\nq\x010]("
        + b"K\x01" * 50_000
        + b"eq\x000]("
        + b"h\x01h\x00\x85R" * 30_000
        + b"e",
        "many-tensors": b"](" + GOOD * 20_000 + b"e",
        "many-unknown": b"}("
        + b"".join(text(b"%d" % i) + b"cx\ny\n" for i in range(40_000))
        + b"u",
    }
    for name, body in parts.items():
        yield name, START + body + STOP


def copied(n=30_000, times=20_000) -> Iterator[tuple[str, bytes]]:
    """Pickles that call an allowed function many times with one container of `n` elements."""
    pairs = text(b"ab") + b"N\x86q\x000"
    containers = {
        "tuple": pairs + b"(" + b"h\x00" * n + b"t",
        "list": pairs + b"](" + b"h\x00" * n + b"e",
        "dict": b"}(" + b"".join(text(b"%02x" % (i % 256)) + b"N" for i in range(n)) + b"u",
        "keys": b"}(" + b"".join(b"J" + struct.pack("<i", i) + b"N" for i in range(n)) + b"u",
        "text": text(b"a" * n),
    }
    for kind, container in containers.items():
        for name in NAMES:
            if type(NAMES[name]) is Function:
                module, function = name.rsplit(".", 1)
                build = container + b"q\x010" + f"c{module}\n{function}\n".encode() + b"q\x020"
                for how, arguments in (("one", b"h\x01\x85"), ("all", b"h\x01")):
                    calls = (b"h\x02" + arguments + b"R0") * times
                    yield f"copied-{kind}-{function}-{how}", START + build + calls + b"}" + STOP


@cache
def colliding(n: int, bits: int) -> list[int]:
    """`n` integers of at most 31 bits that collide in a dictionary with 2^bits slots.

    Half of the integers fill a chain of slots, in which slot 5 i + 1 follows slot i. For each of
    the other integers, all slots that its own bits choose are occupied, so the search for a free
    slot continues along the whole chain.
    """
    slots, chain = 2**bits, [1]
    while len(chain) < n // 2:
        chain.append((5 * chain[-1] + 1) % slots)
    taken = np.zeros(slots, bool)
    taken[chain] = True
    high = np.arange(1, 2 ** (31 - bits), 2 ** (23 - bits), dtype=np.int64) * slots
    keys = (np.array(chain, np.int64)[:, None] + high).ravel()
    slot, left, walks = keys % slots, keys, np.ones(len(keys), bool)
    for _ in range(7):
        walks &= taken[slot]
        left = left >> 5
        slot = (5 * slot + left + 1) % slots
    return chain + keys[walks][: n - n // 2].tolist()


INTEGERS = [
    *(f"{name}-{place}" for name in ("equal", "walking") for place in ("keys", "pairs", "sizes")),
    "walking-memo",
]


@cache
def integer_keys() -> dict[str, bytes]:
    """Pickles with integers that collide in a dictionary, in each place that a pickle allows."""
    return dict(_integer_keys())


def _integer_keys() -> Iterator[tuple[str, bytes]]:
    def long(i: int) -> bytes:
        content = i.to_bytes(i.bit_length() // 8 + 1, "little", signed=True)
        return b"\x8a" + bytes([len(content)]) + content

    equal = [i * (2**61 - 1) for i in range(1, 60_000)]
    walking = colliding(87_000, 17)
    size = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\n" + text(b"0") + text(b"cpu") + b"%stQ"
    for name, keys in (("equal", equal), ("walking", walking)):
        yield f"{name}-keys", b"}(" + b"".join(long(i) + b"N" for i in keys) + b"u"
        pairs = b"".join(long(i) + b"N\x86" for i in keys[:50_000])
        yield f"{name}-pairs", ORDERED + b"](" + pairs + b"e\x85R"
        # 7,000 storages with one name, whose sizes collide as keys of a dictionary
        tensors = [
            text(b"%d" % i) + REBUILD % (size % long(n) + b"q\x00") for i, n in enumerate(keys)
        ]
        yield f"{name}-sizes", b"}(" + b"".join(tensors[:7000]) + b"u"
    yield "walking-memo", b"}" + b"".join(b"r" + struct.pack("<I", i) for i in walking)


def crafted() -> Iterator[tuple[str, bytes]]:
    for i, (name, content) in enumerate(copied()):
        yield (f"{name}.pt", zipped(content)) if i % 2 else (f"{name}.pth", in_a_row(content))
    for name, body in integer_keys().items():
        yield f"{name}.pt", zipped(START + body + STOP)
        yield f"{name}.pth", in_a_row(START + body + STOP)
    for name, content in small().items():
        yield f"{name}.pt", zipped(content)
        yield f"{name}.pth", in_a_row(content)
    for i, (name, content) in enumerate(large()):
        yield (f"{name}.pt", zipped(content)) if i % 2 else (f"{name}.pth", in_a_row(content))
    yield "astral-text.pt", zipped(dict(large())["astral-text"])
    yield "no-newline.pth", in_a_row(dict(large())["no-newline"])
    keys = [0x1950A86A20F9469CFC6C, 1001, {}, {"w": tensor(WEIGHT, "0", old=True)}]
    yield "keys.pth", b"".join(map(pickled, keys)) + START + TUPLES + b"](" + BOMB + b"e."
    yield from storages()


def storages() -> Iterator[tuple[str, bytes]]:
    """Files whose tensors together are much larger than the file."""
    shared = np.zeros(2**18, np.float32)
    rebuild = Name("torch._utils", "_rebuild_tensor_v2")

    def view(shape, strides, key="0"):
        return Call(rebuild, Storage(key, shared, False), 0, shape, strides, False, {})

    content = shared.tobytes()
    tree = {f"w{i}.weight": view((512, 512), (1, 512)) for i in range(300)}
    yield "shared-storage.pt", one_storage(tree, content)
    tree = {f"w{i}.weight": view((2**9, 2**9, 1), (1, 1, 1)) for i in range(300)}
    yield "diagonal.pt", one_storage(tree, content)
    yield "expanded.pt", one_storage({"w": view((2**40, 2**40, 3), (0, 0, 1))}, content)
    yield "no-elements.pt", one_storage({"w": view((2**40, 0, 3), (1, 1, 1))}, content)
    names = [f"s{i:03}" for i in range(400)]
    tree = {f"w{key}": view((1, 1, 1), (1, 1, 1), key) for key in names}
    yield "overlapping.pt", overlapping(pickled(tree), content, names)


def one_storage(tree, content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/data.pkl", pickled(tree))
        archive.writestr("a/data/0", content)
    return file.getvalue()


def overlapping(pickle: bytes, content: bytes, names: list[str]) -> bytes:
    """An archive in which all entries overlap, so that all entries contain the same megabyte."""
    headers = [local_header(f"a/data/{name}") for name in names]
    region = b"".join(headers) + content
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/data.pkl", pickle)
        for i, name in enumerate(names):
            info = zipfile.ZipInfo(f"a/data/{name}")
            info.header_offset = archive.start_dir + i * len(headers[0])
            info.file_size = info.compress_size = len(content)
            begin = (i + 1) * len(headers[0])
            info.CRC = zlib.crc32(region[begin : begin + len(content)])
            archive.filelist.append(info)
        file.seek(archive.start_dir)
        file.write(region)
        archive.start_dir = file.tell()
    return file.getvalue()


def local_header(name: str) -> bytes:
    return (
        struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, 0, 0, len(name), 0) + name.encode()
    )
