"""Pruned models run by the program of the large model; `check_program` rejects other programs."""

import re
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen
from jax import lax

from pruning import coupled_channels, mask_channels, prune, remove_channels
from pruning.channels import check_program, cost, resized
from tests.support import prunable

RNG = np.random.default_rng(0)


def drawn(groups, seed=0):
    """Random masks. Each group keeps a channel. The first group loses its last channel."""
    rng = np.random.default_rng(seed)
    keep = [rng.random(group.size) >= 0.5 for group in groups]
    for vector in keep:
        vector[rng.integers(vector.size)] = True
    keep[0][-1], keep[0][0] = False, True
    return keep


def assert_resized_is_masked(apply, params, *inputs, rtol=1e-10):
    """Assert that the resized and the masked network have equal values and gradients."""
    groups = coupled_channels(apply, params, *inputs)
    keep = drawn(groups)
    small, masked = (f(params, groups, keep) for f in (remove_channels, mask_channels))
    run = resized(apply, groups, keep)

    def with_gradient(f, params):
        def total(params):
            y = f(params, *inputs)
            return jnp.square(y).sum(), y

        return jax.jit(jax.grad(total, has_aux=True))(params)

    (whole, expected), (gradient, found) = with_gradient(apply, masked), with_gradient(run, small)
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol)
    twice = jax.tree.map(lambda x: np.stack([x, x]), small)
    batched = jax.jit(jax.vmap(run, in_axes=(0, *(None for _ in inputs))))(twice, *inputs)
    np.testing.assert_allclose(np.asarray(batched)[1], expected, rtol=rtol, atol=rtol)
    near = lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=100 * rtol)  # noqa: E731
    jax.tree.map(near, gradient, remove_channels(whole, groups, keep))


@pytest.mark.parametrize("unroll", [1, 2])
@pytest.mark.parametrize("reverse", [False, True])
def test_layers_of_a_scan_run_in_their_order(reverse, unroll):
    """In a scan over layers, the residual stream and the channels inside layers are pruned."""

    def layer(h, p):
        h = h + jnp.tanh(h @ p["in"]) @ p["out"]
        return h, h @ p["read"]

    def apply(p, x):
        last, read = lax.scan(layer, x @ p["first"], p["layers"], reverse=reverse, unroll=unroll)
        return last @ p["last"], read

    sizes = {"in": (3, 6, 5), "out": (3, 5, 6), "read": (3, 6, 2)}
    layers = {name: RNG.normal(size=size) for name, size in sizes.items()}
    params = {"first": RNG.normal(size=(4, 6)), "layers": layers, "last": RNG.normal(size=(6, 2))}
    x = RNG.normal(size=(7, 4))
    groups = coupled_channels(apply, params, x)
    assert {group.size for group in groups} == {5, 6}
    keep = drawn(groups)
    small, masked = (f(params, groups, keep) for f in (remove_channels, mask_channels))
    run = resized(apply, groups, keep)
    assert f"unroll={unroll}" in str(jax.make_jaxpr(run)(small, x))
    found, expected = run(small, x), apply(masked, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), found, expected)


@pytest.mark.parametrize(
    "name",
    [
        *("resnext", "u-net", "scan"),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("resnet, projection", "mobilenet")
        ),
    ],
)
def test_a_resized_network_is_the_masked_one(name):
    assert_resized_is_masked(*prunable.model(name))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_a_resized_random_network_is_the_masked_one(seed):
    assert_resized_is_masked(*prunable.random_network(seed))


def skipped(p, x):
    """A shortcut that has a projection only if shapes differ, as in Flax's ImageNet example."""
    h = jax.nn.relu(x @ p["w0"])
    y = jax.nn.relu(h @ p["w1"]) @ p["w2"]
    if h.shape != y.shape:
        h = h @ p["proj"]
    return jax.nn.relu(h + y) @ p["o"]


WIDTHS = {"w0": (4, 8), "w1": (8, 8), "w2": (8, 32), "proj": (8, 32), "o": (32, 3), "c": (3,)}
PARAMS = {name: RNG.normal(size=shape) for name, shape in WIDTHS.items()}
MLP = {"w0": RNG.normal(size=(4, 8)), "o": RNG.normal(size=(8, 3)), "c": RNG.normal(size=3)}
X = RNG.normal(size=(5, 4))


def hidden(p, x):
    return jax.nn.relu(x @ p["w0"])


def times_one_of(y, first):
    z = jnp.tanh(y)
    return y * (y if first else z)


def times_number(y, first):
    z = y.sum()
    return y * (2.0 if first else z)


def of_one_or_two(y, first):
    """A call of two arrays with one result, or a call of one array with two results."""
    z = jnp.tanh(y)
    return jax.jit(jnp.add)(y, z) if first else jax.jit(lambda y: (2 * y, y))(y)[0]


def either_result(y, first):
    z = jnp.tanh(y)
    return y if first else z


