"""A network with removed channels gives the same outputs as the network with masked channels."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from jax import lax

import pruning
from jaxnorm import models
from jaxnorm.nnx import fit_widths
from pruning import channels, coupled_channels, mask_channels, prune, remove_channels
from pruning.channels import fold_constants, widths
from tests.support import prunable


def drawn(groups, seed=0, ratio=0.5):
    """Random masks of kept channels, with at least one kept channel in each group."""
    rng = np.random.default_rng(seed)
    keep = [rng.random(group.size) >= ratio for group in groups]
    for vector in keep:
        vector[rng.integers(vector.size)] = True
    return keep


def shapes(tree):
    return [leaf.shape for leaf in jax.tree.leaves(tree)]


def assert_removed_is_masked(apply, params, *inputs, seed=0, atol=1e-10):
    """Assert that the smaller network equals the masked network, but not the whole network."""
    groups = coupled_channels(apply, params, *inputs)
    keep = drawn(groups, seed)
    removed, masked = (f(params, groups, keep) for f in (remove_channels, mask_channels))
    assert shapes(removed) != shapes(params)
    run = jax.jit(lambda *trees: [apply(tree, *inputs) for tree in trees])
    small, zeroed, whole = run(removed, masked, params)
    assert not np.allclose(zeroed, whole, atol=1e-3)
    np.testing.assert_allclose(small, zeroed, atol=atol)


@pytest.mark.parametrize("name", prunable.MODELS)
def test_removed_is_masked(name):
    assert_removed_is_masked(*prunable.model(name), seed=1)


def assert_random_network_is_cut_rightly(seed):
    apply, params, x = prunable.random_network(seed)
    groups = coupled_channels(apply, params, x)
    keep = drawn(groups, seed)
    trees = (f(params, groups, keep) for f in (mask_channels, remove_channels))
    masked, removed = jax.jit(lambda a, b: (apply(a, x), apply(b, x)))(*trees)
    np.testing.assert_allclose(removed, masked, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_removed_is_masked_in_random_networks(seed):
    assert_random_network_is_cut_rightly(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 200))
def test_removed_is_masked_in_many_random_networks(seed):
    assert_random_network_is_cut_rightly(seed)


def wide(c, shape):
    return jnp.broadcast_to(c, shape)


def in_a_scan(p, h):
    def step(w, _):
        return wide(p["c"], w.shape), h @ w

    return lax.scan(step, p["b"], None, length=3)[1]


def outer_kernel(p, x):
    """A convolution with the kernel w wᵀ, which has channels along its window and its outputs."""
    w = jnp.einsum("ac,bc->ab", p["w"], p["w"])[:, None, :]
    numbers = ("NWC", "WIO", "NWC")
    return jax.nn.relu(lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=numbers))


CONSTRUCTED = {
    "concatenate": lambda p, h: h @ jnp.concatenate([p["b"], wide(p["c"], (8, 2))], 1),
    "pad": lambda p, h: h @ jnp.pad(p["b"], ((0, 0), (0, 2)), constant_values=7.0),
    "pad with a parameter": lambda p, h: h @ lax.pad(p["b"], p["t"], ((0, 0, 0), (0, 2, 0))),
    "cond": lambda p, h: (
        h @ lax.cond(h[0, 0] > 100, lambda: p["b"], lambda: wide(p["c"], p["b"].shape))
    ),
    "scan": in_a_scan,
    "add": lambda p, h: h @ (p["b"] + p["t"]),
}


@pytest.mark.parametrize("name", CONSTRUCTED)
def test_what_is_made_of_a_weight_need_not_vanish_with_it(name):
    """A weight that is computed from a parameter may be nonzero where the parameter is zero.

    The activations exp(...) are 1 at removed channels.
    """
    rng = np.random.default_rng(0)
    params = {"a": rng.normal(size=(4, 8)), "b": rng.normal(size=(8, 3)), "c": rng.normal()}
    params["t"] = np.array(0.7)
    x = rng.normal(size=(5, 4))

    def apply(p, x):
        return CONSTRUCTED[name](p, jnp.exp(x @ p["a"]))

    assert_equal_where_cut(apply, params, x)


def test_a_window_made_of_channels_is_kept():
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(5, 2)), "b": rng.normal(size=(5, 3))}
    assert_equal_where_cut(
        lambda p, x: outer_kernel(p, x) @ p["b"], params, rng.normal(size=(2, 9, 1))
    )


def assert_equal_where_cut(apply, params, x):
    groups = coupled_channels(apply, params, x)
    keep = drawn(groups)
    removed, masked = (f(params, groups, keep) for f in (remove_channels, mask_channels))
    np.testing.assert_allclose(*(jax.jit(apply)(tree, x) for tree in (removed, masked)), rtol=1e-12)


def weight_norm(v):
    return v / jnp.sqrt(jnp.square(v).sum(0, keepdims=True))


SINGULAR = {
    "divisor": lambda p, x: jax.nn.relu(x @ p["a"] / p["s"][None]) @ p["b"],
    "reciprocal": lambda p, x: (1 / (x @ p["a"])) @ p["b"],
    "negative power": lambda p, x: ((x @ p["a"]) ** -1) @ p["b"],
    "logarithm": lambda p, x: jnp.log(jnp.abs(x @ p["a"])) @ p["b"],
    "logarithm of a parameter": lambda p, x: (x @ p["a"] * jnp.log(p["s"])[None]) @ p["b"],
    "variance": lambda p, x: jax.nn.relu(x @ p["a"] * lax.rsqrt(p["s"])[None]) @ p["b"],
    "weight norm": lambda p, x: jax.nn.relu(x @ weight_norm(p["a"])) @ p["b"],
    "two terms": lambda p, x: (1 / (x @ p["a"])) @ (p["b"] + p["c"] * p["s"][:, None]),
}


@pytest.mark.usefixtures("promotion")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_masked_arrays_keep_their_dtype(dtype):
    params = {"a": np.ones((2, 5), dtype), "b": jnp.ones((5, 3), dtype)}
    apply = lambda p, x: (x @ p["a"]) @ p["b"]  # noqa: E731
    groups = coupled_channels(apply, params, np.ones((1, 2), dtype))
    masked = mask_channels(params, groups, [np.arange(5) < 2])
    assert [(type(masked[k]), masked[k].dtype) for k in "ab"] == [
        (type(params[k]), params[k].dtype) for k in "ab"
    ]


@pytest.mark.parametrize("name", SINGULAR)
def test_masked_is_finite_where_the_model_divides(name):
    rng = np.random.default_rng(0)
    params = {"a": rng.normal(size=(4, 8)), "b": rng.normal(size=(8, 3))}
    params |= {"s": rng.uniform(1, 2, 8), "c": rng.normal(size=(8, 3))}
    x = rng.normal(size=(5, 4))
    apply = SINGULAR[name]
    assert_removed_is_masked(apply, params, x)
    groups = coupled_channels(apply, params, x)
    keep = drawn(groups)
    masked = mask_channels(params, groups, keep)
    gradient = jax.jit(jax.grad(lambda p: apply(p, x).sum()))(masked)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert not masked["b"][~keep[0]].any()
    folded = fold_constants(apply, params, groups, keep, x)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(folded))


# For each name: a divisor of activations that is computed from the parameters s, t and u; whether
# the divisor's channels can be removed if a kernel multiplies t; whether they can be removed if
# another kernel multiplies u, too.
DIVISORS = {
    "s t": (lambda s, t, u: s * t, False, False),
    "t s": (lambda s, t, u: t * s, False, False),
    "s u": (lambda s, t, u: s * u, True, False),
    "s u t": (lambda s, t, u: s * u * t, False, False),
    "s (u / t)": (lambda s, t, u: s * (u / t), False, False),
    "(s / u) t": (lambda s, t, u: s / u * t, False, False),
    "s (u t)²": (lambda s, t, u: s * jnp.square(u * t), False, False),
    "s t + u t": (lambda s, t, u: s * t + u * t, False, False),
    "s t + u s": (lambda s, t, u: s * t + u * s, True, False),
    "s t + u": (lambda s, t, u: s * t + u, True, False),
    "(s + t)(s + u)": (lambda s, t, u: (s + t) * (s + u), True, True),
    "(t + u)(s + u)": (lambda s, t, u: (t + u) * (s + u), True, False),
    "s t + 1": (lambda s, t, u: s * t + 1.0, True, True),
}


@pytest.mark.parametrize("divide", [jnp.divide, lambda h, d: h * lax.rsqrt(d)])
@pytest.mark.parametrize("name", DIVISORS)
def test_a_divisor_of_several_factors_is_never_made_zero(name, divide):
    divisor, *expected = DIVISORS[name]
    rng = np.random.default_rng(0)
    shapes = {"a": (4, 8), "b": (8, 3), "c": (8, 3), "d": (8, 3), **dict.fromkeys("stu", (8,))}
    params = {path: rng.uniform(1, 2, shape) for path, shape in shapes.items()}
    x = rng.normal(size=(5, 4))

    def apply(p, x, factors):
        read = sum(
            p[factor][None] @ p[kernel] for factor, kernel in zip(factors, "cd", strict=False)
        )
        by = divisor(p["s"], p["t"], p["u"])[None]
        return divide(x @ p["a"], by) @ p["b"] + read

    for factors, cut in zip(("t", "tu"), expected, strict=True):
        run = partial(apply, factors=factors)
        groups = coupled_channels(run, params, x)
        assert any(p.path == "a" for g in groups for p in g.positions) == cut
        keep = drawn(groups)
        removed, masked = (f(params, groups, keep) for f in (remove_channels, mask_channels))
        np.testing.assert_allclose(run(removed, x), run(masked, x), rtol=1e-12)
        gradient = jax.jit(jax.grad(lambda p, run=run: run(p, x).sum()))(masked)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_batch_norm_with_eps_is_masked_everywhere():
    apply, params, x = prunable.model("resnet, projection")
    assert all(p.masked for g in coupled_channels(apply, params, x) for p in g.positions)


def test_a_weight_padded_with_zeros_is_still_one():
    rng = np.random.default_rng(0)
    params = {"a": rng.normal(size=(4, 8)), "b": rng.normal(size=(8, 3))}
    assert_removed_is_masked(
        lambda p, x: jnp.exp(x @ p["a"]) @ jnp.pad(p["b"], ((0, 0), (0, 2))),
        params,
        rng.normal(size=(5, 4)),
    )


def test_masked_is_zeroed_after_the_nonlinearity():
    """The sigmoid of a removed channel is ½, so the rows of the next kernel must be zero."""
    x, a, b, c = (
        np.random.default_rng(i).normal(size=s)
        for i, s in enumerate([(5, 2), (2, 4), (4,), (4, 3)])
    )

    def apply(params, x):
        return jax.nn.sigmoid(x @ params["a"] + params["b"][None]) @ params["c"]

    params = {"a": a, "b": b, "c": c}
    groups = coupled_channels(apply, params, x)
    keep = [np.array([True, False, False, True])]
    expected = (keep[0] / (1 + np.exp(-(x @ a + b)))) @ c
    np.testing.assert_allclose(apply(mask_channels(params, groups, keep), x), expected, atol=1e-12)
    removed = remove_channels(params, groups, keep)
    np.testing.assert_allclose(apply(removed, x), expected, atol=1e-12)
    np.testing.assert_array_equal(removed["c"], c[[0, 3]])


def randomized(state, seed=0):
    """`state` with random arrays in which no number is zero and variances are positive."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        scale = np.prod(leaf.shape[:-1]) ** -0.5
        values = rng.normal(size=leaf.shape) * scale
        values = 0.5 + abs(values) if "var" in jax.tree_util.keystr(path) else values
        return jnp.asarray(np.asarray(values).astype(leaf.dtype))

    return jax.tree_util.tree_map_with_path(draw, state)


