"""Equal channels are merged without loss, and merged statistics equal a result by hand."""

import itertools
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pruning
from pruning.channels import clusters, merge_channels, remove_channels, resized, transport
from tests.support import prunable
from tests.support.architectures import ARCHITECTURES
from tests.support.numpy_programs import evaluated
from tests.support.random_networks import difference, random_network

RNG = np.random.default_rng(0)
EPS = 1e-10


def merged(apply, params, groups, keep, x, **options):
    tree = merge_channels(apply, params, groups, keep, inputs=x, **options)
    return remove_channels(tree, groups, keep)


def halves(groups):
    return [np.arange(group.size) >= group.size // 2 for group in groups]


def doubled(params, groups):
    """`params`, changed so that the first half of each group's channels equals the second half.

    The kernels that read the channels stay unchanged.
    """
    leaves, paths = [np.array(leaf) for leaf in jax.tree.leaves(params)], groups[0].parameters.paths
    for group in groups:
        half = group.size // 2
        for p in (p for p in group.positions if not p.incoming):
            rows = np.moveaxis(leaves[paths.index(p.path)], p.axis, 0)
            rows[p.indices[:half]] = rows[p.indices[half : 2 * half]]
    return jax.tree.unflatten(jax.tree.structure(params), list(map(jnp.asarray, leaves)))


def assert_the_same_is_merged_without_loss(apply, params, x, groups):
    params, keep = doubled(params, groups), halves(groups)
    small = merged(apply, params, groups, keep, x)
    run = resized(apply, groups, keep)
    assert difference(evaluated(run, small, *x), evaluated(apply, params, *x)) < 1e-11


def assert_merged_or_refused(apply, params, *x):
    """Assert that equal channels are merged without loss.

    The result is the number of groups that cannot be merged.
    """
    groups = [g for g in pruning.coupled_channels(apply, params, *x) if g.size > 1]
    accepted = []
    for group in groups:
        try:
            merge_channels(apply, params, [group], halves([group]), inputs=x)
            accepted.append(group)
        except ValueError as error:
            if not re.search(
                "must be read once|^(only kernels may sum|constants must not vary)", str(error)
            ):
                raise
    if accepted:
        assert_the_same_is_merged_without_loss(apply, params, x, accepted)
    return len(groups) - len(accepted)


def test_the_same_is_merged_without_loss():
    blocks = (prunable.conv_norm, prunable.separable, prunable.mean_head)
    apply, params, x = prunable.network(0, blocks)
    groups = pruning.coupled_channels(apply, params, x)
    assert_the_same_is_merged_without_loss(apply, params, (x,), groups)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(prunable.MODELS))
def test_the_same_is_merged_without_loss_in_every_model(name):
    assert assert_merged_or_refused(*prunable.model(name)) == {
        "scan": 2,
        "shared": 1,
        "attention": 1,
    }.get(name, 0)


@pytest.mark.slow
@pytest.mark.usefixtures("promotion")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_same_is_merged_without_loss_in_architectures(name):
    model = ARCHITECTURES[name](np.float64)
    assert_merged_or_refused(model.apply, model.params, *model.inputs)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_the_same_is_merged_without_loss_in_random_networks(seed):
    network = random_network(seed)
    assert_merged_or_refused(network.apply, network.params, network.x)


def scaled_twice(params, x):
    """A network whose norm has two scales, which may have different signs."""
    h = (x @ params["w"] - params["m"][None]) * jax.lax.rsqrt(params["v"] + EPS)[None]
    return jax.nn.relu(h * params["s"][None] * params["t"][None] + params["b"][None]) @ params["u"]


def test_the_same_is_merged_without_loss_if_two_scales_have_different_signs():
    params = {key: RNG.normal(size=8) for key in ("m", "s", "t", "b")}
    params |= {"w": RNG.normal(size=(5, 8)), "u": RNG.normal(size=(8, 3))}
    params["v"], x = RNG.uniform(0.5, 2, 8), RNG.normal(size=(7, 5))
    assert (params["s"] * params["t"] < 0)[4:].any()
    groups = pruning.coupled_channels(scaled_twice, params, x)
    assert_the_same_is_merged_without_loss(scaled_twice, params, (x,), groups)


def test_the_same_is_merged_without_loss_on_both_axes_of_a_kernel():
    def apply(p, x):
        h = jnp.tanh(x @ p["a"])
        return (h + jnp.tanh(h) @ p["w"].T) @ p["b"]

    shapes = {"a": (5, 8), "w": (8, 8), "b": (8, 3)}
    params = {key: RNG.normal(size=shape) for key, shape in shapes.items()}
    x = RNG.normal(size=(7, 5))
    groups = pruning.coupled_channels(apply, params, x)
    assert_the_same_is_merged_without_loss(apply, params, (x,), groups)


def normalized(params, x, eps=EPS):
    h = x @ params["w"]
    h.var(0)  # the program does not use the result of this call
    h = h - params["mean"][None]
    gain = params["scale"] / jnp.sqrt(params["var"] + eps)
    return jax.nn.relu(h * gain[None] + params["bias"][None]) @ params["u"]


