"""Networks are saved with the framework's names, and restored."""

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from flax import linen, nnx

from jaxnorm.models import MLP
from pruning import weights
from pruning.weights import _save


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("source", [lambda model: model, nnx.state])
def test_random_keys_of_dropout_are_neither_saved_nor_needed(source, tmp_path):
    def build(seed):
        rngs = nnx.Rngs(seed)
        return nnx.Sequential(nnx.Linear(2, 3, rngs=rngs), nnx.Dropout(0.5, rngs=rngs))

    model, other = build(0), build(1)
    weights.save(tmp_path / "net.safetensors", source(model))
    nnx.update(other, weights.restore(tmp_path / "net.safetensors", nnx.state(other)))
    same(nnx.state(other, nnx.Param), nnx.state(model, nnx.Param))
    # This call would raise an error if dropout had lost its keys.
    other(jnp.ones((1, 2), "float32"))


class Buffers(nnx.Module):
    """A layer with a variable of each kind."""

    def __init__(self, seed):
        rngs = nnx.Rngs(seed)
        self.attention = nnx.MultiHeadAttention(2, 4, decode=True, rngs=rngs)
        self.norm, self.dropout = nnx.BatchNorm(4, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        self.average = nnx.Variable(jnp.full(4, seed, "float32"))
        self.steps = nnx.Variable(jnp.array(seed))


@pytest.mark.parametrize("source", [lambda model: model, nnx.state])
@pytest.mark.parametrize("used", [0, 1])
def test_all_variables_are_restored_but_caches_and_intermediates(source, used, tmp_path):
    models = Buffers(0), Buffers(1)
    models[used].attention.init_cache((1, 3, 4))
    models[used].norm.recorded = nnx.Intermediate((jnp.ones(2),))
    weights.save(tmp_path / "net.safetensors", source(models[0]))
    nnx.update(models[1], weights.restore(tmp_path / "net.safetensors", nnx.state(models[1])))
    assert models[1].average[...].tolist() == [0, 0, 0, 0]
    assert models[1].steps[...] == 0
    same(nnx.state(models[1], nnx.Param), nnx.state(models[0], nnx.Param))
    assert hasattr(models[1].attention.cached_key, "shape") == used


def test_an_nnx_network_is_restored_with_its_statistics(tmp_path):
    model = MLP(inputs=4, widths=(3,), classes=2, rngs=nnx.Rngs(0))
    model(jnp.ones((5, 4), "float32"))
    weights.save(tmp_path / "net.safetensors", model)
    names = set(safetensors.numpy.load_file(tmp_path / "net.safetensors"))
    assert {"norms.0.scale", "norms.0.mean"} < names
    assert {name.partition(".")[0] for name in names} == set(nnx.to_pure_dict(nnx.state(model)))
    other = MLP(inputs=4, widths=(3,), classes=2, rngs=nnx.Rngs(1))
    nnx.update(other, weights.restore(tmp_path / "net.safetensors", nnx.state(other)))
    same(nnx.state(other), nnx.state(model))
    kernels = weights.load(tmp_path / "net.safetensors", dense=True)
    assert set(kernels) == set(weights.load(model, dense=True))


def test_a_layer_alone_has_the_names_of_its_own_arrays(tmp_path):
    layer = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    layer.bias = nnx.Param(jnp.arange(3.0, 6.0, dtype="float32"))
    for source in (layer, nnx.state(layer)):
        weights.save(tmp_path / "a.safetensors", source)
        arrays = safetensors.numpy.load_file(tmp_path / "a.safetensors")
        assert sorted(arrays) == ["bias", "kernel"]
        np.testing.assert_array_equal(arrays["bias"], [3, 4, 5])


def test_linen_and_equinox_keep_their_names_and_dtypes(tmp_path):
    path = tmp_path / "net.safetensors"
    variables = linen.Dense(3, param_dtype=jnp.bfloat16).init(
        jax.random.key(0), jnp.ones((1, 2), jnp.bfloat16)
    )
    network = equinox.nn.MLP(2, 3, width_size=4, depth=1, key=jax.random.key(0))
    for tree, name in ((variables, "params.kernel"), (network, "layers.0.weight")):
        arrays = equinox.filter(tree, equinox.is_array)
        weights.save(path, tree)
        with safetensors.safe_open(path, "numpy") as file:
            assert name in file.keys()  # noqa: SIM118, because `file` is not a mapping
        like = jax.tree.map(lambda a: jax.ShapeDtypeStruct((1,), a.dtype), arrays)
        same(weights.restore(path, like), jax.tree.map(np.asarray, arrays))


def test_a_file_is_replaced_when_the_new_one_is_complete(tmp_path):
    path = tmp_path / "net.safetensors"
    weights.save(path, {"a": np.ones(3), "n": np.int32(3)})
    with pytest.raises(
        weights.WeightsError, match=r"the dtype of b must be one of .* got complex128"
    ):
        weights.save(path, {"b": np.ones(3, complex)})
    assert weights.restore(path, {"a": np.zeros(1), "n": np.zeros(1)})["n"] == 3
    assert [file.name for file in tmp_path.iterdir()] == ["net.safetensors"]


def test_a_write_that_fails_leaves_the_earlier_file(tmp_path, monkeypatch):
    path = tmp_path / "net.safetensors"
    weights.save(path, {"a": np.ones(3)})
    before = path.read_bytes()

    def half(tensors, target):
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_save.library, "save_file", half)
    with pytest.raises(OSError, match="No space"):
        weights.save(path, {"a": np.zeros(3)})
    assert path.read_bytes() == before