def of_nnx(model):
    graph, state = nnx.split(nnx.view(model, use_running_average=True))
    return (lambda state, x: fit_widths(nnx.merge(graph, state))(x)), randomized(state)


def image(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape).astype("float32"))


LARGE: dict[str, Any] = {
    "pre-activation": lambda rngs: models.PreActResNet(8, classes=3, rngs=rngs),
    "vgg": lambda rngs: models.VGG(11, classes=3, hidden=(), rngs=rngs),
    "resnet-18": lambda rngs: models.ResNet(18, classes=3, rngs=rngs),
    "resnet-50": lambda rngs: models.ResNet(50, classes=3, rngs=rngs),
    "pre-activation, projections": lambda rngs: models.ResNet(
        18, classes=3, pre_activation=True, rngs=rngs
    ),
}


def test_our_resnet_for_small_images_runs_smaller():
    model = nnx.eval_shape(lambda: models.CifarResNet(8, classes=3, rngs=nnx.Rngs(0)))
    apply, state = of_nnx(model)
    assert_removed_is_masked(apply, state, image(2, 8, 8, 3), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_our_large_networks_run_smaller(name):
    apply, state = of_nnx(LARGE[name](nnx.Rngs(0)))
    assert_removed_is_masked(apply, state, image(2, 32, 32, 3), atol=1e-5)


def test_a_module_of_depthwise_convolutions_runs_smaller():
    def build(rngs):
        return nnx.Sequential(
            nnx.Conv(3, 8, (1, 1), rngs=rngs),
            nnx.Conv(8, 8, (3, 3), feature_group_count=8, rngs=rngs),
            nnx.relu,
            nnx.Conv(8, 6, (1, 1), rngs=rngs),
            nnx.BatchNorm(6, rngs=rngs),
            nnx.relu,
            lambda x: x.mean((1, 2)),
            nnx.Linear(6, 3, rngs=rngs),
        )

    model = nnx.eval_shape(lambda: build(nnx.Rngs(0)))
    assert_removed_is_masked(*of_nnx(model), image(2, 4, 4, 3), atol=1e-5)


def test_a_smaller_module_trains():
    model = nnx.jit(lambda: models.MLP(inputs=4, widths=(6,), classes=2, rngs=nnx.Rngs(0)))()
    graph, state = nnx.split(model)
    apply, _ = of_nnx(model)
    groups = coupled_channels(apply, state, image(3, 4))
    small: Any = fit_widths(nnx.merge(graph, remove_channels(state, groups, drawn(groups))))
    assert small(image(3, 4)).shape == (3, 2)
    assert small.norms[0].mean[...].any()  # the statistics were updated


class Small(linen.Module):
    features: int
    train: bool = False

    @linen.compact
    def __call__(self, x):
        x = linen.Conv(self.features, (3, 3), name="conv")(x)
        x = linen.relu(linen.BatchNorm(use_running_average=not self.train, name="norm")(x))
        return linen.Dense(2, name="head")(x.mean((1, 2)))


def test_a_linen_module_is_built_again_with_the_widths():
    x = image(2, 4, 4, 3)
    variables = randomized(jax.eval_shape(Small(8).init, jax.random.key(0), x))
    groups = coupled_channels(Small(8).apply, variables, x)
    keep = drawn(groups)
    small = remove_channels(variables, groups, keep)
    found = widths(small)
    assert found == {"params/conv": keep[0].sum(), "params/head": 2}
    masked = jax.jit(Small(8).apply)(mask_channels(variables, groups, keep), x)
    removed = jax.jit(Small(found["params/conv"]).apply)(small, x)
    np.testing.assert_allclose(removed, masked, atol=1e-5)
    assert small["batch_stats"]["norm"]["mean"].shape == (keep[0].sum(),)


def test_a_linen_module_is_pruned_where_apply_builds_it():
    def apply(variables, x):
        return Small(widths(variables)["params/conv"]).apply(variables, x)

    x = image(2, 4, 4, 3)
    variables = randomized(jax.eval_shape(Small(8).init, jax.random.key(0), x))
    small = prune(apply, variables, x, ratios=(0.5,), fold=False).params
    assert widths(small) == {"params/conv": 4, "params/head": 2}
    with pytest.raises(ValueError, match="apply must take its widths from params"):
        prune(Small(8).apply, variables, x, ratios=(0.5,), fold=False)


def test_an_equinox_module_runs_smaller():
    eqx = pytest.importorskip("equinox")
    one, two, three = jax.random.split(jax.random.key(0), 3)
    model = eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(3, 6, 3, padding=1, key=one, dtype=jnp.float32),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.MaxPool2d(2, 2),
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.Linear(24, 5, key=two, dtype=jnp.float32),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Linear(5, 2, key=three, dtype=jnp.float32),
        ]
    )
    params, rest = eqx.partition(model, eqx.is_array)

    def apply(params, x):
        return jax.vmap(eqx.combine(params, rest))(x)

    groups = coupled_channels(apply, params, image(2, 3, 4, 4))
    assert [group.size for group in groups] == [6, 5]
    assert_removed_is_masked(apply, params, image(2, 3, 4, 4), atol=1e-5)