def normalized_params(n=12):
    shapes = {"w": (5, n), "mean": (n,), "scale": (n,), "bias": (n,), "u": (n, 3)}
    params = {name: RNG.normal(size=shape) for name, shape in shapes.items()}
    return params | {"var": RNG.uniform(0.5, 2, n)}


@pytest.mark.parametrize("eps", [EPS, 0.5])
def test_merged_statistics_are_those_of_the_merged_filters(eps):
    # The loop computes the expected filters, and scales them to fit the mean running variance.
    params, x = normalized_params(), RNG.normal(size=(7, 5))
    apply = partial(normalized, eps=eps)
    (group,) = pruning.coupled_channels(apply, params, x)
    keep = [np.arange(12) % 3 == 0]
    labels = np.array([0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3])
    plan = lambda features, keep: np.eye(4)[labels]  # noqa: E731
    small = merged(apply, params, [group], keep, (x,), plan=plan)
    root = np.sqrt(params["var"] + eps)
    for k in range(4):
        of_cluster = np.flatnonzero(labels == k)
        scale = np.mean(np.abs(params["scale"][of_cluster]))
        var = np.mean(params["var"][of_cluster])
        unit, fused, mean = np.zeros(5), np.zeros(5), 0.0
        for i in of_cluster:
            gain = params["scale"][i] / root[i]
            w = params["w"][:, i]
            unit += gain * params["var"][i] ** 0.5 * w / np.linalg.norm(w) / len(of_cluster)
            fused += gain * w / len(of_cluster)
            mean += gain * params["mean"][i] / len(of_cluster)
        gain = scale / np.sqrt(var + eps)
        growth = gain * var**0.5 / np.linalg.norm(unit)
        np.testing.assert_allclose(small["scale"][k], scale)
        np.testing.assert_allclose(small["var"][k], var)
        np.testing.assert_allclose(small["w"][:, k], growth * fused / gain)
        np.testing.assert_allclose(small["mean"][k], growth * mean / gain)
        np.testing.assert_allclose(small["bias"][k], params["bias"][of_cluster].mean())
        np.testing.assert_allclose(small["u"][k], params["u"][of_cluster].sum(0))


def test_a_scale_without_a_variance_by_loops():
    """A network in which a scale follows a running mean, without a running variance.

    All channels share one running mean, the shift is an integer array, and `gain` scales outputs.
    """

    def scaled(p, x):
        h = (x @ p["w"] - p["mean"][None]) * p["scale"][None] + p["shift"].astype(float)[None]
        return jax.nn.relu(h) @ p["u"] * p["gain"][None]

    params, x = normalized_params(4), RNG.normal(size=(7, 5))
    params |= {"mean": np.ones(1), "shift": np.arange(4) ** 2, "gain": np.array([2.0, 0.0, -1.0])}
    (group,) = pruning.coupled_channels(scaled, params, x)
    labels, seen = np.array([0, 0, 1, 1]), []

    def plan(features, keep):
        seen.append(features)
        return np.eye(2)[labels]

    small = merged(scaled, params, [group], [np.arange(4) % 2 == 0], (x,), plan=plan)
    filters = params["w"] * params["scale"]
    columns = {tuple(column) for column in seen[0].T.round(12)}
    assert {tuple(row) for row in filters.round(12)} < columns
    for k in range(2):
        scale = np.mean(np.abs(params["scale"][labels == k]))
        np.testing.assert_allclose(small["scale"][k], scale)
        np.testing.assert_allclose(small["w"][:, k], filters[:, labels == k].mean(1) / scale)
        np.testing.assert_allclose(small["u"][k], params["u"][labels == k].sum(0))
    np.testing.assert_array_equal(small["shift"], params["shift"][::2])
    np.testing.assert_array_equal(small["mean"], params["mean"])


def shortcut(params, x):
    return normalized(params, x) + (x @ params["w"]) @ params["v"]


def shortcut_of_one_product(params, x):
    y = x @ params["w"]
    gain = params["scale"] / jnp.sqrt(params["var"] + EPS)
    h = (y - params["mean"][None]) * gain[None] + params["bias"][None]
    return jax.nn.relu(h) @ params["u"] + jnp.tanh(y) @ params["v"]


@pytest.mark.parametrize("shortcut", [shortcut, shortcut_of_one_product])
def test_outputs_that_are_read_with_and_without_a_norm_keep_their_means(shortcut):
    # All scales are negative. If merging moved the signs of the scales into the filters `w`, the
    # branch with `v`, which reads x @ w without the norm, would change.
    params, x = normalized_params(), RNG.normal(size=(7, 5))
    params |= {"scale": -np.abs(params["scale"]), "v": RNG.normal(size=(12, 3))}
    params = {k: v[..., :1].repeat(12, -1) if k not in "uv" else v for k, v in params.items()}
    group = pruning.coupled_channels(shortcut, params, x)
    small = merged(shortcut, params, group, [np.arange(12) < 2], (x,))
    np.testing.assert_allclose(small["w"], params["w"][:, :2])
    np.testing.assert_allclose(shortcut(small, x), shortcut(params, x))


