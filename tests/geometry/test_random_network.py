from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from geometry import (
    angles,
    arccosine_kernel,
    effective_rank,
    gram,
    invariant_representation,
    mean_field_step,
    monte_carlo,
    numerical_rank,
    odd_point,
    random_network,
)
from jaxnorm import recenter, rescale, rescale_rms, standardize
from tests.support.gradients import several_keys


def identity(x):
    return x


def median_angle(x):
    return jnp.degrees(jnp.median(angles(x)[jnp.triu_indices(len(x), 1)]))


@pytest.mark.parametrize(
    ("normalization", "expected"), [(recenter, mean_field_step), (identity, arccosine_kernel)]
)
def test_a_layer_has_the_kernel_as_its_mean_gram_matrix(normalization, expected, key):
    x = jax.random.normal(key, (4, 3))

    def draw(key):
        net = random_network(key, x, depth=1, width=8, normalization=normalization)
        return jnp.exp(2 * net.log_scale[0]) * net.statistics[0]

    mean, stderr, _ = monte_carlo(draw, jax.random.key(1), 20_000)
    assert (abs(mean - jax.jit(expected)(gram(x))) < 5 * stderr).all()


def test_what_is_kept_times_its_scale_is_the_batch(key):
    x = jax.random.normal(key, (5, 3))
    run = jax.jit(lambda k, x: random_network(k, x, depth=6, width=7, statistic=identity))
    net, again = run(jax.random.key(1), x), run(jax.random.key(1), 1e-9 * x)
    assert net.statistics.shape == (6, 5, 7)
    assert (net.statistics[-1] == net.x).all()
    np.testing.assert_allclose(jnp.square(net.statistics).sum(-1).mean(-1), 1, rtol=1e-12)
    np.testing.assert_allclose(again.statistics, net.statistics, atol=1e-12)
    np.testing.assert_allclose(again.log_scale - net.log_scale, np.log(1e-9), rtol=1e-12)
    true = jnp.exp(net.log_scale)[:, None, None] * net.statistics
    # Weights of variance 2/width preserve squared norms on average. Recentering reduces the norms.
    assert 1e-3 < jnp.square(true[-1]).sum() / jnp.square(x).sum() < 10


def test_linear_recentring_acts_only_once(key):
    x = jax.random.normal(key, (5, 3))
    run = jax.jit(
        random_network, static_argnames=("depth", "width", "normalization", "nonlinearity")
    )
    linear = {"depth": 5, "width": 7, "nonlinearity": identity}
    always = run(jax.random.key(1), x, **linear)
    once = run(jax.random.key(1), recenter(x), **linear, normalization=identity)
    np.testing.assert_allclose(always.statistics, once.statistics, atol=1e-12)
    np.testing.assert_allclose(always.log_scale, once.log_scale, atol=1e-12)


def test_the_odd_point_and_the_cluster_stay_exactly_opposite(key):
    x = invariant_representation(6, 3)
    net = jax.jit(lambda k, x: random_network(k, x, depth=20, width=30))(key, x)
    g = net.statistics
    np.testing.assert_allclose(g[:, 0, 1:], 0, atol=1e-12)  # For i > 1, x₁ · xᵢ = 0.
    np.testing.assert_allclose(g[:, 1, 1], g[:, 1, 2], rtol=1e-9)  # All other samples are equal.


def test_a_deep_network_has_an_odd_point(key):
    n = 30
    x = jax.random.normal(key, (n, 40), jnp.float32).at[3].mul(4)
    run = jax.jit(lambda k, x: random_network(k, x, depth=200, width=200))
    net = run(jax.random.key(1), x)
    assert net.x.dtype == net.log_scale.dtype == jnp.float32
    odd = jax.jit(odd_point)(net.statistics[-1])
    assert odd.index == 3
    assert odd.norm_ratio >= (n - 1) / 2
    assert np.degrees(odd.angle) >= 80
    assert np.degrees(odd.spread) <= 45


