"""Reads weights from files. Valid files are read correctly, and no file can do harm."""

import io
import logging
import random
import struct
import warnings
import zipfile
from pathlib import Path
from typing import Any

import flax.linen as linen
import flax.serialization
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors.numpy
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec as P

from pruning.weights import WeightsError, _limits, _load, _pytorch, load
from tests.support import other_devices
from tests.support.torch_files import (
    BIAS,
    MATRIX,
    WEIGHT,
    Call,
    Name,
    in_a_row,
    pickled,
    tensor,
    tensors,
    zipped,
)

KERNEL = np.random.default_rng(1).normal(size=(3, 3, 2, 5)).astype(np.float32)
TURNED = WEIGHT.transpose(2, 3, 1, 0)


def saved_npz():
    file = io.BytesIO()
    arrays: dict[str, Any] = {"z.kernel": KERNEL, "a.kernel": MATRIX, "a.bias": BIAS}
    np.savez(file, **arrays)
    return file.getvalue()


def files():
    """A valid file in each format that needs no optional dependency."""
    torch = {"conv1.weight": WEIGHT, "conv10.weight": WEIGHT, "conv2.weight": WEIGHT}
    flax_tree = {"params": {"conv1": {"kernel": KERNEL, "bias": BIAS}}}
    return {
        "a.safetensors": safetensors.numpy.save(torch),
        "b.npz": saved_npz(),
        "c.msgpack": flax.serialization.msgpack_serialize(flax_tree),
        "d.pt": zipped(tensors(False)),
        "e.th": in_a_row({"state_dict": tensors(True), "epoch": 3}),
    }


def written(folder, name, content):
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", ["d.pt", "e.th"])
def test_tensors_of_pytorch_are_read_without_it(name, tmp_path):
    found = load(written(tmp_path, name, files()[name]), dense=True, vectors=True)
    assert list(found) == ["conv1", "fc", "conv1.bias"]
    np.testing.assert_array_equal(found["conv1"], TURNED)
    np.testing.assert_array_equal(found["fc"], MATRIX)
    np.testing.assert_array_equal(found["conv1.bias"], BIAS)


def test_safetensors_are_turned_round_and_in_the_order_of_numbers(tmp_path):
    found = load(written(tmp_path, "a.safetensors", files()["a.safetensors"]))
    assert list(found) == ["conv1", "conv2", "conv10"]
    np.testing.assert_array_equal(found["conv2"], TURNED)


def test_npz_and_msgpack_keep_flaxs_layout_and_their_order(tmp_path):
    found = load(written(tmp_path, "b.npz", files()["b.npz"]), dense=True, vectors=True)
    assert list(found) == ["z", "a", "a.bias"]
    np.testing.assert_array_equal(found["z"], KERNEL)
    found = load(written(tmp_path, "c.msgpack", files()["c.msgpack"]))
    np.testing.assert_array_equal(found["conv1"], KERNEL)


@pytest.mark.parametrize("name", ["a.safetensors", "b.npz", "c.msgpack"])
def test_arrays_that_were_read_can_be_changed_in_place(name, tmp_path):
    found = load(written(tmp_path, name, files()[name]), dense=True, vectors=True)
    assert all(array.flags.writeable for array in found.values())


def test_a_checkpoint_of_more_devices_than_there_are_is_read_without_a_log_line(tmp_path, caplog):
    two = jax.make_mesh((2,), ("x",))
    kernel = jax.device_put(KERNEL, NamedSharding(two, P(None, None, "x")))
    ocp.PyTreeCheckpointer().save(tmp_path / "run", {"k": kernel})
    other_devices.rename(tmp_path / "run")
    caplog.clear()
    np.testing.assert_array_equal(load(tmp_path / "run")["k"], KERNEL)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_orbax_folders_and_folders_of_steps(tmp_path):
    with ocp.StandardCheckpointer() as checkpointer:
        tree = {"params": {"conv2": {"kernel": KERNEL}, "conv10": {"kernel": 2 * KERNEL}}}
        checkpointer.save(tmp_path / "one", tree)
    found = load(tmp_path / "one")
    assert list(found) == ["conv2", "conv10"]
    np.testing.assert_array_equal(found["conv10"], 2 * KERNEL)
    with ocp.CheckpointManager(tmp_path / "steps") as manager:
        for step in (2, 10):
            tree = {"conv": {"kernel": step * KERNEL}}
            manager.save(step, args=ocp.args.StandardSave(tree))
            manager.wait_until_finished()
    np.testing.assert_array_equal(load(tmp_path / "steps")["conv"], 10 * KERNEL)