def test_the_parametrization_of_a_norm_does_not_matter():
    params, x = normalized_params(), RNG.normal(size=(7, 5))
    factors = np.where(np.arange(12) % 2, -3.0, 0.5)
    flipped = params | {name: params[name] * factors for name in ("w", "mean")}
    flipped["scale"] = params["scale"] * np.sign(factors)
    flipped["var"] = (params["var"] + EPS) * factors**2 - EPS
    np.testing.assert_allclose(normalized(flipped, x), normalized(params, x), rtol=1e-9)
    group = pruning.coupled_channels(normalized, params, x)
    keep = [np.arange(12) < 6]
    trees = [merged(normalized, tree, group, keep, (x,)) for tree in (params, flipped)]
    outputs = [normalized(tree, x) for tree in trees]
    np.testing.assert_allclose(*outputs, rtol=1e-7)


def mlp(params, x):
    return jax.nn.relu(x @ params["a"] + params["b"][None]) @ params["c"]


def mlp_params(n=8):
    shapes = {"a": (5, n), "b": (n,), "c": (n, 3)}
    return {name: RNG.normal(size=shape) for name, shape in shapes.items()}


def test_a_plan_shares_a_channel_between_two():
    params, x = mlp_params(3), RNG.normal(size=(7, 5))
    group = pruning.coupled_channels(mlp, params, x)
    keep = [np.array([True, False, True])]
    plan = lambda features, keep: np.array([[2.0, 0.0], [1.0, 1.0], [0.0, 1.0]])  # noqa: E731
    small = merged(mlp, params, group, keep, (x,), plan=plan)
    a, c = params["a"], params["c"]
    np.testing.assert_allclose(small["a"][:, 0], (2 * a[:, 0] + a[:, 1]) / 3)
    np.testing.assert_allclose(small["a"][:, 1], (a[:, 1] + a[:, 2]) / 2)
    np.testing.assert_allclose(small["c"], [c[0] + c[1] / 2, c[1] / 2 + c[2]])


def test_a_path_that_ends_in_another_path_is_another_parameter():
    def nested(params, x):
        return mlp({"a": params["a"], "b": params["l"]["b"], "c": params["l"]["a"]}, x)

    params, x = mlp_params(4) | {"c": RNG.normal(size=(4, 4))}, RNG.normal(size=(7, 5))
    tree = {"a": params["a"], "l": {"a": params["c"], "b": params["b"]}}
    found, expected = (
        merged(f, p, pruning.coupled_channels(f, p, x), [np.arange(4) > 1], (x,))
        for f, p in ((nested, tree), (mlp, params))
    )
    np.testing.assert_array_equal(found["a"], expected["a"])
    np.testing.assert_array_equal(found["l"]["a"], expected["c"])


def test_near_channels_are_found_and_transport_balances_them():
    centers = RNG.normal(size=(3, 4)) * 10
    features = centers[[0, 1, 2, 0, 0, 1, 2]] + 0.1 * RNG.normal(size=(7, 4))
    keep = np.arange(7) < 3
    together = clusters(features, keep)
    np.testing.assert_array_equal(
        together @ together.T, np.equal.outer(*2 * [[0, 1, 2, 0, 0, 1, 2]])
    )
    plan = transport(features, keep)
    np.testing.assert_allclose(plan.sum(0), 1 / 3)
    np.testing.assert_allclose(plan.sum(1), 1 / 7)
    # Kept channel 0 receives the mass 1/3, which is less than the mass 3/7 of rows 0, 3 and 4.
    # Therefore the assertion leaves out rows 0, 3 and 4.
    assert (plan[[1, 2, 5, 6]].argmax(1) == [1, 2, 1, 2]).all()


def test_prune_merges_and_criteria_choose_how_many():
    params, x = mlp_params(), RNG.normal(size=(7, 5))
    small = pruning.prune(
        mlp, params, x, ratios=[0.5], repair=partial(merge_channels, inputs=(x,))
    ).params
    assert small["a"].shape == (5, 4)
    assert np.isfinite(mlp(small, x)).all()


def test_complex_filters_are_compared_and_averaged_with_their_imaginary_parts():
    """All filters have equal real parts. Filters 1 and 3 are nearest to each other."""
    apply = lambda p, x: jnp.square(jnp.abs(x.astype(complex) @ p["a"])) @ p["b"]  # noqa: E731
    a = np.array([[1 + 2j, 1 - 3j, 1 + 2.5j]])
    params, x = {"a": jnp.asarray(a), "b": jnp.array([[3.0], [5.0], [7.0]])}, jnp.ones((1, 1))
    groups, keep = pruning.coupled_channels(apply, params, x), [np.array([True, True, False])]
    small = merged(apply, params, groups, keep, [x])
    np.testing.assert_allclose(small["a"], [[1 + 2.25j, 1 - 3j]])
    np.testing.assert_allclose(small["b"][:, 0], [10, 5])