def test_the_state_of_an_optimizer_is_cut_alike():
    """The optimizer trains only a part of the tree, and its state is cut like the parameters.

    Here, `params` are the gradient, so they also are the first momentum.
    """
    apply, params, x = prunable.model("resnet, projection")
    tree = {"net": params, "unused": np.ones(3)}
    optimizer = optax.chain(
        optax.masked(optax.add_decayed_weights(0.0), jax.tree.map(lambda p: p.ndim > 1, params)),
        optax.trace(0.9),
    )
    params = jax.tree.map(jnp.asarray, params)
    _, state = optimizer.update(params, optimizer.init(params), params)
    groups = coupled_channels(lambda tree, x: apply(tree["net"], x), tree, x)
    keep = drawn(groups)
    smaller = remove_channels(tree, groups, keep)["net"]
    momentum = optax.tree.get(remove_channels(state, groups, keep), "trace")
    compare = partial(np.testing.assert_allclose, rtol=1e-12)
    jax.tree.map(lambda m, p: compare(m, p), momentum, smaller)


FACTORED = {  # optimizers, and functions that return the factors of `b`
    "adafactor": (
        optax.adafactor(0.1, min_dim_size_to_factor=2, momentum=0.9),
        lambda state: [optax.tree.get(state, name)["b"] for name in ("v_row", "v_col")],
    ),
    "sm3": (optax.sm3(0.1), lambda state: optax.tree.get(state, "mu")["b"]),
}


