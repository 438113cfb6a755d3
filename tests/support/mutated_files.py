"""Valid files of weights in eight formats, and the same files with damaged bytes."""

import io
import random
import zipfile
from collections.abc import Iterator

import flax.serialization
import h5py
import numpy as np
import safetensors.numpy

from tests.support.torch_files import BIAS, MATRIX, WEIGHT, in_a_row, tensors, zipped

HUGE = [2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 2**40, 0]


def originals() -> dict[str, bytes]:
    """A valid file in each format, by name."""
    arrays = {"conv.weight": WEIGHT, "fc.weight": MATRIX, "conv.bias": BIAS}
    tree = {"params": {"conv": {"kernel": WEIGHT.T, "bias": BIAS}, "fc": {"kernel": MATRIX}}}
    return {
        "zip.pt": zipped(tensors(False)),
        "row.pth": in_a_row(tensors(True)),
        "a.safetensors": safetensors.numpy.save(arrays),
        "stored.npz": npz(arrays, np.savez),
        "deflated.npz": npz(arrays, np.savez_compressed),
        "a.msgpack": flax.serialization.msgpack_serialize(tree),
        "a.h5": hdf5({"conv/kernel:0": WEIGHT.T, "conv/bias:0": BIAS}),
        "a.keras": keras(hdf5({"layers/conv/vars/0": WEIGHT.T, "layers/conv/vars/1": BIAS})),
    }


def npz(arrays, save) -> bytes:
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def hdf5(arrays, fill=lambda file: None) -> bytes:
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for name, array in arrays.items():
            file[name] = array
        fill(file)
    return content.getvalue()


def keras(inner: bytes, compression=zipfile.ZIP_STORED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        archive.writestr("model.weights.h5", inner)
    return content.getvalue()


def mutated(n: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """`n` damaged files, in which the formats and the kinds of damage alternate."""
    files = [*originals().items()]
    for i in range(n):
        name, content = files[i % len(files)]
        damage = DAMAGES[i // len(files) % len(DAMAGES)]
        rng = random.Random(f"{seed} {i}")
        yield f"{i}-{damage.__name__}-{name}", damage(bytearray(content), rng)


def truncated(data, rng):
    return bytes(data[: rng.randrange(len(data))])


def flipped(data, rng):
    for _ in range(rng.choice([1, 4, 32])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def claiming(data, rng):
    """The content with a number of 4 or 8 bytes replaced by a huge number or by zero."""
    width, order = rng.choice([4, 8]), rng.choice(["little", "big"])
    at = rng.randrange(len(data) - width)
    data[at : at + width] = (rng.choice(HUGE) % 256**width).to_bytes(width, order)
    return bytes(data)


def inserted(data, rng):
    at = rng.randrange(len(data))
    data[at:at] = rng.randbytes(rng.choice([1, 7, 300]))
    return bytes(data)


def deleted(data, rng):
    at = rng.randrange(len(data))
    del data[at : at + rng.choice([1, 7, 300])]
    return bytes(data)


def reversed_part(data, rng):
    at, n = rng.randrange(len(data)), rng.choice([2, 8, 64])
    data[at : at + n] = data[at : at + n][::-1]
    return bytes(data)


DAMAGES = (truncated, flipped, claiming, inserted, deleted, reversed_part)