# The programs of these networks depend on a width. Each network has a part of the error message.
CHANGING = {
    "gain": (lambda p, x: hidden(p, x) @ p["o"] / p["w0"].shape[1] ** 0.5, "2.82.* becomes 1.41"),
    "branch": (
        lambda p, x: jax.jit(lambda y: y * (2.0 if p["w0"].shape[1] > 6 else 1.0))(
            hidden(p, x) @ p["o"]
        ),
        "2.0 becomes 1.0",
    ),
    "sum over a width": (
        lambda p, x: (
            hidden(p, x) @ p["o"]
            + jnp.sum(jnp.broadcast_to(p["c"], (p["w0"].shape[1], 3)), 0)[None]
        ),
        "the shape of an operand of reduce_sum",
    ),
    "operand": (
        lambda p, x: times_one_of(hidden(p, x) @ p["o"], p["w0"].shape[1] > 6),
        "another array becomes an operand of mul",
    ),
    "number for an array": (
        lambda p, x: times_number(hidden(p, x) @ p["o"], p["w0"].shape[1] <= 6),
        "another array becomes an operand of mul",
    ),
    "array for a number": (
        lambda p, x: times_number(hidden(p, x) @ p["o"], p["w0"].shape[1] > 6),
        "another array becomes an operand of mul",
    ),
    "number of operands": (
        lambda p, x: (
            hidden(p, x) @ p["o"]
            + jnp.concatenate([x[:1, :3]] * p["w0"].shape[1]).mean(0, keepdims=True)
        ),
        "the number of arrays or of their axes changes, .* of concatenate",
    ),
    "number of operands of a call": (
        lambda p, x: of_one_or_two(hidden(p, x) @ p["o"], p["w0"].shape[1] > 6),
        "the number of arrays or of their axes changes, .* of p?jit",
    ),
    "number of axes": (
        lambda p, x: (
            hidden(p, x) @ p["o"] + jnp.ones((1,) * (3 if p["w0"].shape[1] > 6 else 2)).sum()
        ),
        "the number of arrays or of their axes changes, .* of broadcast_in_dim",
    ),
    "positions": (
        lambda p, x: hidden(p, x) @ p["o"] + jnp.arange(1.0 * p["w0"].shape[1]).sum(),
        r"\(8,\) becomes \(2,\), the shape of iota",
    ),
    "start of a slice": (
        lambda p, x: (
            hidden(p, x) @ p["o"]
            + lax.slice(x, (start := 0 if p["w0"].shape[1] > 6 else 2, 0), (start + 1, 3))
        ),
        r"\(0, 0\) becomes \(2, 0\), start_indices of slice",
    ),
    "last step": (
        lambda p, x: (
            2.0 * (hidden(p, x) @ p["o"]) if p["w0"].shape[1] > 6 else hidden(p, x) @ p["o"]
        ),
        "nothing takes the place of mul",
    ),
    "result": (
        lambda p, x: either_result(hidden(p, x) @ p["o"], p["w0"].shape[1] > 6),
        "another array becomes a result",
    ),
    "number of results": (
        lambda p, x: (hidden(p, x) @ p["o"],) * (2 if p["w0"].shape[1] > 6 else 1),
        "another array becomes a result",
    ),
    "result of a call": (
        lambda p, x: jax.jit(either_result, static_argnums=1)(
            hidden(p, x) @ p["o"], p["w0"].shape[1] > 6
        ),
        "another array becomes a result",
    ),
    "loop": (
        lambda p, x: lax.fori_loop(0, p["w0"].shape[1], lambda _, h: h / 2, hidden(p, x) @ p["o"]),
        "8 becomes 2",
    ),
}


@pytest.mark.parametrize("name", CHANGING)
def test_a_program_that_changes_is_refused_and_runs_resized(name):
    apply, message = CHANGING[name]
    with pytest.raises(ValueError, match=rf"^apply must compute the same .*{message}.* at .*\.py:"):
        prune(apply, MLP, X, ratios=[0.75])
    pruned = prune(apply, MLP, X, ratios=[0.5, 0.75], fold=False, resize=True)
    assert pruned.params["w0"].shape == (4, 2)
    expected = jax.jit(apply)(mask_channels(MLP, pruned.groups, pruned.keep), X)
    run = jax.jit(resized(apply, pruned.groups, pruned.keep))
    np.testing.assert_allclose(run(pruned.params, X), expected, rtol=1e-12)


def test_a_projection_that_would_be_skipped_is_named():
    options: dict = {"ratios": [0.75], "exclude": ["w0", "w1"], "fold": False}
    with pytest.raises(ValueError, match=r"add takes the place of dot_general at .*\(skipped\)"):
        prune(skipped, PARAMS, X, **options)
    pruned = prune(skipped, PARAMS, X, resize=True, **options)
    expected = jax.jit(skipped)(mask_channels(PARAMS, pruned.groups, pruned.keep), X)
    run = jax.jit(resized(skipped, pruned.groups, pruned.keep))
    np.testing.assert_allclose(run(pruned.params, X), expected, rtol=1e-12)


PARTS = {  # functions that read some of the arrays
    "one hidden activation": lambda p, x: jnp.tanh(x @ p["a"] + p["b"][None]),
    "two of them": lambda p, x: (jnp.tanh(x @ p["a"]), jnp.exp(x @ p["a"]) - p["b"][None]),
    "one bias": lambda p, x: p["b"] * 2 + x.sum(),
    "an array itself": lambda p, x: (p["c"], x @ p["a"]),
    "an array that no group has": lambda p, x: x.sum() * p["d"],
    "no array": lambda p, x: x + 1,
}


@pytest.mark.parametrize("name", PARTS)
def test_a_function_of_some_arrays_runs_resized(name):
    shapes = {"a": (3, 8), "b": (8,), "c": (8, 5), "d": (5,)}
    params = {name: RNG.normal(2, 3, shape) for name, shape in shapes.items()}
    x = RNG.normal(1, 2, (4, 3))
    network = lambda p, x: jnp.tanh(x @ p["a"] + p["b"][None]) @ p["c"] + p["d"][None]  # noqa: E731
    groups = coupled_channels(network, params, x)
    (kept,) = keep = [np.isin(np.arange(8), [1, 2, 6])]
    small = remove_channels(params, groups, keep)
    found = jax.tree.leaves(resized(PARTS[name], groups, keep)(small, x))
    for y, whole in zip(found, jax.tree.leaves(PARTS[name](params, x)), strict=True):
        channels = [kept if n == 8 else np.ones(n, bool) for n in whole.shape]
        np.testing.assert_allclose(y, np.asarray(whole)[np.ix_(*channels)], rtol=1e-12)