def test_filters_are_averaged_without_the_gain_of_transposed_outputs():
    """There are as many samples as channels, so the outputs keep their shape."""
    apply = lambda p, x: jnp.tanh((x @ p["w"]).T * p["a"][:, None]).T @ p["b"]  # noqa: E731
    params = {"w": np.array([[1, 2, 9.0]]), "a": np.array([1, 2, 6.0]), "b": np.ones((3, 2))}
    x = np.ones((3, 1))
    groups, keep = pruning.coupled_channels(apply, params, x), [np.array([True, False, True])]
    small = merged(apply, params, groups, keep, [x])
    np.testing.assert_allclose(small["w"], [[1.5, 9]])
    np.testing.assert_allclose(small["a"], [1.5, 6])


def test_a_scale_that_makes_the_channels_is_no_gain():
    """The one output of `w` has no channel of the group, so the channels are compared by `a`."""
    apply = lambda p, x: jnp.tanh((x @ p["w"]) * p["a"][None]) @ p["b"]  # noqa: E731
    params = {"w": np.ones((2, 1)), "a": np.array([1.0, 9, 2]), "b": np.array([[3.0], [4], [5]])}
    x = np.ones((4, 2))
    groups, keep = pruning.coupled_channels(apply, params, x), [np.array([True, True, False])]
    small = merged(apply, params, groups, keep, [x])
    np.testing.assert_allclose(small["a"], [1.5, 9])
    np.testing.assert_allclose(small["b"][:, 0], [8, 4])


def test_scaled_outputs_may_be_read_twice():
    """The gain `a` is complete before both readers, so `a` weights the filters."""

    def apply(p, x):
        h = (x @ p["w"]) * p["a"][None]
        return (jnp.tanh(h) + jnp.sin(h)) @ p["b"]

    params = {"w": np.array([[1.0, 3, 90]]), "a": np.array([2.0, 1, 9]), "b": np.ones((3, 2))}
    x = np.ones((4, 1))
    groups, keep = pruning.coupled_channels(apply, params, x), [np.array([True, False, True])]
    small = merged(apply, params, groups, keep, [x])
    np.testing.assert_allclose(small["a"], [1.5, 9])
    np.testing.assert_allclose(small["w"], [[2.5 / 1.5, 90]])


def test_activations_that_multiply_outputs_are_no_gain():
    apply = lambda p, x: jnp.tanh((x @ p["w"]) * jnp.tanh(x @ p["v"])) @ p["b"]  # noqa: E731
    params = {"w": np.array([[1.0, 3, 90]]), "v": np.array([[1.0, 2, 9]]), "b": np.ones((3, 2))}
    x = np.ones((4, 1))
    groups, keep = pruning.coupled_channels(apply, params, x), [np.array([True, False, True])]
    small = merged(apply, params, groups, keep, [x])
    np.testing.assert_allclose(small["w"], [[2, 90]])
    np.testing.assert_allclose(small["v"], [[1.5, 9]])


def test_a_gain_ends_where_activations_are_added():
    """The scale `c` of the sum is no part of the gain, so `a` alone weights the filters."""

    def apply(p, x):
        h = (x @ p["w"]) * p["a"][None] + jnp.tanh(x @ p["v"])
        return jnp.tanh(h * p["c"][None]) @ p["b"]

    params = {"w": np.array([[1.0, 3, 90]]), "v": np.array([[1.0, 1, 9]]), "b": np.ones((3, 2))}
    params |= {"a": np.array([2.0, 1, 9]), "c": np.array([1.0, 3, 9])}
    x = np.ones((4, 1))
    groups, keep = pruning.coupled_channels(apply, params, x), [np.array([True, False, True])]
    small = merged(apply, params, groups, keep, [x])
    np.testing.assert_allclose(small["a"], [1.5, 9])
    np.testing.assert_allclose(small["c"], [2, 9])
    np.testing.assert_allclose(small["w"], [[2.5 / 1.5, 90]])


def test_arrays_without_channels_may_be_anything():
    params, x = mlp_params(), np.ones((7, 5))
    others = {"random": jax.random.key(3), "step": jnp.int32(7)}

    def small(params):
        groups = pruning.coupled_channels(mlp, params, x)
        return merged(mlp, params, groups, halves(groups), (x,))

    found = small(params | others)
    assert (found.pop("random"), found.pop("step")) == tuple(others.values())
    jax.tree.map(np.testing.assert_array_equal, found, small(params))


def test_filters_that_are_not_finite_are_refused_by_name():
    params, x = mlp_params(), np.ones((7, 5))
    groups = pruning.coupled_channels(mlp, params, x)
    params["a"] = jnp.asarray(params["a"]).at[0, 0].set(np.nan)
    with pytest.raises(ValueError, match="filters of a must be finite; they have NaN or inf"):
        merge_channels(mlp, params, groups, halves(groups), inputs=(x,))


@pytest.mark.parametrize("plan", [clusters, transport])
def test_a_plan_takes_any_mask_that_keeps_a_channel(plan):
    np.testing.assert_array_equal(plan(np.ones((1, 2)), np.array([True])), [[1.0]])
    with pytest.raises(ValueError, match="must"):
        plan(np.eye(2), np.zeros(2, bool))


