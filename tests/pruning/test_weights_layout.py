"""Tests of the order of axes in files of other libraries, and of arrays that are left out."""

import argparse
import io
import pickle
import zipfile
from collections import OrderedDict, defaultdict
from typing import Any

import flax.serialization
import numpy as np
import pytest
import safetensors.numpy

from pruning.weights import WeightsError, load
from tests.support import crafted_files
from tests.support.mutated_files import hdf5, keras
from tests.support.torch_files import BIAS, MATRIX, WEIGHT, Call, Name, tensor, zipped


def ones(*shape):
    return np.ones(shape, np.float32)


def shapes(arrays, **options):
    return {name: array.shape for name, array in load(arrays, dense=True, **options).items()}


def test_weights_of_pytorch_are_transposed_and_have_the_name_of_the_layer():
    arrays = {"conv.weight": ones(5, 2, 3, 4), "fc.weight": ones(4, 7), "weight": ones(6, 8)}
    assert shapes(arrays) == {"conv": (3, 4, 2, 5), "fc": (7, 4), "weight": (8, 6)}


@pytest.mark.parametrize(
    "name",
    [
        "weight_v",
        "weight_orig",
        "parametrizations.weight.original",
        "parametrizations.weight.original1",
        "weight_ih_l0",
        "weight_hh_l1_reverse",
        "weight_hr_l0",  # the projection of an LSTM
        "in_proj_weight",
    ],
)
def test_parts_of_weights_are_transposed_and_keep_their_full_name(name):
    assert shapes({f"a.{name}": ones(5, 2)}) == {f"a.{name}": (2, 5)}


def test_weight_norm_can_be_put_together_from_its_parts():
    v = WEIGHT
    g = np.linalg.norm(v.reshape(5, -1), axis=1).reshape(5, 1, 1, 1) * 2
    for names in (("weight_g", "weight_v"), ("original0", "original1")):
        if names[0] == "original0":
            names = tuple(f"parametrizations.weight.{name}" for name in names)
        found = load(dict(zip([f"conv.{name}" for name in names], (g, v), strict=True)))
        gain, direction = found.values()
        kernel = gain * direction / np.sqrt(np.sum(direction**2, axis=(0, 1, 2)))
        np.testing.assert_allclose(kernel, 2 * v.transpose(2, 3, 1, 0), rtol=1e-6)


@pytest.mark.parametrize(
    "name", ["embeddings.word_embeddings", "wte", "model.embed_tokens", "embedding"]
)
def test_embeddings_keep_their_entries_first(name):
    assert shapes({f"{name}.weight": ones(9, 5)}) == {name: (9, 5)}


def test_patches_are_embedded_by_a_convolution():
    assert shapes({"embeddings.weight": ones(8, 3, 4, 4)}) == {"embeddings": (4, 4, 3, 8)}


def test_conv1d_of_gpt2_is_not_transposed_but_linear_layers_of_its_names_are():
    conv1d = {
        "h.0.attn.c_attn.weight": ones(4, 12),
        "h.0.attn.c_proj.weight": ones(4, 4),
        "h.0.mlp.c_fc.weight": ones(4, 16),
        "h.0.mlp.c_proj.weight": ones(16, 4),
        "head.weight": ones(9, 4),
    }
    found = shapes(conv1d)
    assert found["h.0.mlp.c_fc"] == (4, 16)
    assert found["h.0.mlp.c_proj"] == (16, 4)
    assert found["head"] == (4, 9)
    square = {**conv1d, "h.0.attn.c_proj.weight": np.arange(16.0).reshape(4, 4)}
    np.testing.assert_array_equal(
        load(square, dense=True)["h.0.attn.c_proj"], square["h.0.attn.c_proj.weight"]
    )
    # If a square kernel is the only kernel, it is read as the kernel of a Linear layer.
    alone = {"h.0.mlp.c_fc.weight": np.arange(16.0).reshape(4, 4)}
    np.testing.assert_array_equal(
        load(alone, dense=True)["h.0.mlp.c_fc"], alone["h.0.mlp.c_fc.weight"].T
    )
    # A convolution or a vector with such a name does not show the order of matrices.
    other = {"c_fc.weight": ones(2, 5, 3, 3), "c_attn.weight": ones(4)}
    assert shapes(other | {"c_proj.weight": ones(2, 7)})["c_proj"] == (7, 2)
    # CLIP and nanoGPT have Linear layers instead, whose matrices are transposed.
    linear = {name: array.T for name, array in conv1d.items()}
    assert shapes(linear)["h.0.mlp.c_fc"] == (4, 16)
    linear["h.0.attn.c_proj.weight"] = square["h.0.attn.c_proj.weight"].T
    np.testing.assert_array_equal(
        load(linear, dense=True)["h.0.attn.c_proj"], square["h.0.attn.c_proj.weight"]
    )