def test_written_widths_run_resized():
    def written(p, x):
        return hidden(p, x).reshape(5, 2, 4).reshape(5, 8) @ p["o"]

    def flat(p, x):
        h = jnp.broadcast_to(hidden(p, x)[:, None, :], (5, 3, 8))
        return h.reshape(5, 24) @ jnp.concatenate([p["o"]] * 3)

    with pytest.raises(ValueError, match=r"channels.resized.* with fewer channels it raises"):
        prune(flat, MLP, X, ratios=[0.5])
    for apply in (written, flat):
        assert_resized_is_masked(apply, MLP, X)


def test_the_derivative_of_what_is_computed_takes_the_place_of_a_custom_one():
    doubled = jax.custom_vjp(lambda h: 2 * jnp.exp(h))
    doubled.defvjp(lambda h: (2 * jnp.exp(h), h), lambda h, g: (g * 2 * jnp.exp(h),))
    assert_resized_is_masked(lambda p, x: doubled(x @ p["w0"]) @ p["o"], MLP, X)


@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp"])
def test_a_custom_rule_may_have_whole_numbers_before_and_behind_what_it_differentiates(kind):
    """A custom derivative rule may have integer arguments on both sides of a differentiated one.

    The integers set the gain of each sample; they are also a result. The derivative rule differs on
    purpose: its gain is always 7.
    """

    def forward(numbers, h, others):
        return numbers + others, h * (numbers + others).astype(float)[:, None]

    none = np.zeros(5, jax.dtypes.float0)
    gained = getattr(jax, kind)(forward)
    if kind == "custom_vjp":
        gained.defvjp(lambda *x: (forward(*x), None), lambda _, g: (none, 7 * g[1], none))
    else:
        gained.defjvp(lambda x, t: (forward(*x), (none, 7 * t[1])))

    def apply(p, x):
        _, h = gained(x.argmax(1), jnp.tanh(x @ p["w0"]), x.argmin(1))
        return h @ p["o"]

    groups, keep = coupled_channels(apply, MLP, X), [np.arange(8) % 3 > 0]
    small = remove_channels(MLP, groups, keep)
    run = resized(apply, groups, keep)
    found = jax.grad(lambda p: run(p, X).sum())(small)
    slope = 1 - np.tanh(X @ small["w0"]) ** 2
    expected = X.T @ (7 * slope * small["o"].sum(1))
    np.testing.assert_allclose(found["w0"], expected, rtol=1e-10)


@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp"])
def test_a_custom_rule_may_be_of_complex_numbers(kind):
    """The derivative rule differs on purpose: it multiplies by 7, and the function by 2."""
    doubled = getattr(jax, kind)(lambda z: 2 * z)
    if kind == "custom_vjp":
        doubled.defvjp(lambda z: (2 * z, None), lambda _, g: (7 * g,))
    else:
        doubled.defjvp(lambda z, t: (2 * z[0], 7 * t[0]))

    def apply(p, x):
        h = jnp.tanh(x @ p["w0"])
        return doubled(lax.complex(h, -h)).real @ p["o"]

    groups, keep = coupled_channels(apply, MLP, X), [np.arange(8) % 3 > 0]
    small = remove_channels(MLP, groups, keep)
    run = resized(apply, groups, keep)
    h = np.tanh(X @ small["w0"])
    np.testing.assert_allclose(run(small, X), 2 * h @ small["o"], rtol=1e-10)
    found = jax.grad(lambda p: run(p, X).sum())(small)
    expected = X.T @ (7 * (1 - h**2) * small["o"].sum(1))
    np.testing.assert_allclose(found["w0"], expected, rtol=1e-10)


LOOPS: dict[str, Any] = {  # three steps of z/2 + 1, so that zeros become 1.75
    "fori_loop": lambda z: lax.fori_loop(0, 3, lambda _, z: z / 2 + 1, z),
    "scan": lambda z: lax.scan(lambda z, _: (z / 2 + 1, None), z, length=3)[0],
    "while_loop": lambda z: lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] / 2 + 1), (0, z)
    )[1],
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", ["custom_vjp", "forward of custom_vjp", "custom_jvp"])
def test_a_custom_rule_may_have_a_loop_that_meets_the_channels_behind_it(kind, loop):
    """Zeros are the loop's first state; only after the loop, the kernel multiplies the state.

    For f(h, w) = tanh(h) w, the rule is h' ↦ ((h + z) h') w · (z w) and w' ↦ h w', with z = 1.75.
    """

    def f(h, w):
        return jnp.tanh(h) @ w

    def factors(h, w):
        z = LOOPS[loop](jnp.zeros(h.shape))
        return z @ w, h + z

    def backward(saved, g):
        h, w, products, sums = saved
        return sums * ((g * products) @ w.T), h.T @ g

    ruled: Any = (jax.custom_jvp if kind == "custom_jvp" else jax.custom_vjp)(f)
    if kind == "custom_jvp":

        def tangents(x, t):
            products, sums = factors(*x)
            return f(*x), (sums * t[0]) @ x[1] * products + x[0] @ t[1]

        ruled.defjvp(tangents)
    elif kind == "custom_vjp":
        ruled.defvjp(lambda *x: (f(*x), x), lambda x, g: backward((*x, *factors(*x)), g))
    else:
        ruled.defvjp(lambda *x: (f(*x), (*x, *factors(*x))), backward)

    def apply(p, x):
        return ruled(x @ p["w0"], p["o"])

    groups, keep = coupled_channels(apply, MLP, X), [np.arange(8) % 3 > 0]
    small = remove_channels(MLP, groups, keep)
    run = resized(apply, groups, keep)
    h, w = X @ small["w0"], small["o"]
    np.testing.assert_allclose(run(small, X), np.tanh(h) @ w, rtol=1e-10)
    found = jax.grad(lambda p: run(p, X).sum())(small)
    expected = X.T @ ((h + 1.75) * (w @ (1.75 * w.sum(0))))
    np.testing.assert_allclose(found["w0"], expected, rtol=1e-10)
    np.testing.assert_allclose(found["o"], h.T @ np.ones((5, 3)), rtol=1e-10)