def test_what_loses_nothing_is_not_changed():
    params, x = mlp_params(), RNG.normal(size=(7, 5))
    groups = pruning.coupled_channels(mlp, params, x)
    tree = merge_channels(mlp, params, groups, [np.ones(8, bool)], inputs=(x,))
    jax.tree.map(np.testing.assert_array_equal, tree, params)


def queries_with_keys(params, x):
    q, k = x @ params["q"], x @ params["k"]
    return jax.nn.softmax(jnp.einsum("nid,njd->nij", q, k))


def difference_of_kernels(params, x):
    return jnp.tanh(x @ params["a"]) @ (params["b"] - params["c"])


def normed(params, x):
    h = jnp.tanh(x @ params["a"])
    return h * jax.lax.rsqrt(jnp.square(h).mean(-1, keepdims=True) + 1) @ params["b"]


def normed_behind_another_layer(params, x):
    h = jnp.tanh(jnp.tanh(x @ params["a"]) @ params["b"])
    return h * jax.lax.rsqrt(jnp.square(h).mean(-1, keepdims=True) + 1) @ params["c"]


def added_positions(params, x):
    return jnp.tanh(x @ params["a"] + jnp.linspace(0, 1, 6)[None, None]) @ params["b"]


def added_positions_behind_another_layer(params, x):
    h = jnp.tanh(x @ params["a"])
    return jnp.tanh(h @ params["b"] + jnp.linspace(0, 1, 5)[None, None]) @ params["c"]


def added_positions_behind_sorted_channels(params, x):
    h = x @ params["a"]
    first = jnp.sort(h[..., :4]).sum()
    return jnp.tanh(h + jnp.linspace(0, 1, 8)[None, None]) @ params["b"] + first


def with_dropout(params, x):
    kept = jax.random.bernoulli(jax.random.key(0), 0.5, (2, 3, 6))
    return jnp.where(kept, jnp.tanh(x @ params["a"]), 0) @ params["b"]


NOT_MERGED = {
    "constants must not vary .*; channels of a have different constants in add at .*positions": (
        added_positions,
        {"a": (4, 6), "b": (6, 2)},
    ),
    "constants must not vary .*; channels of b have different constants in add at": (
        added_positions_behind_another_layer,
        {"a": (4, 6), "b": (6, 5), "c": (5, 2)},
    ),
    "constants must not vary .*; channels of a have different constants in add at .*sorted_chan": (
        added_positions_behind_sorted_channels,
        {"a": (4, 8), "b": (8, 2)},
    ),
    "constants must not vary .*; channels of a have different constants in random_bits at": (
        with_dropout,
        {"a": (4, 6), "b": (6, 2)},
    ),
    "only kernels may sum .*; channels of k are summed by dot_general at .*queries_with_keys": (
        queries_with_keys,
        {"q": (4, 6), "k": (4, 6)},
    ),
    "only kernels may sum .*; channels of a are summed by reduce_sum": (
        normed,
        {"a": (4, 6), "b": (6, 2)},
    ),
    "only kernels may sum .*; channels of b are summed by reduce_sum": (
        normed_behind_another_layer,
        {"a": (4, 6), "b": (6, 5), "c": (5, 2)},
    ),
    "read once, outside of loops and branches, .* not true of b": (
        difference_of_kernels,
        {"a": (4, 6), "b": (6, 2), "c": (6, 2)},
    ),
}


@pytest.mark.parametrize("message", NOT_MERGED)
def test_what_merging_would_change_is_refused_by_name(message):
    apply, shapes = NOT_MERGED[message]
    params = {name: RNG.normal(size=shape) for name, shape in shapes.items()}
    x = RNG.normal(size=(2, 3, 4))
    groups = pruning.coupled_channels(apply, params, x, resize=True)
    with pytest.raises(ValueError, match=message):
        merge_channels(apply, params, groups, halves(groups), inputs=(x,))


def test_bad_plans_and_masks_are_refused():
    params, x = mlp_params(3), RNG.normal(size=(7, 5))
    groups = pruning.coupled_channels(mlp, params, x)
    keep = [np.array([True, False, True])]
    merge = partial(merge_channels, mlp, params, groups, inputs=(x,))
    message = r"a matrix of shape \(3, 2\) for a, .* finite .* not negative .*; got shape \(3, 2\)"
    negative = np.array([[2.0, -1.0], [1.0, 2.0], [1.0, 1.0]])
    column = np.ones((3, 1)) * [1.0, 0.0]
    for bad in (np.eye(3)[:, :2], column, negative, np.abs(negative) * [1.0, np.inf]):
        with pytest.raises(ValueError, match=message):
            merge(keep, plan=lambda features, keep, bad=bad: bad)
    for other in (np.eye(3), np.ones(3)):
        with pytest.raises(ValueError, match=rf"got shape {re.escape(str(other.shape))}"):
            merge(keep, plan=lambda features, keep, other=other: other)
    with pytest.raises(ValueError, match="at least one channel of a; got none"):
        merge([np.zeros(3, bool)])


