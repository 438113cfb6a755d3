"""After batch norms are folded, a model gives the same outputs as in evaluation mode."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pruning
from pruning.channels import fold_batch_norms
from tests.support import prunable
from tests.support.exported import FRAMEWORKS

FAST = ("vgg",)
WITHOUT = ("mlp",)  # models without a batch norm


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow])
        for name in prunable.MODELS
        if name not in WITHOUT
    ],
)
def test_a_folded_network_computes_the_same_on_other_batches(name):
    apply, params, x = prunable.model(name)
    run, arrays = fold_batch_norms(apply, params, x[:1])
    assert len(arrays) < len(jax.tree.leaves(params))
    larger = np.concatenate([x, 1 - 2 * x])
    expected = apply(params, larger)
    np.testing.assert_allclose(
        run(arrays, larger), expected, atol=1e-12 * float(abs(expected).max())
    )


@pytest.mark.usefixtures("promotion")
@pytest.mark.parametrize(
    "framework",
    [pytest.param(f, marks=[] if f == "Equinox" else [pytest.mark.slow]) for f in FRAMEWORKS],
)
def test_norms_of_every_framework_are_folded(framework):
    apply, params, x = FRAMEWORKS[framework]()
    run, arrays = fold_batch_norms(apply, params, x[:1])
    # the folded model has two shifts and two kernels
    assert sorted(array.ndim for array in arrays.values()) == [1, 1, 2, 4]
    np.testing.assert_allclose(run(arrays, x), apply(params, x), rtol=1e-5, atol=1e-6)


def product(p: dict, x: jax.Array) -> jax.Array:
    return x @ p["w"]


AFTER: dict[str, Callable[[dict, jax.Array], jax.Array]] = {
    "y p": lambda p, y: y * p["a"][None],
    "p y": lambda p, y: p["a"][None] * y,
    "y / p": lambda p, y: y / p["a"][None],
    "y p - q": lambda p, y: y * p["a"][None] - p["b"][None],
    "q - y p": lambda p, y: p["b"][None] - y * p["a"][None],
    "-(y + q) p": lambda p, y: -(y + p["b"][None]) * p["a"][None],
    "one number": lambda p, y: (y * p["a"][0] + 2) / 3,
    "transposed": lambda p, y: (y.T * p["a"][:, None]).T + p["b"][None],
    "reshaped": lambda p, y: (y.reshape(-1, 1, 4) - p["b"][None, None]) * p["a"][None, None],
    "called": jax.jit(lambda p, y: jax.nn.relu(y * p["a"][None])),
    "an axis of one": lambda p, y: y[:, None] * p["a"][None, None],
    "broadcast": lambda p, y: y * jnp.broadcast_to(p["a"], y.shape),
    "broadcast, then squared": lambda p, y: y * jnp.square(jnp.broadcast_to(p["a"], y.shape)),
    "one of three parts": lambda p, y: (
        y * jnp.split(jnp.concatenate([p["b"], p["a"], -p["a"]]), 3)[1][None]
    ),
    "variance": lambda p, y: y * lax.rsqrt(jnp.square(p["a"]) + 1e-3)[None] + p["b"][None],
}


def numbers():
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(3, 4)), "a": rng.normal(size=4), "b": rng.normal(size=4)}
    return jax.tree.map(jnp.asarray, params), jnp.asarray(rng.normal(size=(5, 3)))


@pytest.mark.parametrize("after", AFTER)
def test_every_form_of_a_scale_and_a_shift_is_folded(after):
    params, x = numbers()

    def apply(p, x):
        return jnp.tanh(AFTER[after](p, product(p, x)))

    run, arrays = fold_batch_norms(apply, params, x)
    assert set(arrays) == {"w", "w_shift"}
    assert jax.make_jaxpr(run)(arrays, x).jaxpr.eqns[0].primitive.name == "dot_general"
    np.testing.assert_allclose(run(arrays, x), apply(params, x), rtol=1e-12)


def test_a_folded_network_is_exported_for_every_batch_size():
    params, x = numbers()
    run, arrays = fold_batch_norms(lambda p, x: product(p, x) * p["a"][None], params, x)
    (n,) = jax.export.symbolic_shape("n")
    shapes = jax.eval_shape(lambda *args: args, arrays, x)
    exported = jax.export.export(jax.jit(run))(shapes[0], shapes[1].update(shape=(n, 3)))
    np.testing.assert_allclose(exported.call(arrays, x), run(arrays, x), rtol=1e-12)


LEFT: dict[str, Callable[[dict, jax.Array], jax.Array]] = {
    "statistics of the batch": lambda p, x: product(p, x) / product(p, x).std(0, keepdims=True),
    "a nonlinearity between": lambda p, x: jnp.tanh(product(p, x)) * p["a"][None],
    "before its kernel": lambda p, x: (x * p["a"][None, :3]) @ p["w"],
    "a bias alone": lambda p, x: product(p, x) + p["b"][None],
    "a number of the program": lambda p, x: product(p, x) * 2,
    "along another axis": lambda p, x: product(p, x[:4]) * p["a"][:, None],
    "summed along the batch": lambda p, x: (
        product(p, x) * jnp.cumsum(jnp.broadcast_to(p["a"], (5, 4)), 0)
    ),
    "a divisor": lambda p, x: p["a"][None] / product(p, x),
    "a product of activations": lambda p, x: (x @ x.T) * p["a"][0],
    "scaled by activations before": lambda p, x: product(p, x) * jnp.tanh(x[:, :1]) * p["a"][None],
    "weights as an image": lambda p, x: (
        p["a"][None, None, :3]
        * lax.conv_general_dilated(
            p["w"][None], x[:4][None], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
        )
    ),
    "flattened": lambda p, x: product(p, x).reshape(-1) * p["a"][0],
    "complex outputs": lambda p, x: (
        x.astype(complex) @ p["w"].astype(complex) * p["a"].astype(complex)[None]
    ),
    "one number for each": lambda p, x: (x[:2] @ p["w"][:, :2]).T * p["a"].reshape(2, 2),
    "a channel as four": lambda p, x: (
        lax.broadcast_in_dim(x @ p["w"][:, :1], (5, 4), (0, 1)) * p["a"][None]
    ),
}


@pytest.mark.parametrize("left", LEFT)
def test_what_cannot_be_folded_is_refused_where_it_is_all(left):
    params, x = numbers()
    with pytest.raises(
        ValueError, match=r"^apply must have a batch norm in evaluation mode directly after"
    ):
        fold_batch_norms(LEFT[left], params, x)


def test_what_is_read_elsewhere_too_is_left_and_the_rest_folded():
    params, x = numbers()

    def apply(p, x):
        y = product(p, x)
        h = (jnp.tanh(y * p["a"][None]) + y) @ p["w"].T
        return h * p["b"][None, :3]

    run, arrays = fold_batch_norms(apply, params, x)
    # `apply` also reads `w` without a scale, so the folded kernel `w_2` does not replace `w`.
    assert set(arrays) == {"w", "a", "w_2", "w_2_shift"}
    np.testing.assert_allclose(run(arrays, x), apply(params, x), rtol=1e-12)


def test_a_shift_has_a_path_of_its_own():
    params, x = numbers()
    params["w_shift"] = params["w"][0]

    def apply(p, x):
        return jnp.tanh(product(p, x) * p["a"][None]) + p["w_shift"][None]

    run, arrays = fold_batch_norms(apply, params, x)
    np.testing.assert_array_equal(arrays["w_shift"], params["w_shift"])
    np.testing.assert_allclose(run(arrays, x), apply(params, x), rtol=1e-12)


def test_several_scales_of_a_kernel_in_bfloat16_are_rounded_once():
    rng = np.random.default_rng(0)
    shapes = {"w": (6, 40), "a": (40,), "b": (40,), "c": (40,)}
    params = {k: jnp.asarray(rng.uniform(0.5, 2, s), "bfloat16") for k, s in shapes.items()}

    def apply(p, x):
        return (x @ p["w"]) * p["a"][None] * p["b"][None] * p["c"][None]

    _, arrays = fold_batch_norms(apply, params, jnp.ones((2, 6), "bfloat16"))
    w, *scales = (np.asarray(params[name], np.float32) for name in "wabc")
    expected = jnp.asarray(w * np.prod(scales, axis=0), "bfloat16")
    np.testing.assert_array_equal(arrays["w"].astype("float32"), expected.astype("float32"))


@pytest.mark.parametrize("accumulated", [None, "float32"])
def test_a_shift_in_float32_of_a_kernel_in_bfloat16(accumulated):
    params, x = numbers()
    half = params | {"w": params["w"].astype("bfloat16")}

    def apply(p, x):
        rounded = x.astype("bfloat16")
        y = jnp.matmul(rounded, p["w"], preferred_element_type=accumulated).astype("float32")
        return (y - p["b"][None].astype("float32")) * p["a"][None].astype("float32")

    run, arrays = fold_batch_norms(apply, half, x)
    assert {array.dtype for array in arrays.values()} == {jnp.dtype("bfloat16")}
    y = run(arrays, x)
    assert y.dtype == "float32"
    np.testing.assert_allclose(y, apply(half, x), atol=2**-7 * np.abs(apply(half, x)).max())


@pytest.mark.parametrize(
    "smaller",
    [
        lambda p, x: jnp.tanh(product(p, x)),
        lambda p, x: (x @ (2 * p["w"])) * p["a"][None],
        lambda p, x: jnp.tanh(product(p, x) * p["a"][None]) @ p["w"].T * p["b"][None, :3],
    ],
)
def test_another_program_at_other_inputs_is_refused(smaller):
    params, x = numbers()

    def apply(p, x):
        return product(p, x) * p["a"][None] if len(x) > 2 else smaller(p, x)

    run, arrays = fold_batch_norms(apply, params, x)
    with pytest.raises(ValueError, match=r"^apply must have the program that was folded"):
        run(arrays, x[:1])


@pytest.mark.parametrize(("second", "path"), [("u", "u"), ("w_shift", "w_shift_2")])
def test_both_calls_of_one_function_are_folded(second, path):
    """Two calls are folded, even if the second kernel has the name of the first kernel's shift."""
    params, x = numbers()
    params |= {second: params["w"] + 1, "c": params["b"] + 1}
    layer = jax.jit(lambda w, a, x: (x @ w) * a[None])

    def apply(p, x):
        return jnp.tanh(layer(p["w"], p["a"], x)) * jnp.cos(layer(p[second], p["c"], x))

    run, arrays = fold_batch_norms(apply, params, x)
    assert set(arrays) == {"w", "w_shift", path, f"{path}_shift"}
    np.testing.assert_allclose(run(arrays, x), apply(params, x), rtol=1e-12)