def test_a_linen_network_runs_resized():
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.relu(linen.Conv(6, (3, 3), param_dtype=float)(x))
            x = linen.relu(linen.Conv(6, (3, 3), feature_group_count=6, param_dtype=float)(x))
            return linen.Dense(3, param_dtype=float)(x.mean((1, 2)))

    x = RNG.normal(size=(2, 4, 4, 2))
    net = Net()
    assert_resized_is_masked(net.apply, net.init(jax.random.key(0), x), x)


def test_what_cannot_run_small_is_trained_resized():
    """A network whose program depends on the width is trained after each removal by `resized`."""
    apply, _ = CHANGING["gain"]

    def tuned(params, step, pruned):
        run = resized(apply, pruned.groups, pruned.keep)
        gradient = jax.jit(jax.grad(lambda p: jnp.square(run(p, X)).sum()))(params)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient)

    def moved(params, pruned):
        assert pruned.params is params
        return params | {"c": params["c"] + 1}

    options: dict = {"ratios": [0.5, 0.75], "fold": False, "resize": True}
    still, trained = (
        prune(apply, MLP, X, **options, **functions)
        for functions in ({}, {"fine_tune": tuned, "recalibrate": moved})
    )
    size = lambda p: jnp.square(resized(apply, p.groups, p.keep)(p.params, X)).sum()  # noqa: E731
    assert size(trained) < size(still)
    np.testing.assert_allclose(trained.params["c"], MLP["c"] + 2)


def attention(p, x):
    """Attention with two heads of depth 4; as in Flax, biases are reshaped to constant widths."""

    def heads(name):
        return jnp.einsum("ti,ihd->thd", x, p[name]) + p[f"{name} bias"].reshape(1, 2, 4)

    q, k, v = map(heads, ("q", "k", "v"))
    shares = jax.nn.softmax(jnp.einsum("thd,shd->hts", q, k) / q.shape[-1] ** 0.5)
    return jnp.einsum("hts,shd,hdo->to", shares, v, p["out"])


def test_attention_runs_resized():
    shapes = {**dict.fromkeys("qkv", (6, 2, 4)), "out": (2, 4, 3)}
    shapes |= {f"{name} bias": (2, 4) for name in "qkv"}
    params = {name: RNG.normal(size=shape) for name, shape in shapes.items()}
    with pytest.raises(ValueError, match=r"channels.resized.* with fewer channels it raises"):
        prune(attention, params, RNG.normal(size=(5, 6)), ratios=[0.5])
    assert_resized_is_masked(attention, params, RNG.normal(size=(5, 6)))


def first_alone(groups):
    return [np.arange(group.size) == 0 for group in groups]


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        *((name, drawn) for name in prunable.MODELS),
        *(
            (name, first_alone)
            if name in ("bottleneck", "shuffle", "attention")
            else pytest.param(name, first_alone, marks=pytest.mark.slow)
            for name in prunable.MODELS
        ),
    ],
)
def test_networks_that_take_their_widths_pass(name, kept):
    apply, params, x = prunable.model(name)
    groups = coupled_channels(apply, params, x)
    keep = kept(groups)
    check_program(apply, remove_channels(params, groups, keep), groups, keep, x)


def test_a_network_may_hold_keys_and_not_a_number():
    """The program holds a random key, a NaN, and `take`, which gives NaN for an invalid index."""
    key, nothing = jax.random.key(0), np.full((1, 3), np.nan)

    def apply(p, i):
        h = jax.nn.relu(jnp.take(p["e"], i, axis=0) @ p["w0"])
        noise = jax.random.normal(key, (1, 3))
        return jnp.where(noise > 9, nothing, h @ p["o"] + noise)

    params, rows = MLP | {"e": RNG.normal(size=(7, 4))}, np.arange(2)
    groups = coupled_channels(apply, params, rows)
    assert [group.size for group in groups] == [4, 8]
    keep = drawn(groups)
    check_program(apply, remove_channels(params, groups, keep), groups, keep, rows)


@pytest.mark.parametrize("constant", [jax.random.key, lambda n: np.full((1, 3), 1.0 * n)])
@pytest.mark.parametrize("changing", [True, False])
def test_constants_that_a_width_chooses_must_be_the_same(constant, changing):
    by_width = {8: constant(8), 3: constant(3 if changing else 8)}

    def apply(p, x):
        held = by_width[p["w0"].shape[1]]
        noise = jax.random.normal(held, (1, 3)) if constant is jax.random.key else jnp.cos(held)
        return hidden(p, x) @ p["o"] + noise

    groups, keep = coupled_channels(apply, MLP, X), [np.arange(8) < 3]
    small = remove_channels(MLP, groups, keep)
    refused = pytest.raises(ValueError, match=r"^apply must compute the same .*; constants that it")
    with refused if changing else nullcontext():
        check_program(apply, small, groups, keep, X)


@pytest.mark.parametrize("wide", [True, False])
def test_constants_of_one_width_alone_are_refused(wide):
    table = jnp.arange(3.0)[None]

    def apply(p, x):
        y, is_wide = hidden(p, x) @ p["o"], p["w0"].shape[1] == 8
        return y + table if is_wide == wide else y

    groups, keep = coupled_channels(apply, MLP, X), [np.arange(8) < 3]
    with pytest.raises(ValueError, match=r"^apply must compute the same .*; constants that it"):
        check_program(apply, remove_channels(MLP, groups, keep), groups, keep, X)