@pytest.mark.parametrize("name", ["opt_state", "optimizer", "optim", "optimizer_state_dict"])
def test_moments_of_an_optimizer_are_no_layers(name):
    tree = {"net": {"conv": {"kernel": KERNEL}}, name: {"mu": {"conv": {"kernel": 2 * KERNEL}}}}
    assert list(load(tree)) == ["net.conv"]
    assert list(load({"model": tree})) == ["net.conv"]
    others = {"optic": {"kernel": KERNEL}, "net": {"optic": {"kernel": KERNEL}}}
    assert set(load(others)) == {"optic", "net.optic"}


def test_orbax_items_are_told_apart_and_arrays_without_names_refused(tmp_path):
    moments = {"conv": {"kernel": 2 * KERNEL}}
    items = {"ema": moments, "model": {"conv": {"kernel": KERNEL}}}
    with ocp.CheckpointManager(tmp_path / "steps") as manager:
        saved = {name: ocp.args.StandardSave(tree) for name, tree in items.items()}
        manager.save(1, args=ocp.args.Composite(**saved))
    np.testing.assert_array_equal(load(tmp_path / "steps")["conv"], KERNEL)
    with ocp.CheckpointManager(tmp_path / "unknown") as manager:
        saved = {name: ocp.args.StandardSave(moments) for name in ("ema", "fast")}
        manager.save(1, args=ocp.args.Composite(**saved))
    with pytest.raises(WeightsError, match="must be an Orbax checkpoint; it has no _METADATA"):
        load(tmp_path / "unknown")
    with ocp.CheckpointManager(tmp_path / "alone") as manager:
        manager.save(1, args=ocp.args.Composite(fast=ocp.args.StandardSave(items["model"])))
    np.testing.assert_array_equal(load(tmp_path / "alone")["conv"], KERNEL)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "list", [KERNEL, 2 * KERNEL])
    with pytest.raises(
        WeightsError, match=r"must have names, .*; the file holds a list of 2 arrays$"
    ):
        load(tmp_path / "list")