def test_channels_are_compared_by_all_that_makes_them_and_nothing_that_reads_them():
    """The features of a channel are its filters in two kernels, one transposed, and its bias."""

    def apply(p, x):
        h = jnp.tanh(x @ p["a"] + x @ p["b"].T + p["c"][None])
        return h @ p["read"], jnp.sin(x @ p["u"]) @ p["v"]

    shapes = {"a": (5, 6), "b": (6, 5), "c": (6,), "read": (6, 4), "u": (5, 3), "v": (3, 2)}
    params = {name: RNG.normal(3, 2, size=shape) for name, shape in shapes.items()}
    x, seen = RNG.normal(size=(7, 5)), []
    groups = [g for g in pruning.coupled_channels(apply, params, x) if g.size in (6, 3)]

    def plan(features, keep):
        seen.append(features)
        return clusters(features, keep)

    keep = [np.arange(group.size) % 3 > 0 for group in groups]
    tree = merge_channels(apply, params, groups, keep, inputs=(x,), plan=plan)
    expected = {
        6: params["a"].T @ params["a"] + params["b"] @ params["b"].T
        + np.outer(params["c"], params["c"]),
        3: params["u"].T @ params["u"],
    }  # fmt: skip
    for group, features, mask in zip(groups, seen, keep, strict=True):
        np.testing.assert_allclose(features @ features.T, expected[group.size], rtol=1e-12)
        weights = clusters(features, mask)
        means = weights / weights.sum(0)
        if group.size == 6:
            np.testing.assert_allclose(tree["a"][:, mask], params["a"] @ means, rtol=1e-12)
            np.testing.assert_allclose(tree["b"][mask], means.T @ params["b"], rtol=1e-12)
            np.testing.assert_allclose(tree["c"][mask], params["c"] @ means, rtol=1e-12)
            np.testing.assert_allclose(tree["read"][mask], weights.T @ params["read"], rtol=1e-12)
        else:
            np.testing.assert_allclose(tree["u"][:, mask], params["u"] @ means, rtol=1e-12)
            np.testing.assert_allclose(tree["v"][mask], weights.T @ params["v"], rtol=1e-12)


DIVIDED = {
    "a root": lambda h, v: h / jnp.sqrt(v + EPS)[None],
    "an inverse root": lambda h, v: h * jax.lax.rsqrt(v + EPS)[None],
    "a power": lambda h, v: h * ((v + EPS) ** -0.5)[None],
    "a power of a half": lambda h, v: h / ((v + EPS) ** 0.5)[None],
    "the number first": lambda h, v: jax.lax.rsqrt(EPS + v)[None] * h,
}


@pytest.mark.parametrize("name", DIVIDED)
def test_however_a_norm_divides_the_merged_network_is_the_same(name):
    """Variances are at least 5, so that a wrong power of the variance would change the result."""

    def apply(p, x):
        h = DIVIDED[name](x @ p["w"] - p["mean"][None], p["var"])
        return jax.nn.relu(h * p["scale"][None] + p["bias"][None]) @ p["u"]

    rng = np.random.default_rng(12)
    shapes = {"w": (5, 8), "mean": (8,), "scale": (8,), "bias": (8,), "u": (8, 3)}
    params = {key: rng.normal(3, 2, size=shape) for key, shape in shapes.items()}
    params["var"], x = rng.uniform(5, 50, 8), rng.normal(3, 5, size=(7, 5))
    labels = np.array([0, 1, 2, 0, 0, 1, 2, 2])
    plan = lambda features, keep: np.eye(3)[labels]  # noqa: E731
    groups = pruning.coupled_channels(apply, params, x)
    small = merged(apply, params, groups, [np.arange(8) < 3], (x,), plan=plan)
    units = params["w"] / np.linalg.norm(params["w"], axis=0) * params["scale"]
    for k in range(3):
        own = labels == k
        var, scale = params["var"][own].mean(), np.abs(params["scale"][own]).mean()
        fused = (params["w"] * params["scale"] / np.sqrt(params["var"]))[:, own].mean(1)
        length = np.linalg.norm(units[:, own].mean(1))
        expected = fused * (scale / length) / (scale / np.sqrt(var))
        np.testing.assert_allclose(small["w"][:, k], expected, rtol=1e-8)
        np.testing.assert_allclose(small["var"][k], var, rtol=1e-12)


def ward(features, count):
    """Ward's clusters: each step merges the pair whose merge adds the smallest sum of squares."""
    parts = [[i] for i in range(len(features))]

    def within(part):
        return np.square(features[part] - features[part].mean(0)).sum()

    while len(parts) > count:
        pairs = list(itertools.combinations(range(len(parts)), 2))
        added = [
            within(parts[i] + parts[j]) - within(parts[i]) - within(parts[j]) for i, j in pairs
        ]
        i, j = pairs[int(np.argmin(added))]
        parts[i] = sorted(parts[i] + parts.pop(j))
    return {tuple(part) for part in parts}


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_clusters_are_those_of_ward_whichever_channels_are_kept(seed, count):
    """The random points form no clear clusters, so methods other than Ward's give other results."""
    features = np.random.default_rng(seed).normal(3, 5, size=(14, 3))
    for kept in (np.arange(14) < count, np.arange(14) >= 14 - count):
        plan = clusters(features, kept)
        assert plan.shape == (14, count)
        np.testing.assert_array_equal(plan.sum(1), 1)
        found = {tuple(np.flatnonzero(column).tolist()) for column in plan.T}
        assert found == ward(features, count)