def test_a_compiled_part_with_all_channels_has_forward_derivatives():
    apply = lambda p, x: hidden(p, jax.jit(jnp.sin)(x)) @ p["o"]  # noqa: E731
    groups, keep = coupled_channels(apply, MLP, X), [np.arange(8) < 3]
    small, masked = (f(MLP, groups, keep) for f in (remove_channels, mask_channels))
    run = resized(apply, groups, keep)
    found = jax.jvp(lambda x: run(small, x), (X,), (X**2,))
    expected = jax.jvp(lambda x: apply(masked, x), (X,), (X**2,))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_an_error_names_the_innermost_line_of_the_model():
    def grouped(h):
        return h.reshape(5, 2, 4)

    def written(p, x):
        return jnp.einsum("bgc,gco->bo", grouped(hidden(p, x)), p["o"].reshape(2, 4, -1))

    line = rf"at {re.escape(__file__)}:{grouped.__code__.co_firstlineno + 1} \(.*grouped\)"
    with pytest.raises(ValueError, match=line):
        prune(written, MLP, X, ratios=[0.5])


def test_an_error_inside_of_a_library_names_no_line():
    with pytest.raises(ValueError, match=r"else run it by .* it raises TypeError: ") as error:
        check_program(jnp.matmul, np.ones((2, 3)), (), [], np.ones((2, 2)))
    assert " at " not in str(error.value)


def test_without_groups_the_network_is_the_same():
    params, x = {"a": np.ones((2, 5)), "b": np.ones((5, 3))}, np.ones((1, 2))
    apply = lambda p, x: jax.nn.relu(x @ p["a"]) @ p["b"]  # noqa: E731
    check_program(apply, params, (), (), x)
    np.testing.assert_array_equal(resized(apply, (), ())(params, x), apply(params, x))


def test_a_network_may_close_over_traced_numbers():
    groups = coupled_channels(lambda p, x: hidden(p, x) @ p["o"], MLP, X)
    keep = [np.arange(8) < 3]
    small = remove_channels(MLP, groups, keep)

    @jax.jit
    def scaled(params, scale, shift):
        def apply(p, x):
            return scale * hidden(p, x) @ p["o"] + shift

        return resized(apply, groups, keep)(params, X)

    expected = 2 * hidden(small, X) @ small["o"] + 1
    np.testing.assert_allclose(scaled(small, 2.0, np.ones((1, 3))), expected, rtol=1e-12)


def test_what_was_read_of_a_program_is_kept_by_shapes():
    """`apply` is traced once for each set of shapes of its arguments."""
    traces = []

    def apply(params, x):
        traces.append(x.shape)
        return jax.nn.relu(x @ params["a"]) @ params["b"]

    params = {"a": jnp.ones((3, 6)), "b": jnp.ones((6, 2))}
    pruned = prune(apply, params, jnp.ones((1, 3)), ratios=[0.5], resize=True)
    traces.clear()
    for _ in range(3):
        expected = 9.0 * jnp.ones((4, 2))
        np.testing.assert_allclose(pruned.apply(pruned.params, jnp.ones((4, 3))), expected)
    assert len(traces) == 1
    pruned.apply(pruned.params, jnp.ones((5, 3)))
    assert len(traces) == 2


def by_second_branch(p, x):
    """A network in which the last of three branches has a number that depends on a width."""
    gain = 2.0 if p["w0"].shape[1] > 6 else 1.0
    branches = [lambda y: y, lambda y: 3 * y, lambda y: gain * y]
    return lax.switch(jnp.argmax(x[0]) % 3, branches, hidden(p, x) @ p["o"])


def by_second_stride(p, x):
    """A network whose stride along an axis of one pixel depends on a width."""
    strides = (1, 2 if p["w0"].shape[1] > 6 else 1)
    h = hidden(p, x)[:, None, None, :]
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        h, p["o"][None, None], strides, "VALID", dimension_numbers=numbers
    )


def by_inner_loop(p, x):
    """A network with an inner loop, whose number of steps depends on a width."""

    def body(_, y):
        return lax.fori_loop(0, p["w0"].shape[1], lambda _, z: z / 2, y)

    return lax.fori_loop(0, 3, body, hidden(p, x) @ p["o"])


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        (by_second_branch, "2.0 becomes 1.0"),
        (by_second_stride, r"\(1, 2\) becomes \(1, 1\), window_strides"),
        (by_inner_loop, "8 becomes 3"),
    ],
)
def test_a_change_behind_the_first_place_is_seen(apply, message):
    groups, keep = coupled_channels(apply, MLP, X), [np.arange(8) < 3]
    small = remove_channels(MLP, groups, keep)
    with pytest.raises(ValueError, match=rf"^apply must compute the same .*{message}"):
        check_program(apply, small, groups, keep, X)
    check_program(apply, MLP, groups, [np.arange(8) >= 0], X)


@pytest.mark.parametrize(("wide", "narrow"), [(1.0, 2.0), (1.0, None), (None, 1.0), (np.nan, 1.0)])
def test_a_number_that_is_a_result_must_stay(wide, narrow):
    """A result that is one number must not depend on the width; None stands for the array `y`."""

    def apply(p, x):
        y, number = hidden(p, x) @ p["o"], wide if p["w0"].shape[1] > 6 else narrow
        return y, y if number is None else number

    groups, keep = coupled_channels(apply, MLP, X), [np.arange(8) < 3]
    with pytest.raises(ValueError, match=r"^apply must compute .*; another array becomes a result"):
        check_program(apply, remove_channels(MLP, groups, keep), groups, keep, X)
    check_program(apply, MLP, groups, [np.arange(8) >= 0], X)


def test_a_number_that_is_the_last_result_must_stay():
    def apply(p, x):
        y = hidden(p, x) @ p["o"]
        return (y, 1.0) if p["w0"].shape[1] > 6 else (y,)

    groups, keep = coupled_channels(apply, MLP, X), [np.arange(8) < 3]
    with pytest.raises(ValueError, match=r"^apply must compute .*; another array becomes a result"):
        check_program(apply, remove_channels(MLP, groups, keep), groups, keep, X)