def test_transposed_convolutions_are_turned_as_the_documentation_says():
    """PyTorch stores transposed convolutions as (cin, cout, *window), under the usual names."""
    assert shapes({"up.weight": ones(2, 5, 3, 4)}) == {"up": (3, 4, 5, 2)}
    assert "`(*window, cout, cin)`" in str(load.__doc__)


@pytest.mark.parametrize("suffix", ["h5", "keras"])
def test_running_statistics_of_keras_are_left_out(suffix, tmp_path):
    layers = {
        **{f"layers/conv2d/vars/{i}": a for i, a in enumerate([ones(3, 3, 2, 5), ones(5)])},
        **{f"layers/batch_normalization/vars/{i}": (i + 1) * ones(5) for i in range(4)},
        **{f"layers/no_scale/vars/{i}": (i + 1) * ones(5) for i in range(3)},
        **{f"layers/layer_norm/vars/{i}": ones(5) for i in range(2)},
        "layers/separable/vars/0": ones(3, 3, 5, 1),
        "layers/separable/vars/1": ones(1, 1, 5, 6),
        "layers/separable/vars/2": ones(6),
        **{f"layers/lstm/vars/{i}": a for i, a in enumerate([ones(2, 8), ones(2, 8), ones(8)])},
    }
    inner = hdf5(layers)
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(keras(inner) if suffix == "keras" else inner)
    found = load(path, dense=True, vectors=True)
    numbers = {name: array[0] for name, array in found.items() if "no" in name or "norm" in name}
    assert numbers == {
        "batch_normalization.vars.0": 1,
        "batch_normalization.vars.1": 2,
        "no_scale.vars.0": 1,
        "layer_norm.vars.0": 1,
        "layer_norm.vars.1": 1,
    }
    assert found["separable.vars.2"].shape == (6,)
    assert found["lstm.vars.1"].shape == (2, 8)


def checkpoint(**others):
    return zipped({"model": {"conv1.weight": tensor(WEIGHT, "0")}, **others})


def scalar(value):
    """A pickled NumPy scalar, in the form of protocol 2."""
    kind = Call(Name("numpy", "dtype"), "f8", 0, 1)
    content = Call(Name("_codecs", "encode"), value.tobytes().decode("latin1"), "latin1")
    return Call(Name("numpy.core.multiarray", "scalar"), kind, content)


@pytest.mark.parametrize("place", ["optimizer_weights/adam", "model/optimizer/vars", "optimizer"])
def test_moments_of_a_keras_optimizer_are_no_layers_wherever_they_are(place, tmp_path):
    arrays = {"conv/kernel:0": ones(3, 3, 2, 5), f"{place}/conv/m:0": ones(3, 3, 2, 5)}
    (tmp_path / "a.h5").write_bytes(hdf5(arrays))
    assert [*load(tmp_path / "a.h5")] == ["conv"]