def test_what_cannot_be_saved_or_restored_is_refused(tmp_path):
    path = tmp_path / "net.safetensors"
    for act, message in [
        (lambda: weights.save(tmp_path / "net.npz", {"a": np.ones(1)}), "must end in .safetensors"),
        (lambda: weights.save(path, {"a": "text"}), r"at least one array, .* got the names \[\]"),
        (
            lambda: weights.save(path, {"a": {"b": np.ones(1)}, "a.b": np.ones(1)}),
            "different names",
        ),
        (lambda: weights.restore(path, {}), "there must be a file of weights at"),
    ]:
        with pytest.raises(weights.WeightsError, match=message):
            act()
    weights.save(path, {"a": np.ones(1)})
    with pytest.raises(weights.WeightsError, match="only in the file: a; only in like: b"):
        weights.restore(path, {"b": np.ones(1)})
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(weights.WeightsError, match=r"must be a whole .safetensors of weights"):
        weights.restore(path, {"a": np.ones(1)})


def test_a_smaller_network_is_restored_into_the_large_one_without_its_keys(tmp_path):
    """After restoring, the model has the widths of the file. Random keys are not saved."""

    class Net(nnx.Module):
        def __init__(self, hidden, seed):
            rngs = nnx.Rngs(seed)
            self.layers = nnx.List([nnx.Linear(n, n, rngs=rngs) for n in hidden])
            self.dropout, self.norm = nnx.Dropout(0.5, rngs=rngs), nnx.BatchNorm(3, rngs=rngs)

    small, large = Net((2, 5), 0), Net((4, 6), 1)
    small.norm.mean[...] = jnp.full(3, 7.0, "float32")
    weights.save(tmp_path / "net.safetensors", small)
    saved = safetensors.numpy.load_file(tmp_path / "net.safetensors")
    assert {n: a.shape for n, a in saved.items() if "norm" not in n} == {
        "layers.0.kernel": (2, 2),
        "layers.0.bias": (2,),
        "layers.1.kernel": (5, 5),
        "layers.1.bias": (5,),
    }
    assert {n for n in saved if "norm" in n} == {
        f"norm.{k}" for k in ("mean", "var", "scale", "bias")
    }
    state = nnx.state(large, nnx.Any(nnx.Param, nnx.BatchStat))
    nnx.update(large, weights.restore(tmp_path / "net.safetensors", state))
    for i in (0, 1):
        same(large.layers[i].kernel[...], small.layers[i].kernel[...])
    same(large.norm.mean[...], small.norm.mean[...])


def test_arrays_of_every_type_are_saved_as_they_are(tmp_path):
    """Arrays of all dtypes are restored. `load` ignores arrays that are not floating-point."""
    numbers = np.random.default_rng(2).normal(3, 5, size=(3, 4))
    names = [
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
        "int64",
        "int32",
        "uint32",
        "uint8",
        "bool",
    ]
    tree = {name: np.abs(numbers).astype(jnp.dtype(name)).T for name in names}
    tree |= {"none": np.zeros((0, 3)), "one": np.float64(7.5), "layers": [numbers, 2 * numbers]}
    weights.save(tmp_path / "a.safetensors", tree)
    like = jax.tree.map(lambda a: jax.ShapeDtypeStruct((), a.dtype), tree)
    found = weights.restore(tmp_path / "a.safetensors", like)
    for a, b in zip(*map(jax.tree.leaves, (found, tree)), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a, b)
    loaded = weights.load(tmp_path / "a.safetensors", dense=True)
    assert set(loaded) == {*names[:6], "layers.0", "layers.1"}
    np.testing.assert_array_equal(loaded["layers.1"], 2 * numbers)


@pytest.mark.parametrize(
    ("saved", "like", "said"),
    [
        ({"a": np.ones(3)}, {"a": np.ones(3), "b": np.ones(2)}, "the file: .*; only in like: b"),
        ({"a": np.ones(3), "b": np.ones(2)}, {"b": np.ones(2)}, "the file: a; only in like: "),
        (
            dict.fromkeys("dab", np.ones(1)),
            dict.fromkeys("fec", np.ones(1)),
            "the file: a and 2 more; only in like: c and 2 more$",
        ),
        (
            dict.fromkeys("ab", np.ones(1)),
            dict.fromkeys("cb", np.ones(1)),
            "the file: a; only in like: c$",
        ),
    ],
)
def test_a_file_and_a_tree_of_unlike_names_are_refused(saved, like, said, tmp_path):
    weights.save(tmp_path / "net.safetensors", saved)
    with pytest.raises(weights.WeightsError, match=said):
        weights.restore(tmp_path / "net.safetensors", like)