def test_a_sum_without_terms_that_are_not_zero_is_refused():
    """A removed channel adds exp(0) = 1 in the masked network, but nothing in the smaller one."""

    def apply(p, x):
        return jnp.exp(hidden(p, x)).sum(-1, keepdims=True) + hidden(p, x) @ p["o"]

    groups, keep = coupled_channels(apply, MLP, X, resize=True), [np.arange(8) < 3]
    small = remove_channels(MLP, groups, keep)
    with pytest.raises(ValueError, match=r"not zero where removed change, .* reduce_sum at .*:"):
        check_program(apply, small, groups, keep, X)
    run = resized(apply, groups, keep)
    np.testing.assert_allclose(run(small, X), apply(mask_channels(MLP, groups, keep), X))


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("count", [0, 1, 4])
def test_branches_and_loops_of_unknown_length_run_resized(index, count):
    def apply(p, x, index, count, limit):
        h = jnp.tanh(x @ p["a"])
        branches = [
            lambda h: jnp.sin(h @ p["b"]) @ p["c"],
            lambda h: h * 3 - 5,
            lambda h: h[:, ::-1] @ p["d"],
            lambda h: jnp.zeros(h.shape),
        ]
        h = lax.switch(index, branches, h)

        def body(state):
            h, i = state
            return h + jnp.tanh(h @ p["e"]) @ p["f"] + i, i + 1

        def goes_on(state):
            h, i = state
            return (i < count) & (jnp.square(h @ p["u"]).sum() < limit)

        h, _ = lax.while_loop(goes_on, body, (h, jnp.zeros(())))
        return h @ p["g"]

    rng = np.random.default_rng(3)
    shapes = {"a": (3, 6), "b": (6, 7), "c": (7, 6), "d": (6, 6)}
    shapes |= {"e": (6, 5), "f": (5, 6), "g": (6, 2), "u": (6, 3)}
    params = {name: rng.normal(3, 5, size=shape) for name, shape in shapes.items()}
    limit = jnp.array(1e9 if count < 4 else 2e6)  # four steps can reach 2e6, but not 1e9
    inputs = (rng.normal(size=(4, 3)), jnp.array(index), jnp.array(1.0 * count), limit)
    groups = coupled_channels(apply, params, *inputs, resize=True)
    assert sorted(group.size for group in groups) == [3, 5, 6, 7]
    keep = drawn(groups, seed=1)
    small, masked = (f(params, groups, keep) for f in (remove_channels, mask_channels))
    found, expected = resized(apply, groups, keep)(small, *inputs), apply(masked, *inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


LOOPS_OF_A_STEP = {
    "scan": lambda step, start: lax.scan(lambda state, _: (step(state), None), start, length=3)[0],
    "while": lambda step, start: lax.while_loop(lambda state: state[2] < 3, step, start),
}


@pytest.mark.parametrize("loop", LOOPS_OF_A_STEP)
def test_states_of_loops_that_begin_or_end_as_zeros_are_cut(loop):
    """Two states of a loop are zeros: `total` before the loop, and `added` after the first step."""

    def apply(p, x):
        h = jnp.tanh(x @ p["a"])

        def step(state):
            total, added, i = state
            return total + added + jnp.sin(h), jnp.zeros(h.shape), i + 1

        total, added, _ = LOOPS_OF_A_STEP[loop](step, (jnp.zeros(h.shape), h, 0))
        return (total + added) @ p["b"]

    rng = np.random.default_rng(4)
    params = {name: rng.normal(3, 5, shape) for name, shape in (("a", (3, 6)), ("b", (6, 2)))}
    groups, x = coupled_channels(apply, params, np.ones((4, 3))), rng.normal(size=(4, 3))
    assert [group.size for group in groups] == [6]
    keep = [np.arange(6) % 3 > 0]
    found = resized(apply, groups, keep)(remove_channels(params, groups, keep), x)
    h = np.tanh(x @ params["a"])[:, keep[0]]
    np.testing.assert_allclose(found, (h + 3 * np.sin(h)) @ params["b"][keep[0]], rtol=1e-12)


def test_what_is_rematerialized_stays_so_by_the_same_policy():
    """The resized program has the options of `jax.checkpoint`: its policy and `prevent_cse`."""
    policies = jax.checkpoint_policies

    def saved(policy, resize):
        def apply(p, x):
            layer = jax.checkpoint(lambda h: jnp.sin(h @ p["o"]), policy=policy)
            return layer(hidden(p, x))

        groups, keep = coupled_channels(apply, MLP, X), [np.arange(8) < 3]
        run = resized(apply, groups, keep) if resize else apply
        small = remove_channels(MLP, groups, keep)
        total = lambda p: run(p, X).sum()  # noqa: E731
        return str(jax.make_jaxpr(jax.grad(total))(small)).count("dot_general")

    def with_barrier(prevent_cse):
        layer = jax.checkpoint(lambda p, h: h @ p["o"], prevent_cse=prevent_cse)
        apply = lambda p, x: layer(p, hidden(p, x))  # noqa: E731
        groups, keep = coupled_channels(apply, MLP, X), [np.arange(8) < 3]
        small = remove_channels(MLP, groups, keep)
        return str(jax.make_jaxpr(resized(apply, groups, keep))(small, X))

    for prevent_cse in (True, False):
        assert f"prevent_cse={prevent_cse}" in with_barrier(prevent_cse)
    for policy in (policies.everything_saveable, policies.nothing_saveable):
        assert saved(policy, True) == saved(policy, False)
    assert saved(policies.everything_saveable, True) < saved(policies.nothing_saveable, True)


def test_of_several_states_each_may_be_whole_or_small():
    def step(p, state, memory, x):
        h = jnp.tanh(x @ p["a"] + state["h"])
        c = jnp.sin(h @ p["b"] + memory)
        return {"h": h}, c, c @ p["c"]

    rng = np.random.default_rng(4)
    shapes = {"a": (3, 6), "b": (6, 5), "c": (5, 2)}
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    x, h, c = rng.normal(3, 5, (4, 3)), rng.normal(3, 5, (4, 6)), rng.normal(3, 5, (4, 5))

    def unrolled(p, x):
        state, memory, y = step(p, {"h": jnp.zeros((4, 6))}, jnp.zeros((4, 5)), x)
        return step(p, state, memory, x)[2] + y

    groups = coupled_channels(unrolled, params, x)
    assert sorted(group.size for group in groups) == [5, 6]
    of_size = {6: np.arange(6) % 3 > 0, 5: np.arange(5) % 2 > 0}
    keep = [of_size[group.size] for group in groups]
    small = remove_channels(params, groups, keep)
    run = resized(step, groups, keep, states=({"h": h}, c))
    masked = mask_channels(params, groups, keep)
    state, memory, y = step(masked, {"h": h * of_size[6]}, c * of_size[5], x)
    expected = [np.asarray(state["h"])[:, of_size[6]], np.asarray(memory)[:, of_size[5]], y]
    for first in (h, h[:, of_size[6]]):
        for second in (c, c[:, of_size[5]]):
            found = jax.tree.leaves(run(small, {"h": first}, second, x))
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-10)