def test_leaves_that_are_no_tensors_are_left_out_and_named(tmp_path):
    arguments = Call(Name("argparse", "Namespace"))
    path = tmp_path / "detr.pth"
    path.write_bytes(checkpoint(args=arguments, best=[scalar(np.float64(0.5))], epoch=3))
    with pytest.warns(UserWarning, match="left out") as caught:
        found = load(path)
    assert list(found) == ["conv1"]
    (warning,) = caught
    assert str(warning.message) == (
        "detr.pth: objects that cannot be read were left out: args (argparse.Namespace), "
        "best.0 (numpy.core.multiarray.scalar)"
    )


@pytest.mark.parametrize(("count", "more"), [(5, ""), (6, " and 1 more"), (8, " and 3 more")])
def test_the_first_five_of_what_is_left_out_are_named(count, more, tmp_path):
    tree = {f"x{i}": Name("made", "up") for i in range(count)} | {"a": tensor(WEIGHT, "0")}
    (tmp_path / "a.pt").write_bytes(zipped(tree))
    named = ", ".join(f"x{i} (made.up)" for i in range(5))
    with pytest.warns(UserWarning, match="left out") as caught:
        load(tmp_path / "a.pt")
    assert str(caught[0].message).endswith(f"left out: {named}{more}")


@pytest.mark.parametrize("protocol", range(2, 6))
def test_real_namespaces_and_scalars_are_left_out(protocol, tmp_path):
    options = argparse.Namespace(lr=0.1, layers=[1, (2, 3)], names={"a"}, data=b"b")
    tree: dict[str, Any] = OrderedDict(
        args=options, best=np.float64(0.5), array=np.ones(3), epoch=3
    )
    tree["table"] = defaultdict(list, a=[1])
    path = tmp_path / "a.pt"
    path.write_bytes(zipped(pickle.dumps(tree, protocol)))
    with (
        pytest.warns(UserWarning, match=r"args \(arg.*, best \(numpy.*, table \(coll"),
        pytest.raises(WeightsError, match="none of the 0 arrays"),
    ):
        load(path)


def test_storages_of_unknown_types_are_left_out_and_named(tmp_path):
    made: Any = tensor(WEIGHT, "0")
    _, _, *rest = made.arguments[0].pid
    made.arguments[0].pid = ("storage", Name("torch", "ComplexFloatStorage"), *rest)
    path = tmp_path / "a.pt"
    tree = {"a.weight": made, "b.weight": tensor(MATRIX, "1")}
    path.write_bytes(zipped(tree))
    with pytest.warns(UserWarning, match=r"a.weight \(torch.ComplexFloatStorage\)"):
        assert list(load(path, dense=True)) == ["b"]


def test_tensors_without_elements_are_left_out(tmp_path):
    tree = {"a.weight": tensor(WEIGHT, "0"), "none.weight": tensor(WEIGHT[:0], "3")}
    (tmp_path / "a.pt").write_bytes(zipped(tree, **{"data/3": b""}))
    assert list(load(tmp_path / "a.pt")) == ["a"]