@pytest.mark.slow
@pytest.mark.parametrize(
    ("normalization", "degrees", "tolerance"),
    [(standardize, 71.7, 2.5), (rescale_rms, 58.75, 2.5), (rescale, 25, 15)],
)
def test_angles_of_figure_5(normalization, degrees, tolerance, key):
    def run(key, x):
        rescaled = {"normalization": normalization, "homogeneous": False}
        return random_network(
            key, x, depth=30, width=500, statistic=median_angle, layers=(30,), **rescaled
        )

    net = jax.jit(run)(jax.random.key(1), jax.random.normal(key, (100, 50), jnp.float32))
    assert net.statistics.shape == (1,)
    assert abs(net.statistics[-1] - degrees) < tolerance


def test_statistics_may_be_trees_and_networks_may_be_batched(key):
    def run(key):
        x = jnp.eye(3, dtype=jnp.float32)
        return random_network(key, x, depth=2, width=4, statistic=lambda x: (gram(x), x.max()))

    keys = jax.random.split(key, 2)
    one, many = jax.jit(run)(keys[0]), jax.jit(jax.vmap(run))(keys)
    for got, expected in zip(jax.tree.leaves(many), jax.tree.leaves(one), strict=True):
        np.testing.assert_allclose(got[0], expected, atol=1e-6)


def test_a_batch_that_dies_stays_zero(key):
    equal = jnp.ones((3, 2), jnp.float32)
    net = jax.jit(lambda k, x: random_network(k, x, depth=3, width=4))(key, equal)
    assert (net.x == 0).all()
    assert jnp.isfinite(net.log_scale).all()


def everything(x):
    histogram, _ = jnp.histogram(x[:, 0], bins=5, range=(0.0, 3.0))
    return angles(x), effective_rank(x), numerical_rank(x), odd_point(gram(x)), histogram


def test_angles_ranks_odd_point_and_histograms_at_chosen_layers(key):
    x = jax.random.normal(key, (5, 3))
    size = {"depth": 9, "width": 7, "statistic": everything}
    every, some = (
        jax.jit(lambda key, layers=layers: random_network(key, x, layers=layers, **size))(key)
        for layers in (None, (1, 4, 9))
    )
    assert every.log_scale.shape == (9,)
    for all_layers, chosen in zip(*map(jax.tree.leaves, (every[:2], some[:2])), strict=True):
        np.testing.assert_allclose(all_layers[np.array([0, 3, 8])], chosen, atol=1e-12)
    np.testing.assert_allclose(some.x, every.x, atol=1e-14)


def test_rescaled_batches_keep_their_own_scale(key):
    x = jax.random.normal(key, (5, 3))

    @partial(jax.jit, static_argnums=(1, 2))
    def run(x, nonlinearity, normalization):
        options = {"nonlinearity": nonlinearity, "normalization": normalization}
        return random_network(
            jax.random.key(1), x, depth=3, width=7, homogeneous=False, statistic=identity, **options
        )

    net = run(x, identity, standardize)
    assert (net.log_scale == 0).all()
    np.testing.assert_allclose(np.square(net.statistics).mean(1), 1, rtol=1e-12)
    small, large = (run(c * x, jnp.tanh, recenter).x for c in (1e-3, 1.0))
    assert abs(large).max() < 1
    assert not np.allclose(1e3 * small, large, rtol=1e-2)  # tanh is not homogeneous


def test_ten_thousand_layers_of_512_need_the_memory_of_ten():
    def bytes_of(depth):
        run = jax.jit(
            lambda key, x: random_network(key, x, depth=depth, width=512, layers=(depth,))
        )
        shapes = jax.eval_shape(jax.random.key, 0), jax.ShapeDtypeStruct((128, 64), jnp.float32)
        memory = run.lower(*shapes).compile().memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes

    deep, shallow = bytes_of(10_000), bytes_of(10)
    assert deep - shallow < 10_000 * 64  # A further layer needs at most 64 bytes, for its key.
    assert deep < 16e6  # The weights of one layer are 1 MB.