class Net(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(2, 5, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(5, rngs=rngs)


def test_live_states_of_nnx_and_linen(key):
    net = Net(nnx.Rngs(0))
    for source in (net, nnx.state(net)):
        found = load(source, vectors=True)
        np.testing.assert_array_equal(found["conv"], net.conv.kernel[...])
        assert set(found) == {"conv", "conv.bias", "norm.scale", "norm.bias"}
    ones = jax.numpy.ones((1, 4, 4, 2), jax.numpy.float32)
    variables = linen.Conv(5, (3, 3)).init(key, ones)
    np.testing.assert_array_equal(
        load({"params": {"c": variables["params"]}})["c"].shape, (3, 3, 2, 5)
    )


def test_variables_of_a_module_that_are_no_parameters_are_left_out():
    net: Any = Net(nnx.Rngs(0))
    net.cache = nnx.Cache(np.ones((2, 3, 4), np.float32))
    assert list(load(net)) == ["conv"]


def test_keras_files(tmp_path):
    h5py: Any = pytest.importorskip("h5py")

    def fill(file, layers, order=()):
        with h5py.File(file, "w") as h5:
            for name in layers:
                h5[name] = KERNEL
            if len(order):
                h5.attrs["layer_names"] = order

    names = ["a/a/kernel:0", "b/b/kernel:0", "z/cell/z/kernel:0", "z/z/kernel:0"]
    for order in (["z", "b"], np.array([b"z", b"b"])):  # Keras writes arrays of bytes
        fill(tmp_path / "old.h5", names, order)
        assert list(load(tmp_path / "old.h5")) == ["z.cell.z", "z", "b", "a"]
    fill(tmp_path / "colons.h5", ["a:1/kernel:0", "a:2/kernel:0"])
    assert list(load(tmp_path / "colons.h5")) == ["a:1", "a:2"]
    inner = io.BytesIO()
    fill(inner, ["layers/conv2d_1/vars/0", "layers/conv2d/vars/0", "optimizer/vars/1"])
    with zipfile.ZipFile(tmp_path / "new.keras", "w") as archive:
        archive.writestr("model.weights.h5", inner.getvalue())
    found = load(tmp_path / "new.keras")
    assert list(found) == ["conv2d", "conv2d_1"]
    np.testing.assert_array_equal(found["conv2d"], KERNEL)
    (tmp_path / "bad.h5").write_bytes((tmp_path / "old.h5").read_bytes()[:900])
    with pytest.raises(WeightsError, match="must be a whole"):
        load(tmp_path / "bad.h5")
    with h5py.File(tmp_path / "bomb.h5", "w") as h5:  # the file declares more data than it stores
        h5.create_dataset("kernel", (2**20, 2**10, 3, 3), "f4", chunks=(8, 8, 3, 3))
    with pytest.raises(WeightsError, match="left of max_bytes; its declared size is"):
        load(tmp_path / "bomb.h5")


def attacks(marker):
    """Malicious and malformed pickles, in PyTorch's formats and as plain pickles."""
    command = f"touch {marker}"
    calls = [
        Call(Name("os", "system"), command),
        Call(Name("posix", "system"), command),
        Call(Name("subprocess", "check_output"), ["touch", str(marker)]),
        Call(Name("builtins", "eval"), f"open({str(marker)!r}, 'w')"),
        Call(Name("builtins", "exec"), f"open({str(marker)!r}, 'w')"),
        Call(Name("builtins", "getattr"), Name("os", "path"), "join"),
        Call(Name("torch.storage", "_load_from_bytes"), b"x"),
        Call(Name("torch._utils", "__builtins__"), "x"),
        Call(Name("collections", "OrderedDict.__init__"), "x"),
        Call(Name("numpy", "load"), str(marker)),
        Call(Name("runpy", "run_path"), str(marker)),
    ]
    for i, call in enumerate(calls):
        tree = {"conv1.weight": call}
        yield f"zip-{i}.pt", zipped(tree)
        yield f"row-{i}.pth", in_a_row(tree)
        yield f"first-{i}.th", pickled(call)
    raw = [
        b"\x80\x02(i__main__\nX\n.",
        b"\x80\x02cos\nsystem\n(X\x01\x00\x00\x00xo.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R.",
        b"\x80\x02c__builtin__\nexec\n)\x81.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # the memo of the pickle would need 16 GB
        b"\x80\x02\x8a\x05\x00.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x02" + b"]" * 3000 + b"a" * 2999 + b".",
        b"\x80\x02}q\x00" + b"X\x01\x00\x00\x00ah\x00s.",  # a dictionary that contains itself
        b"\x80\x02}." * 3,
    ]
    for i, content in enumerate(raw):
        yield f"raw-{i}.pt", zipped(content)
        yield f"bare-{i}.pt", content


def lies():
    """Files that declare wrong sizes, expand to much more data, or have no valid format."""
    for i, shape in enumerate([(2**40, 2, 3, 3), (5, 2, 3, 300), (-5, 2, 3, 3), (0, 2, 3, 3)]):
        tree = {"conv1.weight": tensor(WEIGHT, "0", shape=shape)}
        yield f"shape-{i}.pt", zipped(tree)
    wide = {"w": Call(Name("torch._utils", "_rebuild_tensor_v2"), 1, 0, (1,), (1,))}
    yield "storage.pt", zipped(wide)
    for i, header in enumerate(
        [
            b'{"w":{"dtype":"F32","shape":[99999999,99999],"data_offsets":[0,36]}}',
            b'{"w":{"dtype":"F32","shape":[3,3,1,1],"data_offsets":[0,9999999]}}',
            b'{"w":{"dtype":"F32","shape":[3,3,1,1],"data_offsets":[36,0]}}',
            b"{" * 1000,
            b"[]",
        ]
    ):
        yield f"header-{i}.safetensors", struct.pack("<Q", len(header)) + header + bytes(36)
    yield "huge.safetensors", struct.pack("<Q", 2**62) + bytes(100)
    for i, header in enumerate(
        [
            "{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999, 99, 9, 9)}",
            "{'descr': '|O', 'fortran_order': False, 'shape': (3,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-3, 3, 3, 3)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': __import__('os')}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4)}",  # but nine elements follow
            "{" * 500,
        ]
    ):
        text = header.encode() + b"\n"
        npy = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(36)
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("w.npy", npy)
        yield f"npy-{i}.npz", file.getvalue()
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w.npy", bytes(2**26))
    yield "bomb.npz", bomb.getvalue()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", bytes(2**26))
    yield "bomb.pt", packed.getvalue()
    yield "deep.msgpack", b"\x91" * 100_000 + b"\xc0"
    yield "claims.msgpack", b"\xdd\xff\xff\xff\xff"
    yield "list.msgpack", b"\x93\x01\x02\x03"
    for suffix in ("safetensors", "npz", "msgpack", "pt", "pth", "th"):
        yield f"empty.{suffix}", b""
        yield f"text.{suffix}", b"this is not a file of weights\n" * 9
        yield f"noise.{suffix}", random.Random(0).randbytes(2000)


def cuts():
    for name, content in files().items():
        for i in range(1, 60):
            yield f"cut-{i}-{name}", content[: len(content) * i // 60]


def hostile(marker):
    return [*attacks(marker), *lies(), *cuts()]


def test_two_hundred_hostile_files_run_nothing_and_are_refused_in_a_sentence(tmp_path):
    marker = tmp_path / "ran"
    samples = hostile(marker)
    assert len(samples) >= 200
    assert len({name for name, _ in samples}) == len(samples)
    for name, content in samples:
        path = written(tmp_path, name, content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(WeightsError) as caught:
                load(path)
        said = str(caught.value)
        assert "must" in said, name
        assert "\n" not in said, name
        assert len(said) < 500, name
    assert not marker.exists()


def test_odd_weights_are_read_as_they_are(tmp_path):
    odd = {
        "nan.weight": np.full((2, 1, 3, 3), np.nan, np.float32),
        "zero.weight": np.zeros((2, 1, 3, 3), np.float32),
        "one.weight": WEIGHT[:1],
        "same.weight": np.repeat(WEIGHT[:1], 4, 0),
        "whole.weight": np.ones((2, 1, 3, 3), np.int32),
    }
    found = load(written(tmp_path, "odd.safetensors", safetensors.numpy.save(odd)))
    assert set(found) == {"nan", "zero", "one", "same"}
    np.testing.assert_array_equal(found["one"], TURNED[..., :1])
    assert np.isnan(found["nan"]).all()


@pytest.mark.parametrize(
    ("name", "said"),
    [("none.pt", "there is none"), ("x.onnx", "whose name ends in"), ("folder", "_METADATA")],
)
def test_what_is_no_file_of_weights_is_refused(name, said, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "x.onnx").write_bytes(b"x")
    with pytest.raises(WeightsError, match=said):
        load(tmp_path / name)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (WeightsError("a\n  b " + 500 * "x"), "f.npz cannot be read: a b " + 396 * "x"),
        (
            KeyError("c\td" + 500 * "x"),
            "f.npz must be a whole .npz of weights; reading it raised KeyError: 'c\\td" + 195 * "x",
        ),
    ],
)
def test_what_a_reader_raises_is_one_short_line(error, said):
    def read(path, max_bytes):
        raise error

    with pytest.raises(WeightsError) as caught:
        _load.guard(read, Path("f.npz"), 0)
    assert str(caught.value) == said
    with pytest.raises(WeightsError, match="folder must be a whole checkpoint of weights"):
        _load.guard(lambda *_: {}["x"], Path("folder"), 0)


def test_a_file_without_convolutions_says_what_it_holds():
    with pytest.raises(WeightsError, match="must hold convolutions; none of the 1 arrays"):
        load({"fc": {"kernel": MATRIX}})
    with pytest.raises(WeightsError, match="convolutions or dense layers; none of the 2 arrays"):
        load({"fc": {"bias": BIAS, "scale": BIAS}}, dense=True)
    with pytest.raises(WeightsError, match="must hold convolutions or vectors; none of the 1 arr"):
        load({"fc": {"kernel": MATRIX}}, vectors=True)
    empty = {"a": WEIGHT[:0], "b": BIAS[:0]}
    with pytest.raises(WeightsError, match="or dense layers or vectors; none of the 2 arrays"):
        load(empty, dense=True, vectors=True)


def test_msgpack_has_texts_lists_and_maps_of_every_length_and_nothing_behind_them(tmp_path):
    """msgpack has longer headers for strings from 32 characters and containers from 16 items."""
    for length in (15, 16, 31, 32, 256):
        tree: Any = {"x" * length: KERNEL, "steps": [-1.5] * length}
        tree |= {str(i): i - 40 for i in range(length - 4)}
        content = flax.serialization.msgpack_serialize(tree)
        (name,) = load(written(tmp_path, "a.msgpack", content))
        assert name == "x" * length
    scalar = written(tmp_path, "b.msgpack", flax.serialization.msgpack_serialize({"s": BIAS[0]}))
    with pytest.raises(WeightsError, match="none of the 1 arrays"):
        load(scalar)
    with pytest.raises(WeightsError, match="must end after its mapping; 3 bytes follow"):
        load(written(tmp_path, "a.msgpack", content + b"abc"))


@pytest.mark.parametrize("last", [7, 8])
def test_a_tensor_ends_with_its_storage(last):
    storage = _pytorch._Storage("0", np.dtype(np.float32), 8)
    tensor = _pytorch._Tensor(storage, last - 4, (3, 2), (1, 2))
    data = np.arange(8, dtype=np.float32).tobytes()
    if last == 8:
        with pytest.raises(WeightsError, match=r"must fit its storage of 8 elements"):
            _pytorch._array(tensor, data)
    else:
        np.testing.assert_array_equal(_pytorch._array(tensor, data), [[3, 5], [4, 6], [5, 7]])


def test_a_tensor_has_at_most_the_elements_of_its_storage():
    """With strides of zero, a tensor of one element in the file could fill the memory."""
    storage = _pytorch._Storage("0", np.dtype(np.float32), 1)
    tensor = _pytorch._Tensor(storage, 0, (4, 4), (0, 0))
    with pytest.raises(WeightsError, match=r"\(4, 4\) must fit its storage of 1 elements"):
        _pytorch._array(tensor, bytes(4))


@pytest.mark.parametrize(
    ("shape", "strides", "said"),
    [
        ((1,) * 9, (1,) * 9, "at most 8 axes, each with a stride; got 9 and 9$"),
        ((1, 2), (1,), "at most 8 axes, each with a stride; got 2 and 1$"),
        ([1, 2], [2, 1], "a storage, an offset, a shape and strides$"),
    ],
)
def test_a_tensor_has_a_stride_for_each_of_a_few_axes(shape, strides, said):
    storage = _pytorch._Storage("0", np.dtype(np.float32), 8)
    with pytest.raises(WeightsError, match=f"^a tensor must have {said}"):
        _pytorch._tensor(storage, 0, shape, strides)


def test_each_storage_of_the_older_format_belongs_to_a_tensor(tmp_path):
    content = in_a_row({"a.weight": tensor(WEIGHT, "0", old=True)})
    with pytest.raises(WeightsError, match="each storage must belong to a tensor"):
        load(written(tmp_path, "a.pth", content))


def test_a_storage_of_one_name_and_many_sizes_is_read_once(tmp_path):
    """If a storage were read once for each size, a small file could fill the memory."""
    few = {"a.weight": tensor(BIAS, "2", old=True), "b.weight": tensor(MATRIX, "1", old=True)}
    many = {
        f"l{i}.weight": tensor(np.zeros((1, 1, i), np.float32), "0", old=True) for i in range(1, 91)
    }
    tree = few | many | {"whole.weight": tensor(WEIGHT, "0", old=True)}
    for name, content in (("a.pt", zipped(tree)), ("a.pth", in_a_row(tree))):
        path = written(tmp_path, name, content)
        loaded = load(path, max_bytes=path.stat().st_size)
        assert len(loaded) == 91
        assert all(np.shares_memory(loaded["whole"], kernel) for kernel in loaded.values())


def test_the_storages_of_a_file_fit_max_bytes_together(tmp_path):
    path = written(tmp_path, "a.pt", zipped(tensors(old=False)))
    total = WEIGHT.nbytes + MATRIX.nbytes + BIAS.nbytes
    assert len(load(path, dense=True, vectors=True, max_bytes=total)) == 3
    with pytest.raises(WeightsError, match="max_bytes"):
        load(path, dense=True, vectors=True, max_bytes=total - 1)


def test_arrays_may_fill_32_mebibytes_and_four_times_the_file(tmp_path):
    path = tmp_path / "weights.npz"
    path.write_bytes(bytes(1000))
    assert _limits.default_max_bytes(path) == 33_554_432 + 4_000


FLOATS = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
}
WHOLE = {
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}


def test_each_storage_of_pytorch_has_its_own_type(tmp_path):
    """Each tensor is a transposed part of its storage. Integer tensors are not weights."""
    numbers = np.random.default_rng(5).normal(3, 5, size=30)
    tree, entries = {}, {}
    for i, (storage, dtype) in enumerate((FLOATS | WHOLE).items()):
        data = numbers.astype(jax.numpy.dtype(dtype))
        of_file: Any = tensor(WEIGHT, f"t{i}")
        pid = of_file.arguments[0].pid
        of_file.arguments[0].pid = (pid[0], Name("torch", storage), *pid[2:4], data.size)
        offset, shape, strides = 4, (4, 5), (1, 4)
        of_file.arguments = (of_file.arguments[0], offset, shape, strides, False, {})
        tree[f"{dtype}.weight"] = of_file
        entries[f"data/t{i}"] = data.tobytes()
    found = load(written(tmp_path, "a.pt", zipped(tree, **entries)), dense=True)
    assert set(found) == set(FLOATS.values())
    for dtype, array in found.items():
        expected = numbers.astype(jax.numpy.dtype(dtype))[4:24].reshape(5, 4)
        assert array.dtype == expected.dtype
        np.testing.assert_array_equal(array, expected)


def test_a_wrapper_is_taken_from_the_beginning_of_a_name_only():
    kernel = np.ones((3, 3, 1, 2), np.float32)
    names = ("module.a.kernel", "submodule.b.kernel", "c.module.d.kernel")
    assert set(load(dict.fromkeys(names, kernel))) == {"a", "submodule.b", "c.module.d"}


@pytest.mark.parametrize(
    ("tree", "names"),
    [
        ({"model": {"a": {"kernel": KERNEL}}, "head": {"kernel": KERNEL}}, {"model.a", "head"}),
        ({"params": {"model": {"a": {"kernel": KERNEL}}, "b": KERNEL}}, {"model.a", "b"}),
        ({"params": {"params": {"a": {"kernel": KERNEL}}}, "n": np.ones(3)}, {"a"}),
        ({"params": {"a": {"kernel": KERNEL}}, "cache": {"b": {"kernel": KERNEL}}}, {"a"}),
        ({"model": {"a": KERNEL}, "opt_state": [KERNEL], "ema": {"a": KERNEL}}, {"a"}),
        ({"a": {"kernel": {"value": KERNEL}}, "b": {"value": KERNEL, "key": KERNEL}}, None),
    ],
)
def test_no_kernel_of_a_network_is_lost_with_a_level_that_looks_like_a_wrapper(tree, names):
    assert set(load(tree)) == (names or {"a", "b.value", "b.key"})


def test_arrays_of_one_name_are_refused(tmp_path):
    tree = {"a": {"b.weight": WEIGHT}, "a.b.weight": WEIGHT}
    path = written(
        tmp_path, "a.pt", zipped({"a": {"b": tensor(WEIGHT, "0")}, "a.b": tensor(WEIGHT, "0")})
    )
    for source in (
        tree,
        path,
        {"a.weight": WEIGHT, "a.kernel": KERNEL},
        {"module.a": KERNEL, "a": KERNEL},
    ):
        with pytest.raises(WeightsError, match="must have different names; two are named a"):
            load(source)


@pytest.mark.parametrize("dtype", [">f4", ">f2", "bfloat16"])
def test_arrays_of_npz_have_a_dtype_of_jax_and_names_with_dots(dtype, tmp_path):
    kernel = np.asfortranarray(KERNEL.astype(dtype))
    arrays: dict[str, Any] = {"params/a/kernel": kernel, "opt/a/kernel": kernel}
    np.savez(tmp_path / "a.npz", **arrays)
    for found in (
        load(tmp_path / "a.npz"),
        load({"a": np.load(tmp_path / "a.npz")["opt/a/kernel"]}),
    ):
        assert set(found) == {"a"}
        np.testing.assert_array_equal(jax.numpy.asarray(found["a"]), KERNEL.astype(dtype))


def test_an_array_of_npz_whose_dtype_is_unknown_is_refused(tmp_path):
    arrays: dict[str, Any] = {"a.kernel": KERNEL, "b.kernel": KERNEL.astype("float8_e4m3fn")}
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(WeightsError, match=r"^b.kernel must have a dtype .* a .safetensors file$"):
        load(tmp_path / "a.npz")


@pytest.mark.parametrize(("kind", "dtype"), [("<f4", "float32"), ("|O", "object")])
def test_arrays_of_npz_have_the_declared_size_and_no_objects(kind, dtype, tmp_path):
    """Six elements of float32 take 24 bytes, and six pointers to objects take 48 bytes."""
    header = {"descr": kind, "fortran_order": False, "shape": (2, 3)}
    np.lib.format.write_array_header_1_0(file := io.BytesIO(), header)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", file.getvalue() + bytes(48))
    said = f"a.npy must hold the 6 elements .*; it has 48 bytes of {dtype}$"
    with pytest.raises(WeightsError, match=said):
        load(tmp_path / "a.npz")


def test_an_object_of_the_older_format_may_hold_tensors(tmp_path):
    other = Call(Name("argparse", "Namespace"), tensor(MATRIX, "1", old=True))
    tree = {
        "a.weight": tensor(WEIGHT, "0", old=True),
        "args": other,
        "b": tensor(BIAS, "2", old=True),
    }
    with pytest.warns(UserWarning, match="args"):
        found = load(written(tmp_path, "a.pt", in_a_row(tree)))
    np.testing.assert_array_equal(found["a"], TURNED)


def test_a_storage_that_is_a_view_of_another_storage_is_refused(tmp_path):
    part = tensor(WEIGHT, "0", old=True)
    part.arguments[0].pid += (("1", 5, 20),)
    with pytest.raises(WeightsError, match="must not be a view of another storage"):
        load(written(tmp_path, "a.pt", zipped({"a.weight": part})))


def test_the_ending_of_a_name_may_have_capital_letters(tmp_path):
    kernel = np.arange(18, dtype=np.float32).reshape(3, 3, 1, 2)
    np.savez(tmp_path / "net.npz", kernel=kernel)
    (tmp_path / "net.npz").rename(tmp_path / "NET.NPZ")
    (found,) = load(tmp_path / "NET.NPZ").values()
    np.testing.assert_array_equal(found, kernel)


def test_a_name_may_have_as_many_bytes_as_the_limit(tmp_path):
    path = written(tmp_path, "a.h5", bytes(1000))
    with _limits.PiecewiseReader(path) as reader:
        assert reader.read(reader.limit) == bytes(1000)
        with pytest.raises(WeightsError, match=f"at most {reader.limit} bytes; one declares"):
            reader.read(reader.limit + 1)


@pytest.mark.parametrize(
    ("offset", "strides"),
    [(-1, (1, 2)), (0, (1, -2)), (0, (-1, 2)), (0.0, (1, 2)), (True, (1, 2)), (0, (1, "2"))],
)
def test_a_tensor_neither_begins_before_its_storage_nor_runs_backwards(offset, strides):
    storage = _pytorch._Storage("0", np.dtype(np.float32), 8)
    with pytest.raises(WeightsError, match="strides of a tensor must be natural numbers"):
        _pytorch._tensor(storage, offset, (2, 2), strides)