def test_a_state_of_one_sample_may_be_flattened():
    add = lambda p, cache, x: cache.reshape(-1) + x @ p["w0"]  # noqa: E731
    groups, keep = coupled_channels(lambda p, x: hidden(p, x) @ p["o"], MLP, X), [np.arange(8) < 3]
    cache = np.arange(8.0)[None] + 1
    run = resized(add, groups, keep, states=(cache,))
    found = run(remove_channels(MLP, groups, keep), cache, X[0])
    np.testing.assert_allclose(found, add(MLP, cache, X[0])[:3], rtol=1e-12)


def test_what_a_scatter_writes_over_channels_decides_whether_they_are_zero():
    """If cos is written over channels, removed channels are not zero, because cos(0) is 1."""

    def network(written):
        def apply(p, x):
            h = jnp.tanh(x @ p["a"])
            h = h.at[:, 0].set(written(h[:, 2]))
            return jnp.square(h).sum(-1)

        return apply

    rng = np.random.default_rng(8)
    params, x = {"a": rng.normal(1, 2, (3, 6))}, rng.normal(3, 2, (4, 5, 3))
    assert not coupled_channels(network(jnp.cos), params, x, resize=True)
    apply = network(jnp.sin)
    groups = coupled_channels(apply, params, x, resize=True)
    keep = [np.array([1, 0, 0, 1, 1, 0], bool)]
    np.testing.assert_allclose(
        resized(apply, groups, keep)(remove_channels(params, groups, keep), x),
        apply(mask_channels(params, groups, keep), x),
    )


def attended(q, k, v):
    weights = jax.nn.softmax(jnp.einsum("bnhd,bmhd->bhnm", q, k), -1)
    return jnp.einsum("bhnm,bmhd->bnhd", weights, v).reshape(*q.shape[:2], -1)


def flat(h):
    return h.reshape(*h.shape[:2], -1)