def test_a_folded_network_is_pruned_as_any_other():
    apply, params, x = prunable.model("vgg")
    run, arrays = fold_batch_norms(apply, params, x)
    sizes = [group.size for group in pruning.coupled_channels(apply, params, x)]
    assert [group.size for group in pruning.coupled_channels(run, arrays, x)] == sizes
    assert pruning.cost(run, arrays, x).macs == pruning.cost(apply, params, x).macs


def convolved(x, w, numbers, **options):
    strides = options.pop("strides", (1, 2))
    padding = [(1, 0), (1, 1)]
    return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=numbers, **options)


NCHW, NHWC, CHWN = (("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC"), ("CHWN", "IHWO", "CHWN"))
# For each name: the shapes of the inputs and of the kernel, the function that applies the kernel to
# the inputs, and the shape of the parameters of the norm.
KERNELS: dict[str, tuple] = {
    "kernel first": ((5, 3), (3, 4), lambda x, w: w.T @ x.T, (4, 1)),
    "kernel first, outputs last": (
        (5, 3),
        (3, 4),
        lambda x, w: jnp.einsum("io,ni->on", w, x).T,
        (1, 4),
    ),
    "outputs first": ((5, 3), (4, 3), lambda x, w: x @ w.T, (1, 4)),
    "NCHW": ((2, 3, 5, 6), (4, 3, 2, 3), lambda x, w: convolved(x, w, NCHW), (1, 4, 1, 1)),
    "CHWN": ((3, 5, 6, 2), (3, 2, 3, 4), lambda x, w: convolved(x, w, CHWN), (4, 1, 1, 1)),
    "grouped": (
        (2, 5, 6, 4),
        (2, 3, 2, 6),
        lambda x, w: convolved(x, w, NHWC, feature_group_count=2),
        (1, 1, 1, 6),
    ),
    "depthwise, NCHW": (
        (2, 3, 5, 6),
        (6, 1, 2, 3),
        lambda x, w: convolved(x, w, NCHW, feature_group_count=3),
        (1, 6, 1, 1),
    ),
    "transposed convolution": (
        (2, 5, 6, 3),
        (2, 3, 3, 4),
        lambda x, w: lax.conv_transpose(x, w, (2, 1), "SAME"),
        (1, 1, 1, 4),
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_norms_behind_every_kind_of_kernel_are_folded(name):
    inputs, weights, function, shape = KERNELS[name]
    rng = np.random.default_rng(1)
    params = {"w": rng.normal(size=weights)}
    params |= {key: rng.normal(3, 2, size=shape) for key in ("mean", "scale", "bias")}
    params["var"] = rng.uniform(3, 5, size=shape)
    params = jax.tree.map(jnp.asarray, params)
    x = jnp.asarray(rng.normal(3, 5, size=inputs))

    def apply(p, x):
        y = (function(x, p["w"]) - p["mean"]) * lax.rsqrt(p["var"] + 1e-3)
        return jnp.tanh(y * p["scale"] + p["bias"])

    run, arrays = fold_batch_norms(apply, params, x)
    assert set(arrays) == {"w", "w_shift"}
    assert sorted(arrays["w"].shape) == sorted(weights)
    np.testing.assert_allclose(run(arrays, 2 * x), apply(params, 2 * x), rtol=1e-9, atol=1e-12)
    gain = (params["scale"] / jnp.sqrt(params["var"] + 1e-3)).ravel()
    shift = params["bias"].ravel() - params["mean"].ravel() * gain
    np.testing.assert_allclose(arrays["w_shift"], shift, rtol=1e-12)