@pytest.mark.parametrize("name", FACTORED)
def test_factored_states_are_cut_alike(name):
    optimizer, factors = FACTORED[name]
    sizes = {"a": (4, 8), "b": (8, 8), "c": (8, 3), "bias": (1, 8), "scale": (8,)}
    rng = np.random.default_rng(0)
    params = {name: jnp.asarray(rng.normal(size=shape), "float32") for name, shape in sizes.items()}

    def apply(p, x):
        h = jax.nn.relu(x @ p["a"] + p["bias"]) * p["scale"][None]
        return jax.nn.relu(h @ p["b"]) @ p["c"]

    groups = coupled_channels(apply, params, np.ones((1, 4), "float32"))
    keep = [np.arange(8) < 6, np.arange(8) % 4 > 0]  # masks of the inputs and of the outputs of `b`
    update = jax.jit(optimizer.update)
    _, state = update(params, jax.jit(optimizer.init)(params), params)
    smaller, params = (remove_channels(tree, groups, keep) for tree in (state, params))
    assert shapes(smaller) == shapes(jax.eval_shape(optimizer.init, params))
    for small, large, mask in zip(factors(smaller), factors(state), keep, strict=True):
        np.testing.assert_array_equal(small, large[mask])
    assert shapes(jax.eval_shape(update, params, smaller, params)[0]) == shapes(params)


def test_the_state_of_muon_is_cut_alike():
    """Muon orthogonalizes momenta of matrices with three coefficients; Adam trains biases.

    The array `coefficients` is as long as a group of channels, but belongs to no parameter.
    """
    rng = np.random.default_rng(7)
    sizes = {"a": (4, 3), "bias": (1, 3), "b": (3, 5)}
    params = {name: jnp.asarray(rng.normal(3, 2, shape)) for name, shape in sizes.items()}

    def apply(p, x):
        return jax.nn.relu(x @ p["a"] + p["bias"]) @ p["b"]

    optimizer = optax.contrib.muon(0.1, weight_decay=0.1)
    with jax.numpy_dtype_promotion("standard"):
        _, state = jax.jit(optimizer.update)(params, jax.jit(optimizer.init)(params), params)
    groups, keep = coupled_channels(apply, params, np.ones((1, 4))), [np.arange(3) != 1]
    small, smaller = (remove_channels(tree, groups, keep) for tree in (params, state))
    assert shapes(smaller) == shapes(jax.eval_shape(optimizer.init, small))
    coefficients = optax.tree.get(state, "ns_coeffs")
    np.testing.assert_array_equal(optax.tree.get(smaller, "ns_coeffs"), coefficients)
    momentum = optax.tree.get(smaller, "muon").inner_state[0].mu["a"]
    np.testing.assert_allclose(momentum, 0.05 * small["a"], rtol=1e-6)


