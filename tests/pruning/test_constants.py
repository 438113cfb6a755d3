"""Constant outputs of removed channels, compared with results by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pruning import coupled_channels
from pruning.channels import fold_constants

RNG = np.random.default_rng(11)


def drawn(**shapes):
    """Random arrays, in which biases have mean 3."""
    return {n: RNG.normal(3 if n.startswith("bias") else 0, 1, s) for n, s in shapes.items()}


@pytest.mark.parametrize("abstract", [False, True])
def test_constants_of_two_layers_are_folded_at_once(abstract):
    """A removed channel of the second layer has a constant that depends only on its own bias."""

    def apply(p, x):
        h = jax.nn.relu(x @ p["a"] + p["bias a"][None])
        h = jnp.square(h @ p["b"] + p["bias b"][None])
        return h @ p["c"] - p["bias c"][None]

    shapes = {"a": (3, 6), "bias a": 6, "b": (6, 5), "bias b": 5, "c": (5, 2), "bias c": 2}
    params, x = drawn(**shapes), RNG.normal(3, 5, (4, 3))
    groups = coupled_channels(apply, params, x)
    by_size = {6: np.array([0, 1, 0, 1, 1, 0], bool), 5: np.array([1, 0, 0, 1, 1], bool)}
    first, second = ~by_size[6], ~by_size[5]
    inputs = jax.ShapeDtypeStruct((7, 3), x.dtype) if abstract else x
    keep = [by_size[group.size] for group in groups]
    found = fold_constants(apply, params, groups, keep, inputs)
    of_first = np.maximum(params["bias a"], 0)[first] @ params["b"][first]
    expected = np.where(second, params["bias b"], params["bias b"] + of_first)
    np.testing.assert_allclose(found["bias b"], expected, rtol=1e-12)
    of_second = np.square(params["bias b"])[second] @ params["c"][second]
    np.testing.assert_allclose(found["bias c"], params["bias c"] - of_second, rtol=1e-12)
    for name in ("a", "b", "c", "bias a"):
        np.testing.assert_array_equal(found[name], params[name])


def test_a_contribution_to_complex_sums_is_dropped():
    def apply(p, x):
        h = jax.nn.relu(x @ p["a"] + p["bias a"][None])
        return h.astype(complex) @ p["b"] + p["bias b"][None]

    params, x = drawn(**{"a": (3, 4), "bias a": 4}), RNG.normal(3, 5, (5, 3))
    params |= {"b": RNG.normal(3, 1, (4, 2)) * 1j, "bias b": np.full(2, 3 + 2j)}
    groups = coupled_channels(apply, params, x)
    found = fold_constants(apply, params, groups, [np.arange(4) > 1], x)
    jax.tree.map(np.testing.assert_array_equal, found, params)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_mean_of_the_constants_is_added_to_one_number(sign):
    def apply(p, x):
        y = jax.nn.relu(x @ p["a"] + p["bias"][None]) @ p["b"]
        return y + p["number"] if sign > 0 else y - p["number"]

    rng = np.random.default_rng(12)
    params = {name: rng.normal(1, 2, n) for name, n in (("a", (3, 4)), ("bias", 4), ("b", (4, 2)))}
    params["number"], x = np.array(7.0), rng.normal(3, 5, (5, 3))
    (group,) = coupled_channels(apply, params, x)
    keep = np.array([True, False, True, False])
    found = fold_constants(apply, params, [group], [keep], x)["number"]
    lost = np.maximum(params["bias"], 0)[~keep] @ params["b"][~keep]
    np.testing.assert_allclose(found, 7 + sign * lost.mean(), rtol=1e-12)


def test_on_padded_images_the_mean_of_the_constant_is_added():
    """Fewer weights multiply the constant at the edges, so its mean over all pixels is added."""

    def apply(p, x):
        h = jnp.exp(x @ p["a"] + p["bias a"])
        y = jax.lax.conv_general_dilated(
            h, p["w"], (2, 1), [(1, 1), (1, 0)], dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.tanh(y + p["bias w"])

    params = drawn(**{"a": (2, 4), "bias a": (1, 1, 1, 4), "w": (3, 2, 4, 5)})
    params["bias w"] = RNG.normal(3, 1, (1, 1, 1, 5))
    x = RNG.normal(0, 0.5, (2, 4, 3, 2))  # larger inputs would cost digits of the constant
    (group,) = coupled_channels(apply, params, x)
    keep = np.array([False, True, True, False])
    found = fold_constants(apply, params, [group], [keep], x)
    height, width, sums = 2, 3, np.zeros(5)
    for i in range(height):
        for j in range(width):
            for k in range(3):
                for m in range(2):
                    if 0 <= 2 * i + k - 1 < 4 and 0 <= j + m - 1 < 3:
                        constant = np.exp(params["bias a"][0, 0, 0, ~keep])
                        sums += constant @ params["w"][k, m, ~keep]
    expected = params["bias w"] + sums / (height * width)
    np.testing.assert_allclose(found["bias w"], expected, rtol=1e-12)


@pytest.mark.parametrize("inexact", ["number", "edges", "gate"])
def test_constants_are_folded_after_a_constant_that_is_not_exact(inexact):
    """The first layer adds no constant to its next layer; constants of later layers are folded."""

    def apply(p, x):
        h = jax.nn.relu(x @ p["a"] + p["bias a"])
        # at the edges, a row is the sum of two rows, and elsewhere the sum of three rows
        if inexact == "edges":
            h = jnp.pad(h, [(0, 0), (1, 1), (0, 0)])
            h = h[:, :-2] + h[:, 1:-1] + h[:, 2:]
        h = h * jax.nn.sigmoid(x.mean(2, keepdims=True)) if inexact == "gate" else h
        h = jax.nn.relu(h @ p["b"] + p["bias b"])
        h = jax.nn.relu(h @ p["c"] + p["bias c"])
        return h.mean(1) @ p["d"] + p["bias d"]

    rng, shapes = np.random.default_rng(21), {"a": (3, 6), "b": (6, 4), "c": (4, 5), "d": (5, 2)}
    params = {name: rng.normal(0.5, 1, shape) for name, shape in shapes.items()}
    params |= {f"bias {name}": rng.uniform(2, 4, (1, 1, n)) for name, (_, n) in shapes.items()}
    params["bias b"] = params["bias b"][..., :1] if inexact == "number" else params["bias b"]
    params["bias d"], x = params["bias d"][0], rng.normal(3, 5, (7, 4, 3))
    groups = coupled_channels(apply, params, x)
    keep = [np.arange(group.size) % 3 != 1 for group in groups]
    found = fold_constants(apply, params, groups, keep, x)
    for name, after, n in (("b", "c", 4), ("c", "d", 5)):
        removed = np.arange(n) % 3 == 1
        constant = np.where(removed, params[f"bias {name}"], 0) @ params[after]
        constant = np.where(np.arange(5) % 3 == 1, 0, constant) if after == "c" else constant[0]
        change = found[f"bias {after}"] - params[f"bias {after}"]
        np.testing.assert_allclose(change, constant, rtol=1e-9)


def test_a_bias_with_an_axis_of_heads_is_no_filter():
    """Biases of values in attention have an axis of heads and an axis of features."""

    def apply(p, x):
        h = jnp.exp(jnp.einsum("nd,dhk->nhk", x, p["a"]) + p["bias a"])
        return jnp.einsum("nhk,hkc->nc", h, p["b"]) + p["bias b"]

    rng = np.random.default_rng(31)
    params = {"a": rng.normal(size=(6, 3, 4)), "b": rng.normal(size=(3, 4, 5))}
    params |= {"bias a": rng.uniform(1, 2, (1, 3, 4)), "bias b": rng.normal(3, 1, (1, 5))}
    x = rng.normal(0, 0.5, (7, 6))
    groups = coupled_channels(apply, params, x)
    keep = [np.arange(group.size) != 1 for group in groups]
    change = fold_constants(apply, params, groups, keep, x)["bias b"] - params["bias b"]
    removed = (np.arange(3)[:, None] == 1) | (np.arange(4) == 1)
    lost = np.where(removed, np.exp(params["bias a"][0]), 0)
    np.testing.assert_allclose(change[0], np.einsum("hk,hkc->c", lost, params["b"]), rtol=1e-9)


def test_nothing_is_folded_for_channels_before_a_divisor():
    """With zeros in all its arrays, a channel would be 0/0, so its constant is unknown."""

    def apply(p, x):
        h = (x @ p["a"] + p["bias a"][None]) / p["by"][None]
        return h @ p["b"] + p["bias b"][None]

    params = drawn(**{"a": (3, 6), "bias a": 6, "bias by": 6, "b": (6, 2), "bias b": 2})
    params["by"] = params.pop("bias by")
    x = RNG.normal(3, 5, (4, 3))
    groups = coupled_channels(apply, params, x)
    assert [group.size for group in groups] == [6]
    found = fold_constants(apply, params, groups, [np.arange(6) < 4], x)
    jax.tree.map(np.testing.assert_array_equal, found, params)


def folded_into(name, apply, params, *, kept):
    """The constant that is added to one array if each group keeps its first `kept` channels."""
    x = RNG.normal(3, 5, (4, 3))
    groups = coupled_channels(apply, params, x)
    keep = [np.arange(group.size) < kept for group in groups]
    return fold_constants(apply, params, groups, keep, x)[name] - params[name]


def test_constants_are_folded_beside_a_product_of_activations():
    """Each row of the attention weights sums to 1, so the values lose the same constant."""

    def apply(p, x):
        h, q = jax.nn.relu(x @ p["a"] + p["bias a"][None]), x @ p["c"]
        return jax.nn.softmax(q @ q.T) @ (h @ p["b"] + p["bias b"][None])

    params = drawn(**{"a": (3, 6), "bias a": 6, "b": (6, 2), "bias b": 2, "c": (3, 5)})
    lost = np.maximum(params["bias a"], 0)[5] * params["b"][5]
    np.testing.assert_allclose(folded_into("bias b", apply, params, kept=5), lost, rtol=1e-9)


def test_constants_beside_channels_before_a_divisor_are_folded():
    """The sum that `bias` shifts loses relu of `bias c`, and an unknown number."""

    def apply(p, x):
        h = (x @ p["a"] + p["bias a"][None]) / p["bias by"][None]
        y = jax.nn.relu(x @ p["c"] + p["bias c"][None])
        return h @ p["b"] + y @ p["d"] + p["bias"][None]

    params = drawn(**{"a": (3, 6), "bias a": 6, "bias by": 6, "b": (6, 2), "bias": 2})
    params |= drawn(**{"c": (3, 5), "bias c": 5, "d": (5, 2)})
    lost = np.maximum(params["bias c"], 0)[4] * params["d"][4]
    np.testing.assert_allclose(folded_into("bias", apply, params, kept=4), lost, rtol=1e-9)


def weight_normed(p, x, activation=jax.nn.relu):
    h = activation(x @ p["a"] + p["b"])
    return h @ (p["v"] / jnp.linalg.norm(p["v"], axis=0, keepdims=True)) + p["c"]


def tied(p, x):
    h = p["e"][x]
    return jax.nn.tanh(h @ p["w"] + p["b"]) @ p["e"].T


@pytest.mark.parametrize(
    ("activation", "in_numpy"), [(jax.nn.relu, partial(np.maximum, 0)), (jnp.exp, np.exp)]
)
def test_a_normed_weight_adds_the_constant_that_the_whole_weight_reads(activation, in_numpy):
    """The value exp(0) = 1 of a channel whose arrays are all zero is not its constant."""
    rng, x = np.random.default_rng(0), np.random.default_rng(1).normal(2, 3, (7, 4))
    shapes = {"a": (4, 6), "b": (1, 6), "v": (6, 3), "c": (1, 3)}
    params = {name: rng.normal(1, 1, shape) for name, shape in shapes.items()}
    apply = partial(weight_normed, activation=activation)
    groups, keep = coupled_channels(apply, params, x), [np.arange(6) % 3 > 0]
    folded = fold_constants(apply, params, groups, keep, x)
    constants = in_numpy(params["b"][0, ~keep[0]])
    rows = (params["v"] / np.sqrt(np.square(params["v"]).sum(0)))[~keep[0]]
    np.testing.assert_allclose(folded["c"], params["c"] + constants @ rows)


@pytest.mark.parametrize("words", [[[1, 2, 3], [4, 5, 6]], [[0, 0], [0, 0]], [[1, 0], [0, 1]]])
def test_what_depends_on_the_inputs_is_no_constant(words):
    """The shared embedding makes and reads the channels, so its filters are not taken for zeros."""
    rng, x = np.random.default_rng(2), np.array(words)
    shapes = {"e": (9, 6), "w": (6, 6), "b": (6,)}
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    params["b"] = params["b"][None, None]
    groups = coupled_channels(tied, params, x)
    assert [group.size for group in groups] == [6]
    folded = fold_constants(tied, params, groups, [np.arange(6) % 2 > 0], x)
    jax.tree.map(np.testing.assert_array_equal, folded, params)


def test_what_an_input_multiplies_is_no_constant():
    def apply(p, x):
        h = jax.nn.relu(x @ p["a"] + p["bias a"][None]) * x[:, :1]
        return h @ p["b"] + p["bias b"][None]

    params, x = (
        drawn(**{"a": (3, 6), "bias a": 6, "b": (6, 2), "bias b": 2}),
        RNG.normal(3, 5, (4, 3)),
    )
    groups = coupled_channels(apply, params, x)
    found = fold_constants(apply, params, groups, [np.arange(6) < 4], x)
    jax.tree.map(np.testing.assert_array_equal, found, params)


@pytest.mark.parametrize("chosen", [jnp.asarray, jnp.logical_not])
def test_what_a_mask_among_the_inputs_chooses_is_no_constant(chosen):
    def apply(p, x, mask):
        h = jax.nn.relu(x @ p["a"] + p["bias a"][None])
        h = jnp.where(chosen(mask)[:, None], h, 0.0)
        return h @ p["b"] + p["bias b"][None]

    params, x = drawn(**{"a": (3, 6), "bias a": 6, "b": (6, 2), "bias b": 2}), np.ones((4, 3))
    groups, keep = coupled_channels(apply, params, x, np.ones(4, bool)), [np.arange(6) < 4]
    for mask in (np.ones(4, bool), np.arange(4) < 2, np.zeros(4, bool)):
        found = fold_constants(apply, params, groups, keep, x, mask)
        jax.tree.map(np.testing.assert_array_equal, found, params)


def test_inputs_may_be_required_to_be_positive():
    """Constants are compared at two inputs. At the second input, the logarithm is NaN."""
    params = drawn(a=(4, 6), bias=(1, 6), b=(6, 3), bias_2=(1, 3))

    def apply(p, x):
        return jax.nn.relu(jnp.log(x) @ p["a"] + p["bias"]) @ p["b"] + p["bias_2"]

    x = RNG.uniform(1, 3, (5, 4))
    groups, keep = coupled_channels(apply, params, x), [np.arange(6) % 3 > 0]
    folded = fold_constants(apply, params, groups, keep, x)
    constants = np.maximum(params["bias"][0, ~keep[0]], 0) @ params["b"][~keep[0]]
    assert np.abs(constants).max() > 0.1
    np.testing.assert_allclose(folded["bias_2"], params["bias_2"] + constants)


@pytest.mark.parametrize("subtracted", [False, True])
def test_constants_of_half_precision_are_folded_into_parameters_of_float32(subtracted):
    """The products are rounded differently for the two inputs, so the computed constants differ."""

    def apply(p, x):
        a, b, bias = (p[name].astype("bfloat16") for name in "abc")
        h = jax.nn.relu(x.astype("bfloat16") @ a + bias) @ b
        return h.astype("float32") - p["d"] if subtracted else h + p["d"].astype("bfloat16")

    rng = np.random.default_rng(3)
    shapes = {"a": (6, 32), "b": (32, 4), "c": (1, 32), "d": (1, 4), "x": (16, 6)}
    arrays = {name: rng.normal(1, 1, shape) for name, shape in shapes.items()}
    params = {name: jnp.asarray(array, "float32") for name, array in arrays.items()}
    x = params.pop("x")
    groups, removed = coupled_channels(apply, params, x), np.arange(32) % 4 == 1
    folded = fold_constants(apply, params, groups, [~removed], x)
    constant = np.maximum(arrays["c"], 0)[:, removed] @ arrays["b"][removed]
    change = (folded["d"] - params["d"]) * (-1 if subtracted else 1)
    rounding = 2**-8 * float(jnp.abs(apply(params, x)).max())
    np.testing.assert_allclose(change, constant, rtol=0, atol=rounding)