# For each name, the axes into which the 24 channels of a product are split, how the model reads the
# array with these axes, and the number of channels.
LAYOUTS: dict[str, Any] = {
    "gate and value": ((2, 12), lambda h: jax.nn.silu(h[..., 0, :]) * h[..., 1, :], 12),
    "value and gate": ((12, 2), lambda h: jax.nn.silu(h[..., 1]) * h[..., 0], 12),
    "after a function": ((2, 12), lambda h: jnp.tanh(jax.nn.silu(h))[..., 1, :], 12),
    "after a transpose": ((2, 12), lambda h: jnp.multiply(*jnp.moveaxis(h, 2, 0)), 12),
    "split": ((2, 12), lambda h: jnp.multiply(*jnp.split(h, 2, 2)).sum(2), 12),
    "three parts of heads": ((3, 4, 2), lambda h: attended(*jnp.unstack(h, axis=2)), 4),
    "heads of three parts": ((4, 3, 2), lambda h: attended(*jnp.unstack(h, axis=3)), 4),
    "one head": ((3, 8), lambda h: attended(*jnp.split(h, 3, axis=2)), 8),
    "maximum of parts": ((2, 12), lambda h: jnp.tanh(h).max(2), 12),
    "softmax of parts": ((3, 8), lambda h: (jax.nn.softmax(h, 2) * h).sum(2), 8),
    "some of the parts": ((4, 6), lambda h: flat(h[..., 1:, :]), 4),
    "shuffled": ((4, 6), lambda h: flat(h.swapaxes(2, 3)), 6),
    "shuffled twice": (
        (4, 6),
        lambda h: flat(jnp.cos(h.swapaxes(2, 3))) + flat(h.swapaxes(2, 3)),
        4,
    ),
    "a head alone": ((4, 6), lambda h: h[..., 1, :], 6),
    "a gate of each head": ((4, 6), lambda h: flat(h * h[..., :1]), 4),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_channels_are_along_an_axis_that_the_model_does_not_take_apart(name):
    axes, read, count = LAYOUTS[name]

    def apply(p, x):
        h = x @ p["a"] + p["b"][None, None, :]
        return read(h.reshape(*h.shape[:2], *axes)) @ p["c"]

    rng, x = np.random.default_rng(5), np.random.default_rng(6).normal(size=(2, 3, 4))
    width = jax.eval_shape(read, jnp.zeros((2, 3, *axes))).shape[-1]
    shapes = {"a": (4, 24), "b": (24,), "c": (width, 2)}
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    assert sum(group.size for group in coupled_channels(apply, params, x)) == count
    assert_resized_is_masked(apply, params, x)


def test_channels_of_transposed_images_are_along_the_longest_axis():
    """A product makes images of shape (channels, height, width), which are transposed for Flax."""

    def apply(p, x):
        images = jnp.moveaxis((x @ p["a"]).reshape(-1, 6, 2, 2), 1, -1)
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(images, p["b"], (1, 1), "SAME", dimension_numbers=numbers)

    rng = np.random.default_rng(7)
    params = {"a": rng.normal(size=(4, 24)), "b": rng.normal(size=(3, 3, 6, 5))}
    x = rng.normal(size=(3, 4))
    assert [group.size for group in coupled_channels(apply, params, x)] == [6]
    assert_resized_is_masked(apply, params, x)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_the_heads_of_the_attention_of_jax_are_channels(heads):
    """Four heads of queries share `heads` heads of keys and values.

    JAX reshapes the heads of queries to two axes: heads of keys, and the queries for each.
    """

    def apply(p, x):
        sizes = {"q": 4, "k": heads, "v": heads}
        arrays = [(x @ p[name]).reshape(2, 3, n, -1) for name, n in sizes.items()]
        return jax.nn.dot_product_attention(*arrays).reshape(2, 3, -1) @ p["o"]

    rng = np.random.default_rng(9)
    shapes = {"q": (4, 20), "k": (4, 5 * heads), "v": (4, 5 * heads), "o": (20, 2)}
    params = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    x = rng.normal(size=(2, 3, 4)).astype("float32")
    sizes = [group.size for group in coupled_channels(apply, params, x)]
    assert sizes == [4 if heads == 1 else heads]
    assert_resized_is_masked(apply, params, x, rtol=1e-5)


def test_a_root_that_a_sum_reads_may_be_zero():
    """The global response norm of ConvNeXt V2 divides the norm of each map by the mean norm.

    The norm's derivative is infinite at masked channels, so their network uses a root with slope 0.
    """

    def safe_root(x):
        return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1)), 0)

    def apply(p, x, root=jnp.sqrt):
        h = jnp.tanh(x @ p["a"])
        norms = root(jnp.square(h).sum(1, keepdims=True))
        h = h * (norms / (norms.mean(-1, keepdims=True) + 1e-6)) * p["scale"] + p["shift"] + h
        return h.mean(1) @ p["b"]

    rng = np.random.default_rng(10)
    shapes = {"a": (4, 9), "scale": (1, 1, 9), "shift": (1, 1, 9), "b": (9, 2)}
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    x = rng.normal(size=(2, 3, 4))
    groups = coupled_channels(apply, params, x, resize=True)
    assert [(group.size, group.normed) for group in groups] == [(9, True)]
    keep = [np.arange(9) % 3 > 0]
    small, masked = (f(params, groups, keep) for f in (remove_channels, mask_channels))
    run = resized(apply, groups, keep)
    np.testing.assert_allclose(run(small, x), apply(masked, x))

    def gradient(f, params, *options):
        return jax.grad(lambda p: jnp.square(f(p, x, *options)).sum())(params)

    expected = remove_channels(gradient(apply, masked, safe_root), groups, keep)
    jax.tree.map(np.testing.assert_allclose, gradient(run, small), expected)


def test_experts_whose_tokens_are_sorted_are_cut():
    """`jax.lax.ragged_dot` multiplies the tokens of each expert by the kernel of the expert."""

    def apply(p, x):
        expert = jnp.argmax(x @ p["router"], -1)
        order = jnp.argsort(expert)
        counts = jnp.bincount(expert, length=3)
        gate, value = jnp.split(lax.ragged_dot(jnp.take(x, order, 0), p["a"], counts), 2, -1)
        h = lax.ragged_dot(jax.nn.silu(gate) * value, p["b"], counts)
        return h[jnp.argsort(order)]

    rng, x = np.random.default_rng(11), np.random.default_rng(12).normal(size=(7, 4))
    shapes = {"router": (4, 3), "a": (3, 4, 12), "b": (3, 6, 5)}
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    assert [group.size for group in coupled_channels(apply, params, x)] == [6]
    assert_resized_is_masked(apply, params, x)
    assert cost(apply, params, x).macs == 7 * (4 * 3 + 4 * 12 + 6 * 5)


@pytest.mark.parametrize("normed", ["q", "k", "qk"])
def test_queries_that_are_normed_before_they_are_split_into_heads_are_cut(normed):
    """A removed head needs zeros for the norm of OLMo 2, but its softmax divides by a sum."""

    def norm(h, scale):
        return h * lax.rsqrt(jnp.square(h).mean(-1, keepdims=True) + 1e-6) * scale[None, None]

    def apply(p, x):
        h = {name: x @ p[name] for name in "qkv"}
        h |= {name: norm(h[name], p["scale"]) for name in normed}
        return attended(*(h[name].reshape(2, 3, 4, -1) for name in "qkv")) @ p["o"]

    rng, x = np.random.default_rng(13), np.random.default_rng(14).normal(size=(2, 3, 5))
    shapes = {"q": (5, 12), "k": (5, 12), "v": (5, 12), "o": (12, 2), "scale": (12,)}
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    assert not coupled_channels(apply, params, x)
    groups = coupled_channels(apply, params, x, resize=True)
    assert [group.size for group in groups] == [4]
    keep = [np.array([True, False, True, True])]
    small, masked = (f(params, groups, keep) for f in (remove_channels, mask_channels))
    assert small["scale"].shape == (9,)
    np.testing.assert_allclose(resized(apply, groups, keep)(small, x), apply(masked, x))