@pytest.mark.parametrize("optimizer", [optax.lbfgs(), optax.contrib.mechanize(optax.sgd(0.1))])
def test_the_state_of_another_optimizer_is_refused_with_the_cure(optimizer):
    apply, params, x = prunable.model("mlp")
    groups = coupled_channels(apply, params, x)
    state = optimizer.init(jax.tree.map(jnp.asarray, params))
    with pytest.raises(ValueError, match="make a new state of the smaller tree by the optimizer's"):
        remove_channels(state, groups, drawn(groups))


def test_a_list_with_the_name_of_a_parameter_is_no_factored_state():
    """The list `w` holds biases that are as long as an axis of the parameter with the name `w`."""

    def apply(p, x):
        first, second = p["of"]["w"]
        h = jax.nn.relu(x @ p["a"]) @ p["w"] + (first + second)[None]
        return jax.nn.relu(h) @ p["b"]

    shapes = {"a": (4, 8), "w": (8, 8), "b": (8, 3)}
    params: dict = {name: np.ones(shape) for name, shape in shapes.items()}
    params["of"] = {"w": [np.arange(8.0), np.arange(8.0) + 3]}
    groups = coupled_channels(apply, params, np.ones((1, 4)))
    of_bias = [any(p.path == "of/w/0" for p in group.positions) for group in groups]
    keep = [np.arange(8) % 3 > 0 if of else np.arange(8) < 2 for of in of_bias]
    small = remove_channels(params, groups, keep)
    for i, bias in enumerate(small["of"]["w"]):
        np.testing.assert_array_equal(bias, np.array([1, 2, 4, 5, 7]) + 3 * i)


def test_the_state_of_a_module_s_optimizer_is_cut_alike():
    model = models.MLP(inputs=4, widths=(6,), classes=2, rngs=nnx.Rngs(0))
    state = nnx.state(model)
    groups = coupled_channels(of_nnx(model)[0], state, image(3, 4))
    optimizer = nnx.state(nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param))
    keep = drawn(groups)
    smaller = remove_channels(state, groups, keep)
    trace = remove_channels(optimizer, groups, keep)["opt_state"][0]["trace"]
    assert shapes(trace) == shapes(nnx.filter_state(smaller, nnx.Param))


def test_traced_arrays_are_cut_along_the_same_axes():
    apply, params, x = prunable.model("multiplier")
    groups = coupled_channels(apply, params, x)
    keep = drawn(groups)
    found = jax.jit(lambda tree: remove_channels(tree, groups, keep))(params)
    jax.tree.map(np.testing.assert_array_equal, found, remove_channels(params, groups, keep))


def test_masks_may_be_traced():
    apply, params, x = prunable.model("mlp")
    groups = coupled_channels(apply, params, x)
    (keep,) = drawn(groups)

    @jax.jit
    def masked(keep):
        return mask_channels(params, groups, [keep])

    expected = mask_channels(params, groups, [keep])
    jax.tree.map(np.testing.assert_array_equal, masked(jnp.asarray(keep)), expected)


@pytest.mark.parametrize("order", [1, -1])
def test_a_bias_of_two_sums_takes_no_constant_that_one_of_them_does_not_lack(order):
    def apply(params, x):
        def lacks_nothing():
            return jnp.tanh(x + params["bias"])

        def lacks_a_constant():
            return jax.nn.relu(x @ params["a"] + params["shift"]) @ params["b"] + params["bias"]

        return [f() for f in (lacks_nothing, lacks_a_constant)[::order]]

    rng = np.random.default_rng(0)
    shapes = {"a": (3, 6), "shift": (1, 6), "b": (6, 3), "bias": (1, 3)}
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    params["shift"] += 3
    x = rng.normal(size=(4, 3))
    groups = coupled_channels(apply, params, x)
    found = fold_constants(apply, params, groups, [np.arange(6) > 1], x)
    jax.tree.map(np.testing.assert_array_equal, found, params)


def test_constants_under_a_norm_are_not_folded():
    """Through the norm, the output of a removed channel depends on all other channels."""

    def apply(params, x):
        h = x @ params["a"]
        h = h / jnp.sqrt(jnp.square(h).sum(-1, keepdims=True) + 1) + params["shift"]
        return h @ params["b"] + params["bias"]

    rng = np.random.default_rng(0)
    shapes = {"a": (3, 6), "shift": (1, 6), "b": (6, 2), "bias": (1, 2)}
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    x = rng.normal(size=(4, 3))
    (group,) = coupled_channels(apply, params, x, resize=True)
    assert group.normed
    found = fold_constants(apply, params, [group], [np.arange(6) > 1], x)
    jax.tree.map(np.testing.assert_array_equal, found, params)