def test_a_bias_that_two_kernels_share_is_the_mean_of_its_numbers():
    """Two kernels share the bias, so its mean ignores the gain of one of them."""

    def apply(p, x):
        first = jax.nn.relu((x @ p["a"] + p["b"][None]) / jnp.sqrt(p["v"])[None] * p["g"][None])
        return first @ p["c"] + jax.nn.relu(x @ p["d"] + p["b"][None]) @ p["e"]

    rng, x = np.random.default_rng(5), (np.ones((2, 3)),)
    shapes = {"a": (3, 4), "b": (4,), "c": (4, 2), "d": (3, 4), "e": (4, 2)}
    params = {key: rng.normal(1, 2, shape) for key, shape in shapes.items()}
    params |= {key: rng.uniform(0.5, 3, 4) for key in ("g", "v")}
    (group,) = pruning.coupled_channels(apply, params, *x)
    plan = np.array([[1.0, 0.0], [0.0, 1.0], [0.25, 0.75], [1.0, 0.0]])
    small = merged(apply, params, [group], [np.arange(4) < 2], x, plan=lambda features, keep: plan)
    weights = plan / plan.sum(0, keepdims=True)
    np.testing.assert_allclose(small["b"], params["b"] @ weights)


# For each name: a function of outputs y; the parameters before a gain; the parameters of the gain;
# and the gain of each channel. Without a gain, merged arrays are plain means.
CHAINS = {
    "two shifts": (
        lambda y, p: jnp.tanh((y - p["m"] + p["b"]) * p["s"]),
        "mb",
        "s",
        lambda p: p["s"],
    ),
    "shifts on both sides": (
        lambda y, p: jnp.tanh((p["m"] + y) * p["s"] - p["b"]),
        "m",
        "s",
        lambda p: p["s"],
    ),
    "two scales": (
        lambda y, p: jnp.tanh((y - p["m"]) * p["s"] * p["t"] + p["b"]),
        "m",
        "st",
        lambda p: p["s"] * p["t"],
    ),
    "a divisor": (
        lambda y, p: jnp.tanh(p["t"] * ((y + p["m"]) / p["s"]) + p["b"]),
        "m",
        "st",
        lambda p: p["t"] / p["s"],
    ),
    "subtracted from a shift": (lambda y, p: jnp.tanh((p["m"] - y) * p["s"]), "", "", None),
    "a sum of two shifts": (lambda y, p: jnp.tanh((y + (p["m"] + p["b"])) * p["s"]), "", "", None),
    "a shift times a scale": (lambda y, p: jnp.tanh((y + p["m"] * p["b"]) * p["s"]), "", "", None),
    "read before a scale": (lambda y, p: jnp.tanh(y + p["m"]) + jnp.tanh(y * p["s"]), "", "", None),
    "read between scales": (
        lambda y, p: jnp.tanh(y * p["s"]) + jnp.tanh(y * p["s"] * p["t"]),
        "",
        "",
        None,
    ),
    "read and scaled": (
        lambda y, p: (lambda h: jnp.tanh(h) + jnp.tanh(h * p["t"]))(y * p["s"]),
        "",
        "",
        None,
    ),
}


PLAN = np.array([[1.0, 0.0], [0.0, 1.0], [0.25, 0.75], [2.0, 0.0], [0.0, 1.0]])


def planned(seen):
    def plan(features, keep):
        seen.append(features)
        return PLAN

    return plan


@pytest.mark.parametrize("name", CHAINS)
def test_filters_are_means_weighted_by_what_scales_their_outputs_alone(name):
    hidden, before, scales, gain_of = CHAINS[name]

    def apply(p, x):
        return hidden(x @ p["w"], {k: p[k][None] for k in "mbst"}) @ p["u"]

    rng, x, seen = np.random.default_rng(21), np.ones((2, 3)), []
    params = {"w": rng.normal(1, 2, (3, 5)), "u": rng.normal(1, 2, (5, 2))}
    params |= {k: rng.uniform(0.5, 3, 5) for k in "mbst"}
    groups = pruning.coupled_channels(apply, params, x)

    small = merged(apply, params, groups, [np.arange(5) < 2], (x,), plan=planned(seen))
    means = PLAN / PLAN.sum(0)
    own = [k for k in "mbst" if small[k].shape == (2,)]
    expected = {k: params[k] @ means for k in own} | {"w": params["w"] @ means}
    filters = params["w"]
    if gain_of is not None:
        gain, merged_gain = gain_of(params), gain_of(expected)
        filters = filters * gain
        for k in ("w", *before):
            expected[k] = (params[k] * gain) @ means / merged_gain
    for k, array in expected.items():
        np.testing.assert_allclose(small[k], array, rtol=1e-10)
    compared = np.stack([*filters, *(params[k] for k in own if k not in before + scales)])
    np.testing.assert_allclose(seen[0] @ seen[0].T, compared.T @ compared, rtol=1e-10)


