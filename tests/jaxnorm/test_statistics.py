"""Batch statistics, merging of statistics over parts and shards, and moments."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings, strategies as st
from jax.test_util import check_grads

import jaxnorm
from jaxnorm import BatchStatistics, bessel
from jaxnorm._statistics import Sums, mean_and_variance
from jaxnorm.internal import spread_slice
from tests.support.gradients import several_keys
from tests.support.jitted import jitted

batch_statistics, merge_statistics, moments, merge_moments = map(
    jitted,
    (jaxnorm.batch_statistics, jaxnorm.merge_statistics, jaxnorm.moments, jaxnorm.merge_moments),
)


# Only four numbers of samples are drawn, because JAX compiles a program for each number.
sizes = st.sampled_from([0, 1, 2, 6])


def assert_statistics(statistics, x, **tolerance):
    np.testing.assert_allclose(statistics.mean, x.mean(0), **tolerance)
    np.testing.assert_allclose(statistics.var, x.var(0), **tolerance)
    assert statistics.count == len(x)


@given(sizes, sizes, st.floats(-1e6, 1e6))
@settings(max_examples=15, deadline=None)
def test_merging_parts_gives_the_statistics_of_the_union(n, m, offset):
    x = np.random.default_rng(n * 7 + m).normal(offset, 1.0, (n + m, 3))
    merged = merge_statistics(
        batch_statistics(jnp.asarray(x[:n])), batch_statistics(jnp.asarray(x[n:]))
    )
    if n + m == 0:
        np.testing.assert_array_equal(merged.count, 0)
        np.testing.assert_array_equal(merged.var, 0)
    else:
        assert_statistics(merged, x, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("mean", "var"), [(1e30, 0), (np.nan, np.nan), (2, np.inf)])
def test_the_mean_and_the_variance_of_no_samples_do_not_matter(mean, var):
    some, none = (
        BatchStatistics(*(jnp.array(x, "float32") for x in ([mean], [var], count)))
        for mean, var, count in ((2, 3, 5), (mean, var, 0))
    )
    for merged in (merge_statistics(some, none), merge_statistics(none, some)):
        jax.tree.map(np.testing.assert_array_equal, merged, some)


@pytest.mark.parametrize("shape", [(7, 3), (4, 5, 3), (2, 3, 4, 3), (2, 2, 2, 2, 3)])
def test_all_axes_but_the_last_hold_samples(shape):
    x = np.random.default_rng(0).normal(size=shape)
    assert_statistics(batch_statistics(jnp.asarray(x)), x.reshape(-1, 3), rtol=1e-12)


@pytest.mark.parametrize("mean", [0.0, 10.0, 1e3, 1e4])
def test_a_large_mean_leaves_the_float32_variance_intact(mean):
    x = np.random.default_rng(1).normal(mean, 1.0, (32, 16, 16, 8)).astype(np.float32)
    found = batch_statistics(jnp.asarray(x))
    reference = x.astype(np.float64).reshape(-1, 8)
    assert found.var.dtype == np.float32
    np.testing.assert_allclose(found.var, reference.var(0), rtol=1e-5)
    np.testing.assert_allclose(found.mean, reference.mean(0), rtol=1e-6, atol=1e-6)


def outlying(shape, mean, size, places, dtype):
    """Normal samples of deviation 1, some of which (`places`) are moved by `size`.

    Outliers at the samples whose mean is the shift have one sign; others have random signs.
    """
    random = np.random.default_rng([*shape, int(mean), int(size)])
    x = random.normal(mean, 1.0, shape).astype(np.float32)
    flat = x.reshape(-1, shape[-1])
    rows = {
        "random": random.integers(0, len(flat), 3),
        "first": np.array([0]),
        "slice": _slice_places(shape),
        "slice of one sign": _slice_places(shape),
    }[places]
    signs = random.choice([-1, 1], (len(rows), shape[-1]))
    signs = np.ones_like(signs) if places == "slice of one sign" else signs
    flat[rows] += (size * signs).astype(np.float32)
    return np.asarray(jnp.asarray(x, dtype))


def _slice_places(shape):
    """The indices of those samples whose mean is subtracted from all samples as the shift."""
    index = jnp.arange(np.prod(shape[:-1]), dtype=jnp.float32).reshape(*shape[:-1], 1)
    return np.asarray(spread_slice(index), int).ravel()


@pytest.mark.parametrize("places", ["random", "first", "slice", "slice of one sign"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("shape", [(2, 3), (100, 3), (8192, 4), (32, 200, 2), (4, 224, 224, 3)])
def test_no_outlier_costs_digits_of_the_variance(shape, dtype, places):
    # The sums are shifted by the mean of m of the N samples. If these m samples are outliers, the
    # variance has an error of approximately N/m times eps.
    lost = np.prod(shape[:-1]) / len(_slice_places(shape)) if "slice" in places else 4
    rtol = 4 * lost * float(jnp.finfo(jnp.float32).eps)
    keep = np.random.default_rng(0).random(shape[:-1]) < 0.9
    masks = {None: np.ones(shape[:-1], bool), "all": np.ones(shape[:-1], bool), "nine tenths": keep}
    for mean in (0.0, 1e4):
        for size in (1e2, 1e4, 1e6):
            x = outlying(shape, mean, size, places, dtype)
            for name, counted in masks.items():
                where = None if name is None else jnp.asarray(counted)
                found = batch_statistics(jnp.asarray(x), where=where)
                exact = x.astype(np.float64)[counted]
                np.testing.assert_allclose(found.var, exact.var(0), rtol=rtol, err_msg=name)
                # If the shift is the mean of equal outliers, the deviations of all other samples
                # are as large as the outliers. The shift, the sums of deviations and the mean are
                # rounded.
                eps = 4 * float(jnp.finfo(jnp.float32).eps) if "sign" in places else 1e-7
                atol = eps * np.abs(exact).max()
                np.testing.assert_allclose(found.mean, exact.mean(0), rtol=1e-6, atol=atol)


@pytest.mark.parametrize("shape", [(1, 1), (64, 2), (127, 2), (8191, 2), (3, 191, 2), (9, 7, 7, 2)])
def test_the_shift_is_the_mean_of_a_small_part_but_no_less_than_a_200th(shape):
    part = spread_slice(jnp.zeros(shape))
    samples, taken = np.prod(shape[:-1]), np.prod(part.shape[:-1])
    assert samples <= 200 * taken
    assert min(samples, 2) <= taken <= max(15, samples / 48)


@pytest.mark.parametrize(
    ("rows", "grid"),
    [*((rows, (8,)) for rows in (8, 16, 64, 256, 264, 4096)), (16, (2, 4)), (264, (2, 4))],
)
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_a_sharded_batch_takes_two_all_reduces_and_no_other_collective(rows, grid, kind):
    names = ("host", "data")[-len(grid) :]
    axis_type = getattr(jax.sharding.AxisType, kind)
    mesh = jax.make_mesh(grid, names, axis_types=(axis_type,) * len(grid))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(names))
    x = jax.ShapeDtypeStruct((rows, 5), "float32", sharding=sharding)
    text = jax.jit(jaxnorm.batch_statistics).lower(x).compile().as_text() or ""
    found = re.findall(r"= .* (all-[a-z]+|collective-permute|reduce-scatter)(?:-start)?\(", text)
    # The shift needs one all-reduce. The two sums need one or two all-reduces, because XLA's CPU
    # compiler does not always combine them.
    assert set(found) == {"all-reduce"}
    assert len(found) <= 3


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("value", [0.1, 1.7, -0.7, 1e-3, 12345.678, 3e-5])
def test_the_variance_of_a_constant_is_exactly_zero(value, masked):
    for shape in [(37, 2), (10_000, 1), (3, 31, 17, 2)]:
        keep = np.random.default_rng(0).random(shape[:-1]) < 0.5
        x = np.where(keep[..., None] | (not masked), np.float32(value), np.nan).astype(np.float32)
        found = batch_statistics(jnp.asarray(x), where=jnp.asarray(keep) if masked else None)
        np.testing.assert_array_equal(found.var, 0)
        np.testing.assert_array_equal(found.mean, np.float32(value))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_sample_that_is_not_finite_spoils_its_feature_alone(bad):
    x = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    x[100, 1] = bad
    found = batch_statistics(jnp.asarray(x))
    np.testing.assert_array_equal(np.isnan(found.var), [False, True, False])


@pytest.mark.parametrize("unit", [1e18, 1e20, 1e30, 1e38])
def test_a_variance_that_overflows_is_nan_and_no_sample_becomes_zero(unit):
    x = np.float32(unit) * np.array([[1.0], [-1.0], [3.0]], np.float32)
    found = batch_statistics(jnp.asarray(x))
    exact = x.astype(np.float64).var(0)
    if exact[0] < 3e37:
        np.testing.assert_allclose(found.var, exact, rtol=1e-6)
    else:
        assert np.isnan(found.var).all()
        assert np.isnan(jaxnorm.batch_norm(jnp.asarray(x))[0]).all()


def test_bfloat16_is_summed_in_float32():
    found = batch_statistics(jnp.full((4096, 1), 1.0078125, jnp.bfloat16))
    assert found.mean.dtype == jnp.float32
    assert found.mean[0] == 1.0078125
    assert found.var[0] == 0


@given(st.lists(st.booleans(), min_size=6, max_size=6))
@settings(max_examples=15, deadline=None)
def test_masked_samples_have_no_influence(keep):
    keep = np.array(keep)
    x = np.random.default_rng(2).normal(100.0, 1.0, (6, 4, 2))
    dirty = np.where(keep[:, None, None], x, np.nan)
    found = batch_statistics(
        jnp.asarray(dirty), where=jnp.asarray(np.broadcast_to(keep[:, None], (6, 4)))
    )
    if keep.any():
        assert_statistics(found, x[keep].reshape(-1, 2), rtol=1e-9)
    else:
        np.testing.assert_array_equal([found.mean, found.var], 0)


def test_a_mask_may_have_one_more_axis_or_broadcast():
    x = jnp.arange(24.0).reshape(3, 4, 2)
    keep = jnp.array([True, False, True])
    expected = batch_statistics(x[jnp.array([0, 2])])
    for where in (keep[:, None], keep[:, None, None]):
        for found, wanted in zip(batch_statistics(x, where=where), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize("shape", [(3,), (4,), (3, 5), (4, 4, 1), (3, 4, 2)])
def test_a_mask_of_another_shape_is_refused(shape):
    with pytest.raises(ValueError, match=r"where must have shape \(3, 4\)"):
        batch_statistics(jnp.ones((3, 4, 2)), where=jnp.ones(shape, bool))


@pytest.mark.parametrize("shape", [(3, 0), (3,)])
def test_no_features_are_refused(shape):
    with pytest.raises(ValueError, match="x must have shape"):
        batch_statistics(jnp.ones(shape))


def test_uneven_shards_give_the_statistics_of_the_union():
    x = np.random.default_rng(3).normal(1e3, 1.0, (4, 5, 2))
    keep = np.zeros((4, 5), bool)
    for shard, valid in enumerate((5, 2, 0, 1)):  # one shard has no valid sample
        keep[shard, :valid] = True
    dirty = jnp.asarray(np.where(keep[..., None], x, np.nan))
    spread = jax.vmap(
        lambda x, where: batch_statistics(x, where=where, axis_name="shards"), axis_name="shards"
    )
    found = jax.tree.map(np.asarray, jax.jit(spread)(dirty, keep))
    for shard in range(4):
        assert_statistics(jax.tree.map(lambda leaf, i=shard: leaf[i], found), x[keep], rtol=1e-9)


def test_shards_of_a_group_of_indices_are_one_batch():
    """Of eight shards with different masks, the even and the odd shards are two groups."""
    x = np.random.default_rng(6).normal(3, 2, (8, 5, 2))
    keep = np.random.default_rng(7).random((8, 5)) < 0.6
    groups = [[0, 2, 4, 6], [1, 3, 5, 7]]
    spec = jax.sharding.PartitionSpec("shards")

    def own(x, where):
        found = batch_statistics(x[0], where=where[0], axis_name="shards", axis_index_groups=groups)
        return jax.tree.map(lambda leaf: leaf[None], found)

    spread = jax.shard_map(
        own,
        mesh=jax.sharding.Mesh(np.array(jax.devices()), ("shards",)),
        in_specs=spec,
        out_specs=spec,
        check_vma=False,
    )
    found = jax.jit(spread)(jnp.asarray(x), jnp.asarray(keep))
    for shard in range(8):
        seen = x[shard % 2 :: 2][keep[shard % 2 :: 2]]
        assert_statistics(jax.tree.map(lambda leaf, i=shard: leaf[i], found), seen, rtol=1e-9)


def test_two_mapped_axes_are_one_batch():
    x = np.random.default_rng(4).normal(size=(2, 3, 4, 2))
    spread = jax.vmap(
        jax.vmap(lambda x: batch_statistics(x, axis_name=("a", "b")), axis_name="b"), axis_name="a"
    )
    statistics = jax.tree.map(lambda leaf: np.asarray(leaf)[1, 2], jax.jit(spread)(x))
    assert_statistics(statistics, x.reshape(-1, 2), rtol=1e-12)


@several_keys
def test_gradients_of_statistics(key):
    x = jax.random.normal(key, (5, 3))
    statistics = jax.jit(lambda x: batch_statistics(x)[:2])
    check_grads(statistics, (x,), order=2, modes=["rev"])
    check_grads(statistics, (x,), order=1, modes=["fwd"])
    keep = jnp.array([True, False, True, True, False])
    check_grads(jax.jit(lambda x: batch_statistics(x, where=keep)[:2]), (x,), order=1)


def test_gradients_cross_shards(key):
    x = jax.random.normal(key, (3, 4, 2))

    def spread(x):
        var = jax.vmap(lambda x: batch_statistics(x, axis_name="s").var, axis_name="s")(x)
        return jnp.sum(jnp.sin(var[0]))

    def whole(x):
        return jnp.sum(jnp.sin(batch_statistics(x).var))

    found, expected = jax.jit(lambda x: (jax.grad(spread)(x), jax.grad(whole)(x)))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_moments_are_those_of_scipy(offset):
    x = np.random.default_rng(5).gamma(2.0, size=(200, 4)) + offset
    found = moments(jnp.asarray(x))
    np.testing.assert_allclose(found.mean, x.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.var, x.var(0), rtol=1e-9)
    np.testing.assert_allclose(found.skewness, scipy.stats.skew(x), rtol=1e-7)
    np.testing.assert_allclose(found.kurtosis, scipy.stats.kurtosis(x, fisher=False), rtol=1e-7)


def test_moments_of_a_constant_have_no_shape():
    found = moments(jnp.full((5, 1), 0.1, jnp.float32))
    assert found.var[0] == 0
    assert jnp.isnan(found.skewness[0])
    assert jnp.isnan(found.kurtosis[0])


def test_kurtosis_of_unitized_gaussians_is_that_of_a_sphere(key):
    # A coordinate of a uniform point on the sphere in R⁸ has kurtosis 3 d/(d + 2) = 2.4.
    x = np.asarray(jax.random.normal(key, (200_000, 8)))
    found = moments(jnp.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))).kurtosis
    np.testing.assert_allclose(found, 2.4, atol=0.02)


@given(sizes.filter(bool), sizes.filter(bool), st.floats(-1e3, 1e3))
@settings(max_examples=12, deadline=None)
def test_merging_moments_gives_those_of_the_union(n, m, offset):
    x = np.random.default_rng(n * 7 + m).gamma(2.0, size=(n + m, 3)) + offset
    a, b = moments(jnp.asarray(x[:n])), moments(jnp.asarray(x[n:]))
    # The absolute tolerance is needed for two values: their skewness is 0 except for rounding.
    for found, expected in zip(
        merge_moments(a, b, counts=(n, m)), moments(jnp.asarray(x)), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-14)


def test_a_stream_of_moments_may_start_empty_and_hold_constants():
    x = np.random.default_rng(6).normal(size=(40, 2))
    x[:10, 0] = 0.25
    nothing = moments(jnp.full((1, 2), jnp.nan))
    running, seen = nothing, 0
    for part in np.split(x, 4):
        running = merge_moments(running, moments(jnp.asarray(part)), counts=(seen, len(part)))
        seen += len(part)
        running = merge_moments(running, nothing, counts=(seen, 0))
    for found, expected in zip(running, moments(jnp.asarray(x)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_a_constant_is_merged_in_either_order(scale):
    x = np.random.default_rng(4).gamma(2.0, size=(12, 1)).astype("float32") * np.float32(scale)
    x[:5] = x[7]
    parts = [(moments(jnp.asarray(x[:5])), 5), (moments(jnp.asarray(x[5:])), 7)]
    for (a, n), (b, m) in (parts, parts[::-1]):
        found = merge_moments(a, b, counts=(n, m))
        for one, expected in zip(found, moments(jnp.asarray(x)), strict=True):
            np.testing.assert_allclose(one, expected, rtol=1e-5)


@pytest.mark.parametrize(("unit", "place"), [(1e-12, 0), (1, 0), (1e12, 0), (0, 1e15), (0, -1e15)])
def test_sets_of_unlike_spreads_or_places_are_merged_in_either_order(unit, place):
    """The largest of the merged variances has a square that overflows float32."""
    large = place + unit * np.array([[-3.0], [0.0], [0.0], [3.0]])
    small = np.array([[-1.0], [1.0]])
    both = np.concatenate([small, large])
    parts = [(moments(jnp.asarray(x, "float32")), len(x)) for x in (small, large)]
    for (a, n), (b, m) in (parts, parts[::-1]):
        found = merge_moments(a, b, counts=(n, m))
        np.testing.assert_allclose(found.var, both.var(0), rtol=1e-5)
        np.testing.assert_allclose(found.skewness, scipy.stats.skew(both), rtol=1e-5, atol=1e-6)
        kurtosis = scipy.stats.kurtosis(both, fisher=False)
        np.testing.assert_allclose(found.kurtosis, kurtosis, rtol=1e-5)


@pytest.mark.parametrize("unit", [1e-25, 1e25])
def test_a_merged_set_whose_variance_underflowed_or_overflowed_has_no_known_shape(unit):
    """Two sets of samples vary, but in float32 one of their variances is 0 or NaN."""
    x = np.random.default_rng(1).gamma(2.0, size=(9, 1))
    parts = [(moments(jnp.asarray(part, "float32")), len(part)) for part in (x[:4], unit * x[4:])]
    for (a, n), (b, m) in (parts, parts[::-1]):
        found = merge_moments(a, b, counts=(n, m))
        assert np.isnan(found.skewness).all()
        assert np.isnan(found.kurtosis).all()


@pytest.mark.parametrize("unit", [0.01, 0.2, 3.0])
def test_counts_may_be_sums_of_weights(unit):
    """If the counts are `unit` and 3 `unit`, the second set has 3/4 of the weight."""
    rng = np.random.default_rng(11)
    x, y = rng.gamma(2.0, 3.0, (7, 2)), 5 + rng.gamma(3.0, 2.0, (7, 2))
    both = np.concatenate([x, y, y, y])
    counts = unit, 3 * unit
    a, b = (
        BatchStatistics(jnp.asarray(s.mean(0)), jnp.asarray(s.var(0)), jnp.asarray(count))
        for s, count in zip((x, y), counts, strict=True)
    )
    merged = merge_statistics(a, b)
    np.testing.assert_allclose(merged.mean, both.mean(0), rtol=1e-12)
    np.testing.assert_allclose(merged.var, both.var(0), rtol=1e-12)
    np.testing.assert_allclose(merged.count, 4 * unit, rtol=1e-12)
    found = merge_moments(moments(jnp.asarray(x)), moments(jnp.asarray(y)), counts=counts)
    for one, expected in zip(found, moments(jnp.asarray(both)), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-10)


@pytest.mark.parametrize("mean", [1e25, 3.7, 0.0])
def test_a_merged_mean_does_not_depend_on_the_spreads(mean):
    """The quotient of the mean 10²⁵ and the deviation 3·10⁻¹⁹ overflows float32."""
    a, b = (
        jaxnorm.Moments(*jnp.array([[m], [v], [0.3], [2.0]], "float32"))
        for m, v in ((mean, 1e-37), (mean, 3e-37))
    )
    for first, second in ((a, b), (b, a)):
        merged = merge_moments(first, second, counts=(3, 5))
        np.testing.assert_allclose(merged.mean, np.float32(mean), rtol=1e-7)


def test_features_of_unlike_sizes_have_moments_of_their_own_units():
    x = np.random.default_rng(3).gamma(2.0, size=(50, 3)) * [1.0, 1e-15, 1e15]
    found = moments(jnp.asarray(x, "float32"))
    np.testing.assert_allclose(found.skewness, scipy.stats.skew(x), rtol=1e-4)
    np.testing.assert_allclose(found.kurtosis, scipy.stats.kurtosis(x, fisher=False), rtol=1e-4)


def test_bessel_corrects_nothing_where_nothing_is_left():
    counts = jnp.array([0.0, 1.0, 2.0, 128.0])
    np.testing.assert_allclose(bessel(counts), [1, 1, 2, 128 / 127])
    assert jnp.isnan(bessel(jnp.nan))
    np.testing.assert_allclose(bessel(counts, eps=1e-3), [1, 1, 2 / 0.999, 128 / 126.999])


def test_rounding_makes_no_variance_negative():
    """For constant h, rounding often makes Σ h² / n − (Σ h / n)² negative."""
    h = np.random.default_rng(0).uniform(0.1, 1, 1000).astype(np.float32)
    total = Sums(jnp.asarray(3 * h), jnp.asarray(3 * (h * h)), jnp.full(1000, 3, jnp.float32))
    plain = total.second / 3 - jnp.square(total.first / 3)
    assert (plain < 0).sum() > 100
    assert (mean_and_variance(total)[1] >= 0).all()


@pytest.mark.parametrize("unit", [1e-38, 1e-25, 1e-15, 1e-10, 5e9, 1e20, 1e30, 1e37])
def test_what_has_no_unit_is_right_in_every_unit(unit):
    x = (np.random.default_rng(0).gamma(2.0, size=(40, 3)) * unit).astype(np.float32)
    exact = x.astype(np.float64)
    found = moments(jnp.asarray(x))
    normal = np.abs(exact).min() > 1e-37
    if normal:  # a subnormal number is zero on most devices
        np.testing.assert_allclose(found.skewness, scipy.stats.skew(exact), rtol=1e-4)
        expected = scipy.stats.kurtosis(exact, fisher=False)
        np.testing.assert_allclose(found.kurtosis, expected, rtol=1e-4)
        standard = (exact - exact.mean(0)) / exact.std(0)
        standardized = np.asarray(jaxnorm.standardize(jnp.asarray(x)))
        wrong = ~np.isclose(standardized, standard, rtol=0, atol=2e-5)
        assert np.isnan(standardized[wrong]).all()
        assert unit == 1e37 or not wrong.any()
        scaled = exact / np.sqrt((exact**2).mean(0))
        np.testing.assert_allclose(jaxnorm.rescale_rms(jnp.asarray(x)), scaled, rtol=1e-5)
    fits = exact.var(0) < 3e38
    np.testing.assert_array_equal(np.isnan(found.var), ~fits)
    parts = [moments(jnp.asarray(part)) for part in (x[:7], x[7:])]
    merged = merge_moments(*parts, counts=(7, 33))
    if 1e-18 < unit < 1e18:
        np.testing.assert_allclose(merged.kurtosis, found.kurtosis, rtol=1e-4)
        np.testing.assert_allclose(merged.skewness, found.skewness, rtol=1e-4)
    elif not fits.any() or unit < 1e-24:  # the variance overflows or underflows
        assert np.isnan(merged.kurtosis).all()


@pytest.mark.parametrize("equal", [1, 4])
def test_merging_a_constant_part_has_a_gradient(equal, key):
    x = jax.random.normal(key, (8, 2)).at[:equal].set(0.3)

    def merged(x):
        parts = (moments(x[:equal]), moments(x[equal:]))
        return merge_moments(*parts, counts=(equal, 8 - equal)).kurtosis.sum()

    whole = jax.grad(lambda x: moments(x).kurtosis.sum())(x)
    np.testing.assert_allclose(jax.jit(jax.grad(merged))(x)[equal:], whole[equal:], rtol=1e-6)