def test_a_folded_constant_is_the_relu_of_the_bias():
    rng = np.random.default_rng(0)
    params = {
        name: rng.normal(size=s)
        for name, s in (("a", (2, 6)), ("b", (6,)), ("c", (6, 3)), ("d", (3,)))
    }

    def apply(params, x):
        h = jax.nn.relu(x @ params["a"] + params["b"][None])
        return h @ params["c"] + params["d"][None]

    x = rng.normal(size=(4, 2))
    groups = coupled_channels(apply, params, x)
    params["b"] = abs(params["b"])
    removed = np.arange(6) % 3 == 0
    found = fold_constants(apply, params, groups, [~removed], x)
    constant = np.maximum(params["b"], 0)[removed] @ params["c"][removed]
    assert abs(constant).max() > 0.1
    np.testing.assert_allclose(found["d"], params["d"] + constant, atol=1e-12)
    for name in "abc":
        np.testing.assert_array_equal(found[name], params[name])


def twice(p, x):
    h = jax.nn.relu(x @ p["a"] + p["b"][None])
    return jnp.tanh(h @ p["c"] + p["d"][None]) @ p["e"] + p["d"][None] + p["f"][None]


def before_and_after(p, x):
    h = jax.nn.relu((x + p["d"][None]) @ p["a"] + p["b"][None])
    return h @ p["c"] + p["d"][None] + p["f"][None]


@pytest.mark.parametrize("apply", [twice, before_and_after])
def test_a_bias_of_two_sums_takes_no_constant_that_the_other_sum_lacks(apply):
    rng = np.random.default_rng(0)
    shapes = {"a": (3, 6), "b": (6,), "c": (6, 3), "d": (3,), "e": (3, 3), "f": (3,)}
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    x, keep = rng.normal(size=(4, 3)), [np.arange(6) % 3 > 0]
    groups = coupled_channels(apply, params, x)
    small = remove_channels(fold_constants(apply, params, groups, keep, x), groups, keep)
    quiet = params | {"a": np.where(keep[0], params["a"], 0)}
    np.testing.assert_allclose(apply(small, x), apply(quiet, x), rtol=1e-12)


def test_a_constant_behind_a_norm_is_the_relu_of_its_bias_and_moves_into_the_next_mean():
    blocks = (
        partial(prunable.conv_norm, size=1),
        partial(prunable.conv_norm, size=1),
        prunable.mean_head,
    )
    apply, params, x = prunable.network(0, blocks)
    groups = coupled_channels(apply, params, x)
    keep = [drawn(groups)[0], np.ones(6, bool)]
    found = fold_constants(apply, params, groups, keep, x)
    removed = ~keep[0]
    constant = np.maximum(params["0"]["n"]["bias"], 0)[removed] @ params["1"]["w"][0, 0][removed]
    assert abs(constant).max() > 0.1
    expected = params["1"]["n"]["mean"] - constant
    np.testing.assert_allclose(found["1"]["n"]["mean"], expected, atol=1e-12)
    np.testing.assert_allclose(found["1"]["n"]["bias"], params["1"]["n"]["bias"], atol=1e-12)


def test_constants_pass_residual_sums_until_a_norm_takes_them():
    """The folded network equals a network in which the removed channels have constant outputs.

    In the second network, the arrays of removed channels are zero, but not their biases and
    readers. The kernels have size 1 × 1, so there is no padding.
    """
    apply, params, x = prunable.model("pre-activation")
    sizes_one = jax.tree.map(lambda w: w[1:2, 1:2] if w.ndim == 4 else w, params)
    groups = coupled_channels(apply, sizes_one, x)
    keep = drawn(groups)
    folded = remove_channels(fold_constants(apply, sizes_one, groups, keep, x), groups, keep)
    quiet = dict(sizes_one)
    for group, vector in zip(groups, keep, strict=True):
        for position in group.positions:
            last = position.path.split("/")[-1]
            if position.incoming or last in ("bias", "b"):
                continue
            one = group._replace(positions=(position,))
            quiet = mask_channels(quiet, [one], [vector])
    np.testing.assert_allclose(*(jax.jit(apply)(tree, x) for tree in (folded, quiet)), atol=1e-9)


def test_folding_nears_the_network_with_constants_where_edges_are_padded():
    apply, params, x = prunable.network(
        3, (prunable.conv_relu, prunable.conv_relu, prunable.mean_head)
    )
    groups = coupled_channels(apply, params, x)
    keep = [drawn(groups)[0], np.ones(6, bool)]
    quiet = mask_channels(
        params, [groups[0]._replace(positions=groups[0].positions[1:2])], keep[:1]
    )
    assert groups[0].positions[1].path == "0/w"
    run = jax.jit(apply)
    target = run(quiet, x)
    folded = fold_constants(apply, params, groups, keep, x)
    error = abs(run(remove_channels(folded, groups, keep), x) - target).max()
    dropped = abs(run(remove_channels(params, groups, keep), x) - target).max()
    assert error < 0.5 * dropped