# For each network: a function of the outputs of two kernels, and for each kernel, the parameter
# that scales its outputs. The parameter is None if the outputs are also read without the scale.
TWO_OUTPUTS = {
    "both scaled": (lambda y, z, p: jnp.tanh(y * p["s"] + z * p["t"]), "s", "t"),
    "both scaled, subtracted": (lambda y, z, p: jnp.tanh(p["s"] * y - z / p["t"]), "s", "1/t"),
    "the second scaled": (lambda y, z, p: jnp.tanh(y * (z * p["t"]) + p["s"]), None, "t"),
    "the first read before its scale": (
        lambda y, z, p: jnp.tanh(y + z * p["t"]) + jnp.sin(y * p["s"]),
        None,
        "t",
    ),
    "the second read before its scale": (
        lambda y, z, p: jnp.tanh(y * p["s"] + z) + jnp.sin(z * p["t"]),
        "s",
        None,
    ),
    "the second read behind its scale": (
        lambda y, z, p: (lambda w: jnp.tanh(y * p["s"] - z) + w)(jnp.sin(z * p["t"])),
        "s",
        None,
    ),
    "both read before their scales": (
        lambda y, z, p: jnp.tanh(y * z) + jnp.sin(z * p["t"]) + jnp.sin(y * p["s"]),
        None,
        None,
    ),
    "the second scaled again": (
        lambda y, z, p: (lambda w: jnp.tanh(y + w) + jnp.sin(w * p["s"]))(z * p["t"]),
        None,
        None,
    ),
    "the same twice": (
        lambda y, z, p: jnp.tanh(z * z) + jnp.sin(z * p["t"]) + jnp.tanh(y * p["s"]),
        "s",
        None,
    ),
}


@pytest.mark.parametrize("name", TWO_OUTPUTS)
def test_an_equation_reads_the_outputs_of_both_its_kernels(name):
    hidden, *scales = TWO_OUTPUTS[name]

    def apply(p, x):
        own = {k: p[k][None] for k in "st"}
        return hidden(x @ p["v"], x @ p["w"], own) @ p["u"]

    rng, x, seen = np.random.default_rng(22), np.ones((2, 3)), []
    params = {k: rng.normal(1, 2, (3, 5)) for k in "vw"} | {"u": rng.normal(1, 2, (5, 2))}
    params |= {k: rng.uniform(0.5, 3, 5) for k in "st"}
    groups = pruning.coupled_channels(apply, params, x)

    small = merged(apply, params, groups, [np.arange(5) < 2], (x,), plan=planned(seen))
    means, compared = PLAN / PLAN.sum(0), []
    for k, scale in zip("vw", scales, strict=True):
        gain, merged_gain = np.ones(5), np.ones(2)
        if scale is not None:
            gain, merged_gain = params[scale[-1]], params[scale[-1]] @ means
        if scale == "1/t":
            gain, merged_gain = 1 / gain, 1 / merged_gain
        compared += [*(params[k] * gain)]
        np.testing.assert_allclose(small[k], (params[k] * gain) @ means / merged_gain, rtol=1e-10)
    scaled = {scale[-1] for scale in scales if scale is not None}
    compared += [params[k] for k in "st" if k not in scaled]
    expected = np.transpose(compared) @ np.stack(compared)
    np.testing.assert_allclose(seen[0] @ seen[0].T, expected, rtol=1e-10)


def test_heads_and_their_widths_are_merged_at_once():
    """The scale `s` has one number for each head, so it is merged over heads, not over features."""

    def apply(p, x):
        y = jnp.einsum("bc,chd->bhd", x, p["w"]) * p["s"][None, :, None]
        return jnp.einsum("bhd,hdo->bo", jnp.tanh(y), p["o"])

    rng, x = np.random.default_rng(9), np.ones((2, 3))
    params = {"w": rng.normal(1, 2, (3, 4, 6)), "o": rng.normal(1, 2, (4, 6, 2))}
    params["s"] = np.array([1.5, -2.0, 0.5, -3.0])
    groups = [g for g in pruning.coupled_channels(apply, params, x) if g.size in (4, 6)]
    plans = {4: np.eye(2)[[0, 1, 1, 0]], 6: np.eye(3)[[0, 1, 2, 2, 1, 0]]}
    keep = [np.arange(g.size) < g.size // 2 for g in groups]
    small = merged(
        apply, params, groups, keep, (x,), plan=lambda features, keep: plans[len(features)]
    )
    means = {n: plan / plan.sum(0) for n, plan in plans.items()}
    scale = np.abs(params["s"]) @ means[4]
    np.testing.assert_allclose(small["s"], scale)
    weighted = params["w"] * params["s"][None, :, None]
    expected = np.einsum("chd,hk,dl->ckl", weighted, means[4], means[6]) / scale[None, :, None]
    np.testing.assert_allclose(small["w"], expected, rtol=1e-10)
    summed = np.einsum("hdo,hk,dl->klo", params["o"], plans[4], plans[6])
    np.testing.assert_allclose(small["o"], summed, rtol=1e-10)
