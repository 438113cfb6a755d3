"""Kernels that are fitted after channels were removed, compared with NumPy's least squares."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

import pruning
from pruning.channels import (
    fold_constants,
    least_squares,
    mask_channels,
    reconstruction_scores,
    remove_channels,
    rescale,
)
from pruning.channels._program.linear import Product
from pruning.channels._repair import least_squares as module
from pruning.channels._repair.moments import Moments, merge, moments
from tests.support import prunable

RNG = np.random.default_rng(0)
START = RNG.bit_generator.state
EXACT = partial(least_squares, ridge=(0.0,))


@pytest.fixture(autouse=True)
def same_draws():
    """Reset the generator before each test, so that the order of tests changes no random number."""
    RNG.bit_generator.state = START


def halves(x):
    return [(x[: len(x) // 2],), (x[len(x) // 2 :],)]


def convolve(x, w, **options):
    options = {"window_strides": (1, 1), "padding": "SAME"} | options
    return lax.conv_general_dilated(
        x, w, dimension_numbers=options.pop("numbers", ("NHWC", "HWIO", "NHWC")), **options
    )


NCHW = ("NCHW", "OIHW", "NCHW")
# for each name: the shape of a kernel, and its product with 3 × 3 images of four channels
PRODUCTS = {
    "dense": ((36, 3), lambda h, w: h.reshape(len(h), -1) @ w),
    "transposed": ((3, 36), lambda h, w: h.reshape(len(h), -1) @ w.T),
    "kernel first": ((36, 3), lambda h, w: jnp.einsum("io,ni->on", w, h.reshape(len(h), -1)).T),
    "batched": ((9, 4, 2), lambda h, w: jnp.einsum("npi,pio->npo", h.reshape(-1, 9, 4), w)),
    "pixelwise": ((4, 2, 3), lambda h, w: jnp.einsum("nhwi,iab->nhwab", h, w)),
    "heads": ((2, 2, 3), lambda h, w: jnp.einsum("nhwab,abo->nhwo", h.reshape(-1, 3, 3, 2, 2), w)),
    "convolution": ((3, 3, 4, 2), convolve),
    "strided": ((3, 2, 4, 2), partial(convolve, window_strides=(2, 1), padding=[(1, 0), (2, 1)])),
    "dilated": (
        (2, 2, 4, 2),
        partial(convolve, padding=[(1, 1), (0, 1)], rhs_dilation=(2, 1), lhs_dilation=(1, 2)),
    ),
    "cropped": ((2, 2, 4, 2), partial(convolve, padding=[(-1, 0), (0, 1)])),
    "grouped": ((3, 3, 2, 4), partial(convolve, feature_group_count=2)),
    "NCHW": ((2, 4, 3, 3), lambda h, w: convolve(h.transpose(0, 3, 1, 2), w, numbers=NCHW)),
}


def followed_by(name):
    """A network of a pointwise layer of four channels, and a kernel that reads these channels."""
    shape, product = PRODUCTS[name]
    params = {"a": RNG.normal(size=(3, 4)), "w": RNG.normal(size=shape)}

    def apply(params, x):
        return product(jnp.tanh(x @ params["a"]), params["w"])

    return apply, params, RNG.normal(size=(48, 3, 3, 3))


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_kernel_is_that_of_least_squares(name):
    apply, params, x = followed_by(name)
    groups = pruning.coupled_channels(apply, params, x)
    group = next(g for g in groups if g.positions[0].path == "a")
    keep = [np.arange(group.size) % 2 == 1]
    repaired = EXACT(apply, params, [group], keep, halves(x))
    masked = mask_channels(params, [group], keep)

    def outputs(flat):  # the outputs are linear in the kernel `flat`
        return apply(masked | {"w": flat.reshape(params["w"].shape)}, x).ravel()

    run = jax.jit(apply)
    design = np.asarray(jax.jit(jax.jacfwd(outputs))(np.zeros(params["w"].size)))
    wanted = np.ravel(run(params, x))
    best = design @ np.linalg.lstsq(design, wanted)[0]
    found = np.ravel(run(mask_channels(repaired, [group], keep), x))
    np.testing.assert_allclose(found, best, rtol=1e-7, atol=1e-7)


def mlp(params, x):
    h = jax.nn.relu(x @ params["a"] + params["b"][None])
    return jax.nn.relu(h @ params["c"] + params["d"][None]) @ params["e"]


def mlp_params(width=10, outputs=4):
    shapes = {"a": (5, width), "b": (width,), "c": (width, 7), "d": (7,), "e": (7, outputs)}
    return {name: RNG.normal(size=shape) for name, shape in shapes.items()}


MLP, X = mlp_params(), RNG.normal(size=(400, 5)) + 1


def first_layer(params, removed):
    group = pruning.coupled_channels(mlp, params, X)[0]
    return [group], [~np.isin(np.arange(group.size), removed)]


def test_a_bias_takes_the_constant_of_the_least_squares():
    groups, keep = first_layer(MLP, [0, 3, 4])
    repaired = EXACT(mlp, MLP, groups, keep, halves(X))
    h = np.maximum(X @ MLP["a"] + MLP["b"], 0)
    design = np.column_stack([h[:, keep[0]], np.ones(len(X))])
    solution = np.linalg.lstsq(design, h @ MLP["c"] + MLP["d"])[0]
    np.testing.assert_allclose(repaired["c"][keep[0]], solution[:-1], rtol=1e-9)
    np.testing.assert_allclose(repaired["d"], solution[-1], rtol=1e-9)


@pytest.mark.parametrize("repair", [least_squares, rescale])
def test_what_loses_nothing_is_not_changed(repair):
    groups = pruning.coupled_channels(mlp, MLP, X)
    keep = [np.ones(group.size, bool) for group in groups]
    repaired = repair(mlp, MLP, groups, keep, halves(X))
    jax.tree.map(np.testing.assert_array_equal, repaired, MLP)


def test_redundant_channels_are_removed_without_loss():
    params = mlp_params()
    # Channel 3 equals channel 1, and channel 4 is twice channel 2.
    params["a"][:, 3], params["b"][3] = params["a"][:, 1], params["b"][1]
    params["a"][:, 4], params["b"][4] = 2 * params["a"][:, 2], 2 * params["b"][2]
    groups, keep = first_layer(params, [3, 4])
    small = remove_channels(least_squares(mlp, params, groups, keep, halves(X)), groups, keep)
    np.testing.assert_allclose(mlp(small, X), mlp(params, X), rtol=1e-4, atol=1e-4)
    exact = remove_channels(EXACT(mlp, params, groups, keep, halves(X)), groups, keep)
    np.testing.assert_allclose(mlp(exact, X), mlp(params, X), rtol=1e-8, atol=1e-8)


def test_a_running_mean_takes_the_constant_too():
    blocks = (prunable.conv_norm, partial(prunable.conv_norm, width=5))
    apply, params, _ = prunable.network(3, blocks)
    x = RNG.normal(size=(64, 4, 4, 2))
    group = pruning.coupled_channels(apply, params, x)[0]
    keep = [np.arange(group.size) > 1]
    repaired = least_squares(apply, params, [group], keep, halves(x))
    masked = mask_channels(params, [group], keep)

    @jax.jit
    def outputs(tree):
        return prunable.convolve(jax.nn.relu(before(tree, x)), tree["1"]["w"]) - prunable.every(
            tree["1"]["n"]["mean"]
        )

    def before(tree, x):
        return prunable.normalize(tree["0"]["n"], prunable.convolve(x, tree["0"]["w"]))

    whole, old = outputs(params), outputs(masked)
    new = outputs(mask_channels(repaired, [group], keep))
    np.testing.assert_allclose(np.mean(new - whole, (0, 1, 2)), 0, atol=1e-10)
    assert np.square(new - whole).sum() < np.square(old - whole).sum() / 2


@pytest.mark.parametrize("repair", [least_squares, rescale])
@pytest.mark.parametrize("removed", [[0], [1, 5, 6], list(range(9))])
def test_the_error_on_the_data_is_never_above_that_without_repair(repair, removed):
    groups, keep = first_layer(MLP, removed)
    masked = mask_channels(MLP, groups, keep)
    repaired = mask_channels(repair(mlp, MLP, groups, keep, halves(X)), groups, keep)

    def outputs(tree):
        return jax.nn.relu(X @ tree["a"] + tree["b"][None]) @ tree["c"] + tree["d"][None]

    errors = [np.square(outputs(tree) - outputs(MLP)).sum() for tree in (repaired, masked)]
    assert errors[0] <= errors[1]


def test_a_scale_and_a_shift_are_those_of_a_regression():
    groups, keep = first_layer(MLP, [0, 3, 4])
    repaired = rescale(mlp, MLP, groups, keep, halves(X))
    h = np.maximum(X @ MLP["a"] + MLP["b"], 0)
    x, y = h[:, keep[0]] @ MLP["c"][keep[0]], h @ MLP["c"] + MLP["d"]
    for k in range(7):
        slope, constant = np.polyfit(x[:, k], y[:, k], 1)
        np.testing.assert_allclose(repaired["c"][keep[0], k], slope * MLP["c"][keep[0], k])
        np.testing.assert_allclose(repaired["d"][k], constant)


def test_a_large_ridge_keeps_the_kernel_and_bad_rows_choose_it():
    groups, keep = first_layer(MLP, [0, 3])
    repaired = least_squares(mlp, MLP, groups, keep, halves(X), ridge=(1e12,))
    np.testing.assert_allclose(repaired["c"][keep[0]], MLP["c"][keep[0]], rtol=1e-9)
    few = RNG.normal(size=(6, 5)) + 1  # fewer samples than the kernel `c` has inputs
    chosen = least_squares(mlp, MLP, groups, keep, halves(few))
    h = np.maximum(X @ MLP["a"] + MLP["b"], 0)
    chosen["d"] = chosen["d"] - MLP["d"]
    errors = [
        np.square(h[:, keep[0]] @ tree["c"][keep[0]] + tree["d"][None] - h @ MLP["c"]).mean()
        for tree in (chosen, MLP | {"d": np.zeros(7)})
    ]
    assert errors[0] < errors[1]


def test_a_ridge_that_the_first_rows_cannot_do_with_is_not_chosen():
    groups, keep = first_layer(MLP, [0])
    rows = halves(X[:12])  # the first batch has fewer samples than the kernel `c` has inputs
    trees = [least_squares(mlp, MLP, groups, keep, rows, ridge=r) for r in ((0.0, 1e-2), (1e-2,))]
    jax.tree.map(np.testing.assert_array_equal, *trees)


@pytest.mark.parametrize("repair", [least_squares, rescale])
def test_a_kernel_whose_inputs_are_zero_stays(repair):
    params = MLP | {"b": np.full(10, -1e3)}
    groups, keep = first_layer(params, [0])
    repaired = repair(mlp, params, groups, keep, halves(X))
    np.testing.assert_array_equal(repaired["c"][1:], MLP["c"][1:])


def test_a_mean_far_from_zero_costs_no_digits():
    params = {name: value.astype("float32") for name, value in MLP.items()}
    x = (RNG.normal(size=(400, 5)) + 1e3).astype("float32")
    params["b"] = (params["b"] - 1e3 * params["a"].sum(0) + 2).astype("float32")
    params["d"] = (params["d"] + 1e3).astype("float32")
    group = pruning.coupled_channels(mlp, params, x)[0]
    keep = [np.arange(10) > 2]
    repaired = EXACT(mlp, params, [group], keep, halves(x))
    h = np.maximum(x @ params["a"] + params["b"], 0).astype("float64")
    design = np.column_stack([h[:, keep[0]], np.ones(len(x))])
    solution = np.linalg.lstsq(design, h @ params["c"].astype("float64"))[0]
    np.testing.assert_allclose(repaired["c"][keep[0]], solution[:-1], rtol=2e-3, atol=2e-3)


def test_sharded_batches_give_the_same():
    groups, keep = first_layer(MLP, [0, 3, 4])
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    batches = [jax.device_put(batch, sharding) for batch in halves(X)]
    found = least_squares(mlp, MLP, groups, keep, batches)
    expected = least_squares(mlp, MLP, groups, keep, halves(X))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-10), found, expected)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"repair": partial(least_squares, batches=halves(X))},
        {"repair": partial(rescale, batches=halves(X))},
        {"score": partial(reconstruction_scores, apply=mlp, batches=halves(X))},
        {"resize": True},
    ],
    ids=["fold", "least_squares", "rescale", "reconstruction_scores", "resize"],
)
def test_params_on_an_explicit_mesh_give_the_same_without_a_mesh_as_context(options):
    def with_zeros(params, x):
        return mlp({**params, "d": params["d"] + jnp.zeros_like(params["d"])}, x)

    mesh = jax.make_mesh((8,), ("data",))
    params = jax.device_put(MLP, NamedSharding(mesh, PartitionSpec()))
    found, expected = (
        pruning.prune(with_zeros, tree, X, ratios=[0.5], **options) for tree in (params, MLP)
    )
    close = partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-10)
    jax.tree.map(close, found.params, expected.params)
    close(found.apply(found.params, X), expected.apply(expected.params, X))


def attention(params, x):
    h = jnp.tanh(x @ params["up"])
    q, k, v = (jnp.einsum("ntd,dhe->nthe", h, params[name]) for name in "qkv")
    weights = jax.nn.softmax(jnp.einsum("nqhe,nkhe->nhqk", q, k))
    mixed = jnp.einsum("nhqk,nkhe->nqhe", weights, v)
    return jnp.einsum("nqhe,hed->nqd", mixed, params["o"])


def test_attention_is_repaired():
    shapes = {"up": (4, 6), "q": (6, 2, 3), "k": (6, 2, 3), "v": (6, 2, 5), "o": (2, 5, 4)}
    params = {name: RNG.normal(size=shape) for name, shape in shapes.items()}
    x = RNG.normal(size=(64, 7, 4))
    groups = pruning.coupled_channels(attention, params, x)
    # The first set of arrays has the input channels of attention. The second set has the channels
    # of values.
    inside = [{"k", "q", "up", "v"}, {"o", "v"}]
    groups = [g for g in groups if {p.path for p in g.positions} in inside]
    assert len(groups) == 2
    keep = [np.arange(g.size) > g.size // 4 for g in groups]
    trees = [params, least_squares(attention, params, groups, keep, halves(x))]
    run = jax.jit(attention)
    whole = run(params, x)
    errors = [np.square(run(mask_channels(t, groups, keep), x) - whole).sum() for t in trees]
    assert errors[1] < 0.5 * errors[0]


def routed(params, x):
    h = jnp.tanh(x @ params["a"])
    # `offset` is an integer parameter, which is not repaired.
    index = jnp.argmax(h @ params["b"], 1) + params["offset"]
    return h @ params["c"] + jax.nn.one_hot(index, 3)


def test_what_is_no_floating_number_stays():
    params = {"a": RNG.normal(size=(5, 6)), "b": RNG.normal(size=(6, 2)), "offset": np.array(1)}
    params["c"] = RNG.normal(size=(6, 3))
    groups = pruning.coupled_channels(routed, params, X)
    keep = [np.arange(g.size) > 2 for g in groups]
    repaired = least_squares(routed, params, groups, keep, halves(X))
    assert repaired["offset"] == 1
    assert not np.allclose(repaired["c"][3:], params["c"][3:])


def twice(params, x):
    return jnp.tanh(jnp.tanh(x @ params["a"]) @ params["b"]) @ params["b"] @ params["c"]


def looped(params, x):
    def body(h, w):
        return jnp.tanh(h @ w), None

    return lax.scan(body, x @ params["a"], params["s"])[0] @ params["c"]


def normed(params, x):
    w = params["b"] / jnp.sqrt(jnp.square(params["b"]).sum(0, keepdims=True) + 1)
    return jnp.tanh(x @ params["a"]) @ w


def broadcast(params, x):
    return jnp.tanh(x @ params["a"]) @ jnp.broadcast_to(params["v"][:, None], (6, 3))


def read_as_an_image(params, x):
    h = jnp.tanh(x[:7] @ params["a"])
    return convolve(params["b"][None, None], h.T[None, None])


def of_complex_numbers(params, x):
    return jnp.tanh(x @ params["a"]).astype(complex) @ params["b"].astype(complex)


REFUSED = {
    "b of two products": twice,
    "s of a loop": looped,
    "s of a loop behind b": lambda p, x: looped({**p, "a": p["b"]}, jnp.tanh(x @ p["a"])),
    "b computed from others": normed,
    "b of activations that are a kernel": read_as_an_image,
    "v of several outputs": broadcast,
    "b of complex numbers": of_complex_numbers,
}


@pytest.mark.parametrize("name", REFUSED)
def test_kernels_that_cannot_be_solved_are_named(name):
    apply, path = REFUSED[name], name[0]
    shapes = {"a": (5, 6), "b": (6, 6), "s": (3, 6, 6), "c": (6, 2), "v": (6,)}
    params = {name: RNG.normal(size=shape) for name, shape in shapes.items()}
    groups = pruning.coupled_channels(apply, params, X)
    keep = [np.arange(g.size) > 1 for g in groups]
    with pytest.raises(
        ValueError, match=rf"read once, outside of loops and branches, .* not true of .*{path}"
    ):
        least_squares(apply, params, groups, keep, halves(X))


def test_prune_repairs_before_it_cuts():
    repair = partial(least_squares, batches=halves(X))
    repaired = pruning.prune(mlp, MLP, X[:2], ratios=[0.25, 0.5], repair=repair)
    folded = pruning.prune(mlp, MLP, X[:2], ratios=[0.25, 0.5])
    whole = mlp(MLP, X)
    errors = [np.square(mlp(p.params, X) - whole).sum() for p in (repaired, folded)]
    assert repaired.params["c"].shape == folded.params["c"].shape
    assert errors[0] < errors[1] / 2


NAN = np.where(np.arange(5) == 2, np.nan, X)
BAD_BATCHES = {
    "batches must hold at least one batch; got none": ([], {}),
    "batches must hold at least two": ([(X,)], {}),
    r"all batches must have the same shape; got \(\(3, 5\),\) and \(\(2, 5\),\)": (
        [(X[:3],), (X[:2],)],
        {},
    ),
    "second moments must be finite": (halves(NAN), {}),
    "more rows or ridge must be larger; 2 rows .* 10 inputs of c": (halves(X[:4]), {"ridge": (0,)}),
    "ridge must hold one or more nonnegative numbers": (halves(X), {"ridge": (-1.0, 1.0)}),
}


@pytest.mark.parametrize("message", BAD_BATCHES)
def test_bad_batches_are_refused(message):
    batches, options = BAD_BATCHES[message]
    groups, keep = first_layer(MLP, [0])
    with pytest.raises(ValueError, match=message):
        least_squares(mlp, MLP, groups, keep, batches, **options)


@pytest.mark.parametrize("odd", range(4))
def test_a_batch_of_another_shape_is_refused_wherever_it_is(odd):
    batches = [(X[:3],)] * 4
    batches[odd] = (X[:2],)
    groups, keep = first_layer(MLP, [0])
    with pytest.raises(ValueError, match=r"must have the same shape; got \(\([23], 5\),\) and \("):
        rescale(mlp, MLP, groups, keep, batches)


def test_one_batch_is_enough_for_one_ridge():
    groups, keep = first_layer(MLP, [0, 3])
    one, two = (
        least_squares(mlp, MLP, groups, keep, batches, ridge=(0.1,))
        for batches in ([(X,)], halves(X))
    )
    for found, expected in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_outputs_that_are_not_finite_are_refused():
    params = MLP | {"c": np.full_like(MLP["c"], np.nan)}
    with pytest.raises(ValueError, match="second moments must be finite"):
        least_squares(mlp, params, *first_layer(MLP, [0]), halves(X))


@pytest.mark.parametrize(("count", "held"), [(2, 1), (3, 1), (4, 1), (7, 1), (8, 2), (12, 3)])
def test_the_last_quarter_of_the_batches_chooses_the_ridge(count, held, monkeypatch):
    """The solver must get moments of the last quarter of the batches, and of all earlier batches.

    At least one batch belongs to the last quarter.
    """
    rows = []

    def solver(kernel, first, last, shifted, *, ridge):
        rows.append((first.rows, last.rows, first.x, last.x))
        return kernel

    monkeypatch.setattr(module, "ridge_solution", solver)
    groups = pruning.coupled_channels(mlp, MLP, X)
    keep = [np.arange(group.size) > 0 for group in groups]
    batches = [(RNG.normal(size=(5, *X.shape[1:])),) for _ in range(count)]
    least_squares(mlp, MLP, groups, keep, batches)
    assert {pair[:2] for pair in rows} == {(5 * (count - held), 5 * held)}


def test_moments_of_parts_of_unequal_rows_are_those_of_all_rows():
    def of(x, y):
        dx, dy = x - x.mean(1, keepdims=True), y - y.mean(1, keepdims=True)
        sums = np.einsum("gri,grj->gij", dx, dx), np.einsum("gri,grj->gij", dx, dy)
        return Moments(x.shape[1], x.mean(1), y.mean(1), *sums)

    x, y = RNG.normal(3, 1, (2, 11, 3)), RNG.normal(-5, 2, (2, 11, 4))
    edges = [0, 2, 3, 7, 11]
    parts = (of(x[:, a:b], y[:, a:b]) for a, b in itertools.pairwise(edges))
    for found, expected in zip(merge(parts), of(x, y), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_moments_of_half_precision_are_summed_in_float32(dtype):
    rng = np.random.default_rng(6)
    x, y = (jnp.asarray(rng.normal(3, 400, (300, n)), dtype) for n in (3, 2))
    rows, columns = ((), (0,), (1,)), ((), (1,), (0,))
    found = moments(Product(rows, columns, rows), x, y)
    a, b = np.asarray(x, float), np.asarray(y, float)
    h = a - a.mean(0)
    assert found.rows == 300
    for part, expected in zip(found[1:], (a.mean(0), b.mean(0), h.T @ h, h.T @ b), strict=True):
        np.testing.assert_allclose(part[0], expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


def solved_by_hand(h, y, kernel, ridge, center):
    """The kernel that solves the normal equations, centered by the means of the pair `center`."""
    h, y = h - center[0].mean(0), y - center[1].mean(0)
    penalty = ridge * np.square(h).sum(0).mean() * np.eye(h.shape[1])
    return np.linalg.solve(h.T @ h + penalty, h.T @ y + penalty @ kernel)


@pytest.mark.parametrize("ridges", [(0.2,), (30.0, 0.3, 1e-6), tuple(np.geomspace(1e-4, 1e3, 29))])
@pytest.mark.parametrize("further", [0.0, 2.0, -1.0])
def test_the_last_batch_chooses_the_ridge_and_all_batches_give_the_kernel(ridges, further):
    """The kernel equals the solution by hand.

    The inputs have mean three. The shift `further` is added to the inputs of the last of four
    batches. Each ridge is tried on the last batch, with the kernel fitted to the first three.
    """
    rng = np.random.default_rng(2)
    shapes = {"a": (5, 7), "b": (7,), "c": (7, 3), "d": (3,), "e": (3, 2)}
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    x = rng.normal(3, 5**0.5, size=(4, 5, 5))
    x[3] += further
    group = pruning.coupled_channels(mlp, params, x[0])[0]
    keep = np.arange(7) % 3 > 0
    found = least_squares(mlp, params, [group], [keep], [(part,) for part in x], ridge=ridges)
    h = np.maximum(x @ params["a"] + params["b"], 0)
    y, h, w = h @ params["c"], h[..., keep], params["c"][keep]
    first, last = (h[:3].reshape(-1, len(w)), y[:3].reshape(-1, 3)), (h[3], y[3])
    errors = []
    for ridge in ridges:
        kernel = solved_by_hand(*first, w, ridge, first)
        rest = last[1] - first[1].mean(0) - (last[0] - first[0].mean(0)) @ kernel
        errors.append(np.square(rest).sum())
    every = h.reshape(-1, len(w)), y.reshape(-1, 3)
    kernel = solved_by_hand(*every, w, ridges[int(np.argmin(errors))], every)
    np.testing.assert_allclose(found["c"][keep], kernel, rtol=1e-6, atol=1e-9)
    constant = every[1].mean(0) - every[0].mean(0) @ kernel
    np.testing.assert_allclose(found["d"], params["d"] + constant, rtol=1e-6, atol=1e-9)


def test_the_penalty_of_each_group_of_a_kernel_is_a_share_of_its_own_squares():
    """The penalty of a feature group is relative to the mean square of the group's own inputs.

    Two sums share the bias, so the bias cannot change, and no constant term is fitted.
    """

    def apply(p, x):
        h = jax.nn.relu(x @ p["a"])
        y = convolve(h, p["w"], feature_group_count=2) + p["b"][None, None, None]
        return jnp.tanh(y) + jnp.sin(h[..., :4] @ p["v"] + p["b"][None, None, None])

    rng = np.random.default_rng(17)
    shapes = {"a": (3, 8), "w": (1, 1, 4, 6), "v": (4, 6), "b": (6,)}
    params = {name: rng.normal(1, 2, size=shape) for name, shape in shapes.items()}
    params["a"][:, 4:] *= 9
    x = rng.normal(1, 2, size=(40, 1, 1, 3))
    (group,) = (g for g in pruning.coupled_channels(apply, params, x) if g.size == 4)
    keep = np.array([True, False, True, True])
    found = least_squares(apply, params, [group], [keep], halves(x), ridge=(0.3,))
    h = np.maximum(x[:, 0, 0] @ params["a"], 0)
    for k in range(2):
        inputs, outputs = h[:, 4 * k : 4 * k + 4], slice(3 * k, 3 * k + 3)
        old, some = params["w"][0, 0, :, outputs], inputs[:, keep]
        gram = some.T @ some
        rest = some.T @ (inputs @ old) - gram @ old[keep]
        penalty = 0.3 * np.diag(gram).mean() * np.eye(3)
        solved = old[keep] + np.linalg.solve(gram + penalty, rest)
        np.testing.assert_allclose(found["w"][0, 0, keep][:, outputs], solved, rtol=1e-7)


def test_the_second_kernel_is_fitted_to_what_the_first_one_gives():
    """The second fit has inputs after the first repair, and targets from the whole network."""
    keep = {10: np.arange(10) % 4 > 0, 7: np.arange(7) % 3 > 0}
    groups = [g for g in pruning.coupled_channels(mlp, MLP, X) if g.size in keep]
    masks = [keep[group.size] for group in groups]
    found = EXACT(mlp, MLP, groups, masks, halves(X))
    h = np.maximum(X @ MLP["a"] + MLP["b"], 0)
    design = np.column_stack([h[:, keep[10]], np.ones(len(X))])
    whole = h @ MLP["c"] + MLP["d"]
    solution = np.linalg.lstsq(design, whole)[0]
    np.testing.assert_allclose(found["c"][keep[10]][:, keep[7]], solution[:-1, keep[7]], rtol=1e-7)
    small = np.maximum(design @ solution, 0)[:, keep[7]]
    last = np.linalg.lstsq(small, np.maximum(whole, 0) @ MLP["e"])[0]
    np.testing.assert_allclose(found["e"][keep[7]], last, rtol=1e-7)


# for each product, the axes of the result along which scales differ
OUTPUTS = {"kernel first": (1,), "pixelwise": (3, 4), "grouped": (3,), "NCHW": (1,), "heads": (3,)}


@pytest.mark.parametrize("name", OUTPUTS)
def test_every_kind_of_product_is_scaled_output_by_output(name):
    """The scale of an output is Σ y ỹ / Σ ỹ², with y before and ỹ after pruning."""
    apply, params, x = followed_by(name)
    x = 3 + 2 * x
    group = next(
        g for g in pruning.coupled_channels(apply, params, x) if g.positions[0].path == "a"
    )
    keep = [np.arange(group.size) % 2 == 1]
    tree = rescale(apply, params, [group], keep, [(part,) for part in np.split(x, 3)])
    run = jax.jit(apply)
    whole = np.asarray(run(params, x))
    masked, found = (np.asarray(run(mask_channels(t, [group], keep), x)) for t in (params, tree))
    others = tuple(k for k in range(whole.ndim) if k not in OUTPUTS[name])
    slope = (whole * masked).sum(others, keepdims=True) / np.square(masked).sum(
        others, keepdims=True
    )
    assert np.abs(slope - 1).max() > 0.01
    np.testing.assert_allclose(found, slope * masked, rtol=1e-8, atol=1e-8)


KERNEL_FORMS = {  # kernels that are computed from a parameter c, and the sign of c in the kernel
    "minus": (lambda c: -c, -1),
    "subtracted from zero": (lambda c: 0.0 - c, -1),
    "reshaped": (lambda c: c.reshape(-1).reshape(c.shape), 1),
    "turned twice": (lambda c: c.T.T, 1),
}
BIAS_FORMS = {  # sums of outputs y and a parameter d, and the sign of d in the sum
    "y + d": (lambda y, d: y + d, 1),
    "d + y": (lambda y, d: d + y, 1),
    "y - d": (lambda y, d: y - d, -1),
    "y - (-d)": (lambda y, d: y - (-d), 1),
}


@pytest.mark.parametrize("one_number", [False, True])
@pytest.mark.parametrize("bias", BIAS_FORMS)
@pytest.mark.parametrize("kernel", ["minus", "reshaped"])
def test_signs_and_shapes_of_parameters_are_those_of_the_program(kernel, bias, one_number):
    """Programs negate or reshape the kernel; they subtract the bias, or the bias is one number."""
    (of_kernel, sign), (add, plus) = KERNEL_FORMS[kernel], BIAS_FORMS[bias]

    def apply(p, x):
        y = jax.nn.relu(x @ p["a"] + p["b"][None]) @ of_kernel(p["c"])
        return jnp.tanh(add(y, p["d"][None]))

    rng = np.random.default_rng(13)
    shapes = {"a": (3, 7), "b": (7,), "c": (7, 4), "d": (1 if one_number else 4,)}
    params = {name: rng.normal(1, 2, size=shape) for name, shape in shapes.items()}
    x = rng.normal(3, 5, size=(40, 3))
    (group,) = pruning.coupled_channels(apply, params, x)
    keep = np.arange(7) % 3 > 0
    found = EXACT(apply, params, [group], [keep], halves(x))
    h = np.maximum(x @ params["a"] + params["b"], 0)
    y = h @ (sign * params["c"])
    centred, target = (z - z.mean(0) for z in (h[:, keep], y))
    solution = np.linalg.lstsq(centred, target)[0]
    np.testing.assert_allclose(found["c"][keep], sign * solution, rtol=1e-7)
    lacking = (y - h[:, keep] @ solution).mean(None if one_number else 0)
    np.testing.assert_allclose(found["d"], params["d"] + plus * lacking, rtol=1e-7)


@pytest.mark.parametrize("bias", BIAS_FORMS)
@pytest.mark.parametrize("kernel", KERNEL_FORMS)
def test_constants_are_folded_into_a_bias_by_its_sign(kernel, bias):
    (of_kernel, sign), (add, plus) = KERNEL_FORMS[kernel], BIAS_FORMS[bias]

    def apply(p, x):
        y = jax.nn.relu(x @ p["a"] + p["b"][None]) @ of_kernel(p["c"])
        return jnp.tanh(add(y, p["d"][None]))

    rng = np.random.default_rng(14)
    shapes = {"a": (3, 7), "b": (7,), "c": (7, 4), "d": (4,)}
    params = {name: rng.normal(3, 2, size=shape) for name, shape in shapes.items()}
    x, keep = rng.normal(size=(2, 3)), np.arange(7) % 3 > 0
    groups = pruning.coupled_channels(apply, params, x)
    found = fold_constants(apply, params, groups, [keep], x)
    constant = np.maximum(params["b"], 0)[~keep] @ (sign * params["c"])[~keep]
    np.testing.assert_allclose(found["d"], params["d"] + plus * constant, rtol=1e-10)


TERMS = {"sum": lambda p: p["w"] + p["v"], "adapter": lambda p: p["w"] + p["low"] @ p["up"]}


@pytest.mark.parametrize("name", TERMS)
def test_of_a_kernel_that_is_a_sum_one_term_is_repaired_as_the_whole_kernel_is(name):
    rng = np.random.default_rng(11)
    shapes = {"in": (4, 6), "w": (6, 3), "v": (6, 3), "low": (6, 2), "up": (2, 3)}
    params = {key: rng.normal(1, 2, shape) for key, shape in shapes.items()}
    batches = [(rng.normal(3, 2, (30, 4)),) for _ in range(2)]

    def network(kernel):
        return lambda p, x: jax.nn.relu(x @ p["in"] - 4) @ kernel(p)

    def repaired(apply, params):
        group, *_ = pruning.coupled_channels(apply, params, *batches[0])
        keep = [np.array([True, False, True, True, False, True])]
        (scores,) = reconstruction_scores(params, [group], apply=apply, batches=batches)
        small = least_squares(apply, params, [group], keep, batches)
        return scores, apply(mask_channels(small, [group], keep), *batches[0])

    whole = {"in": params["in"], "w": TERMS[name](params)}
    expected = repaired(network(lambda p: p["w"]), whole)
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-9),
        repaired(network(TERMS[name]), params),
        expected,
    )


def test_a_term_that_another_product_reads_too_is_refused():
    rng = np.random.default_rng(11)
    shapes = {"in": (4, 6), "w": (6, 3), "v": (6, 3)}
    params = {key: rng.normal(1, 2, shape) for key, shape in shapes.items()}
    batches = [(rng.normal(3, 2, (30, 4)),) for _ in range(2)]

    def apply(p, x):
        h = jax.nn.relu(x @ p["in"])
        return h @ (p["w"] + p["v"]) + jnp.tanh(h @ p["v"])

    groups = pruning.coupled_channels(apply, params, *batches[0])
    with pytest.raises(
        ValueError, match=r"must be read once, .* not true of v: exclude the layers "
    ):
        least_squares(apply, params, groups, [np.arange(6) < 4], batches)


def test_kernels_of_small_inputs_are_fitted_like_those_of_large_ones():
    """The fit has no unit: if the inputs of a kernel are 10⁶ times smaller, it is the same."""
    rng = np.random.default_rng(12)
    params = {"a": rng.normal(1, 2, (4, 6)), "b": rng.normal(1, 2, (6, 3))}
    batches = [(rng.normal(3, 2, (30, 4)),) for _ in range(2)]

    def apply(p, x):
        return jax.nn.relu(x @ p["a"]) @ p["b"]

    def fitted(params):
        groups = pruning.coupled_channels(apply, params, *batches[0])
        return least_squares(apply, params, groups, [np.arange(6) < 4], batches)["b"]

    large = fitted(params)
    assert np.abs(large - params["b"]).max() > 0.1
    np.testing.assert_allclose(fitted(params | {"a": 1e-6 * params["a"]}), large, rtol=1e-6)