@pytest.fixture
def mlp():
    apply, params, x = prunable.model("mlp")
    return params, coupled_channels(apply, params, x)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("keep", "error", "said"),
    [
        ([], ValueError, "keep must hold 1 vectors, one per group; got 0"),
        (None, TypeError, "keep must be a list of boolean vectors; got NoneType"),
        (np.True_, TypeError, "keep must be a list of boolean vectors; got bool"),
        ([np.zeros(6, bool)], ValueError, "keep must hold at least one channel of 0/b1; got none"),
        ([np.ones(5, bool)], ValueError, r"keep must hold 6 values for 0/b1; got shape \(5,\)"),
        ([np.ones(6)], TypeError, "keep must hold arrays of booleans for 0/b1; got float64"),
        ([[True] * 6], TypeError, "keep must hold arrays of booleans for 0/b1; got list"),
    ],
)
def test_a_keep_that_does_not_fit_is_refused(mlp, keep, error, said):
    params, groups = mlp
    with pytest.raises(error, match=said):
        remove_channels(params, groups, keep)


READ_KEEP = {
    "remove_channels": lambda f, p, groups, keep, x: remove_channels(p, groups, keep),
    "mask_channels": lambda f, p, groups, keep, x: mask_channels(p, groups, keep),
    "resized": lambda f, p, groups, keep, x: channels.resized(f, groups, keep)(p, x),
    "check_program": lambda f, p, groups, keep, x: channels.check_program(f, p, groups, keep, x),
    "fold_constants": lambda f, p, groups, keep, x: channels.fold_constants(f, p, groups, keep, x),
    "merge_channels": lambda f, p, groups, keep, x: channels.merge_channels(
        f, p, groups, keep, inputs=[x]
    ),
    **{
        function.__name__: lambda f, p, groups, keep, x, function=function: function(
            f, p, groups, keep, batches=[(x,), (x,)]
        )
        for function in (channels.rescale, channels.least_squares, channels.swap_channels)
    },
}


@pytest.mark.parametrize("name", READ_KEEP)
def test_every_function_refuses_masks_that_are_too_few_or_too_many(name):
    apply, params, x = prunable.model("mlp")
    groups = coupled_channels(apply, params, x)
    for count in (0, 2):
        said = f"^keep must hold 1 vectors, one per group; got {count}$"
        with pytest.raises(ValueError, match=said):
            READ_KEEP[name](apply, params, groups, [np.arange(6) > 2] * count, x)


def test_a_tree_that_does_not_fit_is_refused(mlp):
    params, groups = mlp
    keep = [np.arange(6) > 2]
    smaller = remove_channels(params, groups, keep)
    with pytest.raises(ValueError, match=r"0/b1 must have shape \(6,\), got \(3,\)"):
        remove_channels(smaller, groups, keep)
    with pytest.raises(ValueError, match="pear belongs to none of them"):
        remove_channels({"pear": jnp.ones(6)}, groups, keep)
    with pytest.raises(ValueError, match=r"mu/0/b1/0 belongs to none of them"):
        # SM3's array for `b1` would have 6 elements.
        remove_channels({"mu": {"0": {"b1": [jnp.ones(5)]}}}, groups, keep)
    with pytest.raises(ValueError, match=r"mu/0/b1/mean belongs to none of them"):
        remove_channels({"mu": {"0": {"b1": {"mean": jnp.ones(6)}}}}, groups, keep)
    others = coupled_channels(*prunable.model("vgg"))[:1]
    with pytest.raises(ValueError, match="groups must all come from one model"):
        mask_channels(params, [*groups, *others], keep * 2)


def test_masks_of_groups_of_one_size_may_be_one_array(mlp):
    params, groups = mlp
    keep = np.arange(6) > 2
    forms: list[Any] = [keep[None], [keep]]
    found, expected = (remove_channels(params, groups, form) for form in forms)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_names_that_fit_twice_are_refused():
    def apply(params, x):
        return x @ params["a"]["w"] @ params["b"]["w"]

    params = {"a": {"w": np.ones((2, 3))}, "b": {"w": np.ones((3, 2))}}
    groups = coupled_channels(apply, params, np.ones((1, 2)))
    with pytest.raises(ValueError, match="mu/w belongs to a/w and b/w"):
        remove_channels({"mu": {"w": np.ones((2, 3))}}, groups, [np.arange(3) > 0])


NEED_VALUES = {
    "fold_batch_norms": lambda f, p, groups, keep, x: channels.fold_batch_norms(f, p, x),
    "merge_channels": lambda f, p, groups, keep, x: channels.merge_channels(
        f, p, groups, keep, inputs=[x]
    ),
    "rescale": lambda f, p, groups, keep, x: channels.rescale(
        f, p, groups, keep, batches=[(x,), (x,)]
    ),
    "least_squares": lambda f, p, groups, keep, x: channels.least_squares(
        f, p, groups, keep, batches=[(x,), (x,)]
    ),
    "reconstruction_scores": lambda f, p, groups, keep, x: channels.reconstruction_scores(
        p, groups, apply=f, batches=[(x,)]
    ),
    "channel_scores": lambda f, p, groups, keep, x: channels.channel_scores(p, groups),
    "a timing of cost": lambda f, p, groups, keep, x: pruning.cost(f, p, x, batch_sizes=[1]),
    "a timing of cost_at": lambda f, p, groups, keep, x: channels.cost_at(
        f, p, groups, x, batch_sizes=[1]
    ),
    "weights.save": lambda f, p, groups, keep, x: pruning.weights.save("net.safetensors", p),
}