def test_networks_are_spread_over_devices(key):
    mesh = jax.make_mesh((8,), ("network",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.NamedSharding(mesh, jax.P("network"))
    x = jax.random.normal(key, (5, 3))

    def run(key):
        return random_network(key, x, depth=4, width=6, layers=(2, 4))

    keys = jax.random.split(jax.random.key(1), 16)
    nets = jax.jit(jax.vmap(run), in_shardings=spread, out_shardings=spread)(keys)
    assert len(nets.x.sharding.device_set) == 8
    for got, expected in zip(*map(jax.tree.leaves, (nets, jax.jit(run)(keys[9]))), strict=True):
        np.testing.assert_allclose(np.asarray(got)[9], expected, atol=1e-12)


def test_scales_beyond_floating_point_are_logarithms(key):
    # At width 3, each layer multiplies squared norms by approximately exp(−1.1). Without division
    # by the scale, squared norms would underflow, even in float64, after 700 layers.
    x = jax.random.normal(key, (4, 3), jnp.float32)
    net = jax.jit(lambda k: random_network(k, x, depth=1500, width=3, layers=(1500,)))(key)
    assert net.log_scale[0] < -200
    assert (net.x == 0).all() or abs(jnp.square(net.x).sum() / 4 - 1) < 1e-5


@several_keys
def test_gradients_reach_the_input(key):
    def last_angle(x):
        net = random_network(key, x, depth=3, width=8, statistic=angles, layers=(3,))
        return net.statistics[0, 0, 1]

    check_grads(jax.jit(last_angle), (jax.random.normal(key, (4, 3)),), order=1, modes=["rev"])


@pytest.mark.parametrize("layers", [(), (0, 1), (2, 1), (2, 2), (1, 4)])
def test_layers_that_do_not_ascend_are_refused(layers, key):
    with pytest.raises(ValueError, match=r"ascend and lie in 1\.\.3, the depth; got"):
        random_network(key, jnp.eye(2), depth=3, width=2, layers=layers)


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_batch_is_refused(key):
    with pytest.raises(ValueError, match=r"\(samples, features\); got \(2,\)"):
        random_network(key, jnp.ones(2), depth=3, width=2)
    with pytest.raises(ValueError, match="x must be finite; 1 of 4 elements are not"):
        random_network(key, jnp.eye(2).at[0, 0].set(jnp.nan), depth=3, width=2)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({name: 3}, f"{name} must be a function, such as .*; got 3")
            for name in ("normalization", "nonlinearity", "statistic")
        ),
        ({"normalization": jnp.sum}, r"normalization must return .* \(2, 4\); got \(\)"),
        ({"nonlinearity": lambda x: x[:1]}, r"nonlinearity must return .* \(2, 4\); got \(1, 4\)"),
        ({"nonlinearity": lambda x: [x]}, r"nonlinearity must return .* \(2, 4\); got list"),
        ({"homogeneous": "no"}, "homogeneous must be True or False; got 'no'"),
        ({"width": 4.0}, "width must be an int; got 4.0"),
        ({"layers": 2}, r"layers must be a list of layers, such as \(2,\); got 2"),
    ],
)
def test_wrong_options_are_named(options, message, key):
    with pytest.raises(TypeError, match=f"^{message}"):
        random_network(key, jnp.eye(2), **{"depth": 3, "width": 4, **options})


def test_impossible_sizes(key):
    for depth, width in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match=f"at least 1; got depth {depth} and width {width}"):
            random_network(key, jnp.eye(2), depth=depth, width=width)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_every_layer_has_weights_of_its_own_key(depth, key):
    """A network in NumPy, with the keys that `split` returns, gives the expected outputs."""
    x = np.asarray(jax.random.normal(jax.random.key(1), (4, 3)))
    net = random_network(
        key, jnp.asarray(x), depth=depth, width=6, normalization=identity, homogeneous=False
    )
    h = x
    for layer_key in jax.random.split(key, depth):
        w = np.asarray(jax.random.normal(layer_key, (h.shape[1], 6)))
        h = np.maximum((2 / 6) ** 0.5 * h @ w, 0)
    np.testing.assert_allclose(net.x, h, rtol=1e-10, atol=1e-12)
    scaled = random_network(key, jnp.asarray(x), depth=depth, width=6, normalization=identity)
    np.testing.assert_allclose(jnp.exp(scaled.log_scale[-1]) * scaled.x, h, rtol=1e-9, atol=1e-12)