def test_headers_of_npz_have_three_versions(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for version in (1, 2, 3):
            file = io.BytesIO()
            np.lib.format.write_array(file, WEIGHT * version, (version, 0))
            archive.writestr(f"{version}.npy", file.getvalue())
    for name, array in load(tmp_path / "a.npz").items():
        np.testing.assert_array_equal(array, WEIGHT * int(name))


def test_arrays_that_are_no_floating_numbers_are_left_out(tmp_path):
    arrays: Any = {"w.weight": WEIGHT, "b": WEIGHT.astype(np.int16)}
    (tmp_path / "a.safetensors").write_bytes(safetensors.numpy.save(arrays))
    (tmp_path / "a.h5").write_bytes(hdf5(arrays, crafted_files.empty))
    for suffix in ("safetensors", "h5"):
        assert list(load(tmp_path / f"a.{suffix}")) == ["w"]


def test_one_storage_has_many_tensors(tmp_path):
    tree = {"a.weight": tensor(WEIGHT, "0"), "b.weight": tensor(WEIGHT[:2], "0")}
    (tmp_path / "a.pt").write_bytes(zipped(tree))
    found = load(tmp_path / "a.pt")
    np.testing.assert_array_equal(found["b"], WEIGHT[:2].transpose(2, 3, 1, 0))


def test_what_the_caller_does_to_one_array_changes_no_other(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for name in "ab":
            file = io.BytesIO()
            np.save(file, WEIGHT.T)
            archive.writestr(f"{name}.npy", file.getvalue())
    found = load(tmp_path / "a.npz")
    found["a"][...] = 0
    np.testing.assert_array_equal(found["b"], WEIGHT.T)


def test_msgpack_keeps_every_floating_type_and_what_flax_divides(tmp_path, monkeypatch):
    import ml_dtypes

    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 64)
    kinds = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, ml_dtypes.float8_e4m3fn]
    tree: Any = {np.dtype(kind).name: WEIGHT.astype(kind) for kind in kinds}
    tree |= {"step": np.int64(3), "whole": np.ones((9, 9, 9), np.int32), "z": 1 + 2j}
    # The encoded array has 16 bytes, a size for which msgpack has a special header.
    tree["few"] = np.full((1, 1), 3, np.float16)
    tree |= {"on": True, "none": None, "text": "a", "rate": 0.1, "list": [1, -7, 70_000, 2**40]}
    (tmp_path / "a.msgpack").write_bytes(flax.serialization.msgpack_serialize(tree))
    found = load(tmp_path / "a.msgpack", dense=True)
    assert set(found) == {*(np.dtype(kind).name for kind in kinds), "few"}
    for name, array in found.items():
        np.testing.assert_array_equal(array, tree[name])


def test_chunks_of_msgpack_are_joined_in_the_order_of_their_numbers(tmp_path):
    """JAX sorts the keys of a tree as texts, so chunk 10 comes before chunk 2 in the file."""
    kernel = np.random.default_rng(5).normal(3, 2, (12, 4)).astype("float32")
    chunks = {str(i): row for i, row in enumerate(kernel)}
    chunked = {"__msgpack_chunked_array__": True, "shape": {"0": 12, "1": 4}, "chunks": chunks}
    content = flax.serialization.msgpack_serialize({"dense": {"kernel": chunked}})
    assert content.index(b"\xa210") < content.index(b"\xa12")
    (tmp_path / "a.msgpack").write_bytes(content)
    np.testing.assert_array_equal(load(tmp_path / "a.msgpack", dense=True)["dense"], kernel)


def test_safetensors_of_numbers_of_layers_beyond_ten(tmp_path):
    arrays = {f"layers.{i}.weight": ones(2, 2) for i in (10, 9, 100, 20, 1)}
    arrays["layers.9.bias"] = BIAS
    (tmp_path / "a.safetensors").write_bytes(safetensors.numpy.save(arrays))
    assert [*shapes(tmp_path / "a.safetensors")] == [f"layers.{i}" for i in (1, 9, 10, 20, 100)]


@pytest.mark.parametrize("wrapper", ["state_dict", "model_state_dict", "model", "params", "state"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_wrappers_of_checkpoints_and_of_several_devices_are_no_part_of_a_name(wrapper, prefix):
    """Names have no wrappers. Running statistics are ignored, but biases and scales are read."""
    names = {"conv.weight": WEIGHT, "norm.weight": 3 * BIAS, "norm.bias": 5 * BIAS}
    names |= {"norm.running_mean": 7 * BIAS, "norm.running_var": 9 * BIAS, "mean.bias": 2 * BIAS}
    tree = {wrapper: {prefix + name: array for name, array in names.items()}}
    tree |= {"optimizer": {"conv.weight": -WEIGHT}, "epoch": 3, "losses": ones(9)}
    found = load(tree, vectors=True)
    expected = {"norm.weight": 3, "norm.bias": 5, "mean.bias": 2}
    assert set(found) == {"conv", *expected}
    np.testing.assert_array_equal(found["conv"], WEIGHT.transpose(2, 3, 1, 0))
    for name, factor in expected.items():
        np.testing.assert_array_equal(found[name], factor * BIAS)
    assert set(load(tree)) == {"conv"}