@pytest.mark.parametrize("name", NEED_VALUES)
def test_shapes_are_refused_where_values_are_needed_and_masked_as_shapes(name):
    def mlp(params, x):
        return jax.nn.relu(x @ params["a"]) @ params["b"]

    x = np.ones((1, 2))
    shapes = jax.eval_shape(lambda: {"a": jnp.ones((2, 4)), "b": jnp.ones((4, 3))})
    groups, keep = pruning.coupled_channels(mlp, shapes, x), [np.array([True, False, True, True])]
    assert pruning.mask_channels(shapes, groups, keep) == shapes
    with pytest.raises(TypeError, match=f"^{name} needs arrays with values; got a jax.Shape"):
        NEED_VALUES[name](mlp, shapes, groups, keep, x)
    with pytest.raises(TypeError, match=r"^channel_scores needs arrays with values"):
        pruning.prune(mlp, shapes, x, ratios=[0.5])
    if name in ("rescale", "least_squares", "reconstruction_scores") or name.startswith("a timing"):
        params = {"a": np.ones((2, 4)), "b": np.ones((4, 3))}
        with pytest.raises(TypeError, match=f"^{name} needs arrays with values; got a jax.Shape"):
            NEED_VALUES[name](mlp, params, groups, keep, jax.eval_shape(lambda: x))


def test_a_kernel_that_is_read_twice_is_zero_for_both_readers():
    """One mask zeroes rows of `b`, another zeroes columns; `d` divides the channels before `b`."""

    def apply(p, x):
        first = (jnp.tanh(x @ p["a"]) + p["c"][None]) / p["d"][None]
        y = jax.nn.relu(first @ p["b"])
        return jnp.tanh(y @ p["b"].T) @ p["e"] + y @ p["g"]

    rng = np.random.default_rng(12)
    shapes = {"a": (3, 6), "c": 6, "d": 6, "b": (6, 5), "e": (6, 2), "g": (5, 2)}
    params = {name: rng.uniform(0.5, 2, shape) for name, shape in shapes.items()}
    x = rng.normal(1, 2, (4, 3))
    groups = coupled_channels(apply, params, x)
    assert sorted(group.size for group in groups) == [5, 6]
    keep = [np.arange(group.size) % 2 > 0 for group in groups]
    np.testing.assert_allclose(
        apply(remove_channels(params, groups, keep), x),
        apply(mask_channels(params, groups, keep), x),
    )


CALLS: dict[str, Any] = {  # f is a network, p its arrays, g its groups, x the batches
    "remove_channels": lambda f, p, g, keep, x: remove_channels(p, g, keep),
    "mask_channels": lambda f, p, g, keep, x: mask_channels(p, g, keep),
    "fold_constants": lambda f, p, g, keep, x: fold_constants(f, p, g, keep, x[0][0]),
    "least_squares": lambda f, p, g, keep, x: channels.least_squares(f, p, g, keep, x),
    "rescale": lambda f, p, g, keep, x: channels.rescale(f, p, g, keep, x),
    "merge_channels": lambda f, p, g, keep, x: channels.merge_channels(f, p, g, keep, inputs=x[0]),
    "swap_channels": lambda f, p, g, keep, x: channels.swap_channels(f, p, g, keep, batches=x),
    "reconstruction_scores": lambda f, p, g, keep, x: channels.reconstruction_scores(
        p, g, apply=f, batches=x
    ),
    "channel_scores": lambda f, p, g, keep, x: channels.channel_scores(p, g),
    "resized": lambda f, p, g, keep, x: channels.resized(f, g, keep)(
        remove_channels(p, g, keep), *x[0]
    ),
    "prune": lambda f, p, g, keep, x: prune(f, p, *x[0], ratios=[0.2, 0.5]),
}


@pytest.mark.parametrize("name", CALLS)
def test_arrays_and_masks_of_the_caller_do_not_change(name):
    """The arrays and masks that the caller passes are read-only."""

    def apply(p, x):
        h = jax.nn.relu(x @ p["a"] + p["b"][None])
        return jax.nn.relu(h @ p["c"] - p["d"][None]) @ p["e"]

    rng = np.random.default_rng(8)
    shapes = {"a": (3, 7), "b": (7,), "c": (7, 6), "d": (6,), "e": (6, 2)}
    params = {key: rng.normal(1, 2, size=shape) for key, shape in shapes.items()}
    batches = [(rng.normal(size=(9, 3)),) for _ in range(2)]
    groups = coupled_channels(apply, params, *batches[0])
    arguments = params, drawn(groups), batches
    arrays = jax.tree.leaves(arguments)
    before = [array.copy() for array in arrays]
    for array in arrays:
        array.setflags(write=False)
    params, keep, batches = arguments
    CALLS[name](apply, params, groups, keep, batches)
    jax.tree.map(np.testing.assert_array_equal, arrays, before)
