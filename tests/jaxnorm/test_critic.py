"""Critics: the paper's network, and the critic that certifies a lower bound."""

import math
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen

from jaxnorm.shift import (
    _critic as critics,
    _lower_bound as lower,
    _pairs as pairs,
    emd,
    emd_critic,
    emd_lower_bound,
    mean_lower_bound,
)
from tests.support.jitted import jitted
from tests.support.other_platforms import as_on

CRITICS = [
    pytest.param(partial(emd_critic, steps=3, batch_size=4), marks=pytest.mark.slow),
    partial(emd_lower_bound, steps=3, batch_size=4),
]
bound = partial(jitted(emd_lower_bound), steps=200, batch_size=64)
short = partial(emd_critic, steps=3, batch_size=4)


def samples(key, shift, n=400):
    """Training and test samples of N(0, I) and of N(shift, I)."""
    x, y, u, v = jax.random.normal(key, (4, n, len(shift)))
    return x, y + shift[None], u, v + shift[None]


class Network(linen.Module):
    """The network of Appendix B.1 in Flax Linen."""

    @linen.compact
    def __call__(self, x):
        for features, stride in zip((64, 64, 128, 128), (2, 1, 2, 1), strict=True):
            layer = linen.Conv(features, (3, 3), (stride, stride), param_dtype=x.dtype)
            x = linen.relu(layer(x))
        return linen.sigmoid(linen.Dense(1, param_dtype=x.dtype)(x.reshape(len(x), -1)))[:, 0]


@pytest.mark.parametrize(
    "shape", [pytest.param((2, 8, 8, 3), marks=pytest.mark.slow), (2, 9, 4, 2), (3, 2, 2)]
)
def test_the_critic_is_the_network_of_the_appendix(shape, key):
    x = jax.random.normal(key, shape)
    params = jax.jit(critics._init_convolutional, static_argnums=(1, 2))(key, shape, x.dtype)
    names = [f"Conv_{i}" for i in range(4)] + ["Dense_0"]
    in_flax = {}
    for name, (kernel, b) in zip(names, params, strict=True):
        like = kernel if name == "Dense_0" else kernel.reshape(3, 3, -1, kernel.shape[1])
        in_flax[name] = {"kernel": like, "bias": b + 0.1}
    params = [(kernel, b + 0.1) for kernel, b in params]
    images = x if x.ndim == 4 else x.reshape(3, 1, 1, 4)  # a vector is an image of one pixel
    expected = jax.jit(Network().apply)({"params": in_flax}, images)
    found = jax.jit(critics._convolutional)(params, x)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize(
    "shape", [(2, 9, 4, 3), (2, 4, 9, 3), (5, 1, 12, 2), (3, 8, 8, 1), (4, 6), (3, 2, 5), (7,)]
)
def test_the_dense_layer_of_the_critic_has_the_pixels_that_two_strides_leave(shape, key):
    """Each of two strides of 2 halves the height and the width, and rounds up."""
    n, height, width, channels = (
        shape if len(shape) == 4 else (shape[0], 1, 1, math.prod(shape[1:]))
    )
    pixels = math.ceil(height / 4) * math.ceil(width / 4)
    fans = [(9 * channels, 64), (9 * 64, 64), (9 * 64, 128), (9 * 128, 128), (128 * pixels, 1)]
    params = jax.eval_shape(lambda key: critics._init_convolutional(key, shape, jnp.float32), key)
    assert [(kernel.shape, bias.shape) for kernel, bias in params] == [(f, f[1:]) for f in fans]
    z = jax.ShapeDtypeStruct(shape, jnp.float32)
    assert jax.eval_shape(critics._convolutional, params, z).shape == (n,)


def test_every_parameter_of_the_critic_stays_clipped(monkeypatch, key):
    trained = []
    original = critics.train

    def spy(*args, **options):
        trained.append(original(*args, **options))
        return trained[-1]

    monkeypatch.setattr(critics, "train", spy)
    x = jax.random.normal(key, (4, 8, 4, 4, 2))
    found, parameters = jax.jit(lambda *x: (short(*x, clip=0.003), trained[0]))(key, *x)
    largest = [abs(np.asarray(leaf)).max() for leaf in jax.tree.leaves(parameters)]
    np.testing.assert_allclose(max(largest), 0.003, rtol=1e-9)
    assert abs(found) < 1


def test_the_critic_is_no_estimate_of_the_distance(key):
    # The distance of the second pair is ten times as large, but the critic's values for both pairs
    # are near zero.
    near, far = (samples(key, jnp.array([length, 0.0])) for length in (1.0, 10.0))
    critic = partial(jitted(emd_critic), steps=50, batch_size=32)
    values = [float(critic(key, *s)) for s in (near, far)]
    assert 0 < values[0] < 1e-2 < 0.8 < emd(*near[2:])
    assert 0 < values[1] < 1e-1 < 9 < emd(*far[2:])


@pytest.mark.parametrize(
    "length",
    [pytest.param(0.5, marks=pytest.mark.slow), 2.0, pytest.param(8.0, marks=pytest.mark.slow)],
)
def test_the_certified_critic_comes_close_in_two_dimensions(length, key):
    x = samples(key, length * jnp.array([0.6, 0.8]))
    found, exact = bound(key, *x), emd(*x[2:])
    assert 0.9 * exact < found <= exact


def test_the_certified_critic_sees_a_change_of_scale(key):
    # The means are equal, so a linear critic finds no distance. The exact distance is E‖x‖ =
    # √(π/2).
    x, y, u, v = samples(key, jnp.zeros(2), n=1000)
    found = bound(key, x, 2 * y, u, 2 * v, steps=400)
    assert mean_lower_bound(u.mean(0), 2 * v.mean(0)) < 0.2
    assert 0.9 * (np.pi / 2) ** 0.5 < found <= emd(u, 2 * v)


def test_the_certified_critic_tells_points_from_their_reflections(key):
    # The set x and its reflection −x have equal means, and equal distances between their points.
    corners = jnp.array([[0.0, 3.0], [3.0, 0.0], [-3.0, -3.0]])
    x = jnp.repeat(corners, 20, 0)
    assert 0.9 * emd(x, -x) < bound(key, x, -x, x, -x) <= emd(x, -x)


@pytest.mark.slow
def test_the_bound_scales_with_its_samples_and_ignores_where_they_lie(key):
    x = samples(key, jnp.array([1.0, 0.0, 0.0]), n=50)
    shifted = [1e3 * part + 7e3 for part in x]
    few = partial(bound, steps=3)  # more steps would amplify rounding errors
    np.testing.assert_allclose(few(key, *shifted), 1e3 * few(key, *x), rtol=1e-6)


@pytest.mark.slow
def test_the_test_samples_do_not_choose_the_critic(key):
    # All draws are from one distribution. If the test samples selected the best critic, almost all
    # bounds would be above 0. The critic was selected on other samples, so the difference of its
    # means is negative in about half of the cases. Then the bound is 0.
    draws = jax.random.normal(key, (60, 4, 6, 2))
    bounds = jax.jit(jax.vmap(lambda k, d: emd_lower_bound(k, *d, steps=3, batch_size=4)))(
        jax.random.split(key, 60), draws
    )
    assert 15 <= (bounds == 0).sum() <= 45


def test_the_paper_s_critic_is_trained_by_rmsprop(monkeypatch, key):
    x = jax.random.normal(key, (8, 3))
    seen = []
    monkeypatch.setattr(critics, "_init_convolutional", lambda *_: None)
    monkeypatch.setattr(critics, "_convolutional", lambda _, z: z.sum(1))
    monkeypatch.setattr(critics, "train", lambda *_, optimizer, **__: seen.append(optimizer))
    emd_critic(key, x, x, x, x, steps=1, batch_size=4)
    gradient = jnp.array([3.0, -0.1])
    update, _ = seen[0].update(gradient, seen[0].init(gradient))
    # The first step of RMSProp with decay 0.9 is rate · g / √(0.1 g²). The size of this step does
    # not depend on the gradient g.
    np.testing.assert_allclose(update, -5e-5 / np.sqrt(0.1) * jnp.sign(gradient), rtol=1e-3)


def test_the_critic_learns_from_training_pairs_and_measures_test_pairs(monkeypatch, key):
    """Instead of a trained network, the critic is z · (mean of x + 2 · mean of y)."""
    monkeypatch.setattr(critics, "_init_convolutional", lambda *_: None)
    monkeypatch.setattr(critics, "_convolutional", lambda w, z: z @ w)
    clipped = []

    def train(*args, project, **_):
        clipped.append(project([(jnp.array([[9.0, 0.2]]), jnp.array([-9.0, 0.2]))]))
        return args[3].x.mean(0) + 2 * args[3].y.mean(0)

    monkeypatch.setattr(critics, "train", train)
    rng = np.random.default_rng(0)
    x, y, u, v = (rng.normal(i, 1, (n, 3)) for i, n in enumerate((5, 5, 7, 7)))
    found = emd_critic(key, *map(jnp.asarray, (x, y, u, v)), batch_size=4, clip=0.5)
    for part, of_all in zip(clipped[0][0], ([[0.5, 0.2]], [-0.5, 0.2]), strict=True):
        np.testing.assert_array_equal(part, of_all)
    expected = (u.mean(0) - v.mean(0)) @ (x.mean(0) + 2 * y.mean(0))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.slow
def test_samples_that_do_not_differ_have_the_bound_zero(key):
    x = jax.random.normal(key, (20, 3))
    assert bound(key, x, x, x, x) == 0
    assert bound(key, 0 * x, 0 * x, 0 * x, 0 * x) == 0


@pytest.mark.parametrize("critic", CRITICS)
def test_layers_may_be_vmapped(critic, key):
    x = jax.random.normal(key, (4, 3, 8, 2, 2, 2)).at[:, 2].set(7)
    keys = jax.random.split(key, 3)
    found = jax.jit(jax.vmap(critic))(keys, *x)
    assert found[2] == 0  # all samples of case 2 are equal
    for i in range(3):
        alone = jitted(critic)(keys[i], *x[:, i])
        np.testing.assert_allclose(found[i], alone, rtol=1e-9, atol=1e-15)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("critic", [emd_critic, emd_lower_bound])
def test_bad_samples_and_options_are_refused(critic, key):
    x = jnp.ones((4, 2))
    with pytest.raises(ValueError, match=r"equally many samples, .*; got 4 and 3"):
        critic(key, x, x[:3], x, x)
    with pytest.raises(ValueError, match="x_train and x_test must have the same features"):
        critic(key, x, x, x[:, :1], x[:, :1])
    with pytest.raises(
        ValueError, match="steps and batch_size must be positive; got steps 0 and batch_size 128"
    ):
        critic(key, x, x, x, x, steps=0)
    with pytest.raises(ValueError, match=r"positive; got steps 5 and batch_size 0$"):
        critic(key, x, x, x, x, steps=5, batch_size=0)
    with pytest.raises(ValueError, match="y_test must be finite; 8 of 8 elements are not"):
        critic(key, x, x, x, jnp.nan * x)
    with pytest.raises(ValueError, match="clip must be positive; got 0"):
        emd_critic(key, x, x, x, x, clip=0.0)


def test_the_certified_critic_is_a_soft_minimum_of_cones():
    """The critic is close to the smaller of its two cones; equal cones lower it by τ log 2."""
    z = jnp.array([[3.0, 4.0], [0.0, 1.0]])
    cones = partial(lower._cones, lower._distances)
    found = cones((jnp.array([[0.0, 0.0], [3.0, 4.0]]), jnp.array([0.5, 1.0])), z)
    np.testing.assert_allclose(found, [1, 1.5], rtol=1e-12)
    one = jnp.array([[3.0, 0.0]])
    equal = cones((jnp.concatenate([one, one]), jnp.zeros(2)), z)
    np.testing.assert_allclose(equal, [4 - 0.02 * np.log(2), 10**0.5 - 0.02 * np.log(2)])
    fast = lower._distances_by_products(z, one)
    np.testing.assert_allclose(fast, [[4], [10**0.5]], rtol=1e-9)
    near = jnp.array([[9.0, 1.0], [9.0, 1.0001]], "float32")
    exact = near[1, 1] - near[0, 1]
    np.testing.assert_allclose(lower._distances(near[:1], near[1:]), exact, rtol=1e-6)


@pytest.mark.parametrize("unit", [1e-30, 1.0, 1e30])
def test_the_spread_is_the_root_mean_square_length(unit):
    x = jnp.array([[3.0, 4.0], [0.0, -1.0], [0.0, 0.0]], "float32") * unit
    np.testing.assert_allclose(lower._spread(x) / np.float32(unit), (26 / 3) ** 0.5, rtol=1e-6)
    assert lower._spread(0 * x) == 0


def test_off_cpus_the_critic_convolves(key):
    image = jax.ShapeDtypeStruct((4, 6, 5, 3), jnp.float32)
    traced = jax.jit(short).trace(key, image, image, image, image)
    programs = {p: traced.lower(lowering_platforms=(p,)).as_text() for p in ("cpu", "tpu")}
    assert "stablehlo.convolution" not in programs["cpu"]
    assert "stablehlo.convolution" in programs["tpu"]


@pytest.mark.parametrize("run_as", [jax.jit, *(partial(as_on, p) for p in ("cuda", "tpu"))])
@pytest.mark.parametrize("stride", [1, 2])
def test_both_forms_of_a_convolution_are_one(stride, run_as, key):
    x, kernel = jax.random.normal(key, (2, 7, 6, 3)), jax.random.normal(key, (27, 5))
    expected = jax.lax.conv_general_dilated(
        x,
        kernel.reshape(3, 3, 3, 5),
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    found = run_as(lambda x, kernel: critics._convolve(x, kernel, stride))(x, kernel)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_both_critics_see_minibatches_of_their_own(key, monkeypatch):
    """The two critics are trained with different keys, and not with the caller's key."""
    used = []
    module = sys.modules[emd_lower_bound.__module__]
    train = module.train

    def recording(critic, params, key, pairs, **options):
        used.append(tuple(np.asarray(jax.random.key_data(key))))
        return train(critic, params, key, pairs, **options)

    monkeypatch.setattr(module, "train", recording)
    x = jax.random.normal(key, (4, 6, 2))
    emd_lower_bound(key, *x, steps=1, batch_size=2)
    assert len(used) == len(set(used)) == 2
    assert tuple(np.asarray(jax.random.key_data(key))) not in used


def test_the_learning_rate_of_a_lower_bound_decreases_to_zero(key, monkeypatch):
    """If all gradients are equal, each step of Adam is as long as the learning rate."""
    used = []

    def recording(critic, params, *_, optimizer, **__):
        used.append(optimizer)
        return params

    monkeypatch.setattr(lower, "train", recording)
    emd_lower_bound(key, *jax.random.normal(key, (4, 6, 2)), steps=4, batch_size=2)
    for optimizer in used:
        state, found = optimizer.init(0.0), []
        for _ in range(4):
            with jax.numpy_dtype_promotion("standard"):
                step, state = optimizer.update(3.0, state)
            found.append(float(step))
        np.testing.assert_allclose(found, -5e-3 * np.array([1, 0.75, 0.5, 0.25]), rtol=1e-6)
    assert len(used) == 2


@pytest.mark.parametrize("seed", range(3))
def test_a_critic_is_trained_on_all_pairs_alike(seed):
    """Trained by SGD, each parameter of a linear critic counts how often one pair was drawn."""
    count, steps, batch = 5, 200, 4
    found = pairs.train(
        lambda w, z: z @ w,
        jnp.zeros(count),
        jax.random.key(seed),
        pairs.Pairs(jnp.eye(count), -2 * jnp.eye(count)),
        project=lambda w: w,
        optimizer=optax.sgd(batch / 3),
        steps=steps,
        batch_size=batch,
    )
    np.testing.assert_allclose(found.sum(), steps * batch, rtol=1e-6)
    expected = steps * batch / count
    np.testing.assert_allclose(found, expected, atol=4.5 * np.sqrt(expected))


def test_every_step_goes_on_from_the_last_one():
    """Three ascent steps with momentum and weight decay, each followed by halving the weights."""
    x, y = np.array([1.0, -2.0, 0.5]), np.array([-0.3, 1.0, 2.0])
    w, velocity, start = np.array([0.7, -1.1, 0.2]), 0, np.array([0.7, -1.1, 0.2])
    for _ in range(3):
        # The critic is z · w², so the gradient of its loss, without weight decay, is 2 w (y − x).
        velocity = 2 * w * (y - x) + 0.3 * w + 0.9 * velocity
        w = (w - 0.05 * velocity) / 2
    found = pairs.train(
        lambda w, z: z @ w**2,
        jnp.asarray(start),
        jax.random.key(0),
        pairs.Pairs(*(jnp.tile(jnp.asarray(z), (4, 1)) for z in (x, y))),
        project=lambda w: w / 2,
        optimizer=optax.chain(optax.add_decayed_weights(0.3), optax.trace(0.9), optax.scale(-0.05)),
        steps=3,
        batch_size=2,
    )
    np.testing.assert_allclose(found, w, rtol=1e-12)


def test_the_critic_of_a_lower_bound_is_the_best_in_training(monkeypatch):
    """The training samples select one of three critics; the test samples would bias the bound."""
    monkeypatch.setattr(lower, "train", lambda critic, params, *_, **__: params)

    def bound(*differences):
        found = iter(jnp.array(d) for d in differences)
        monkeypatch.setattr(pairs.Pairs, "difference", lambda *_: next(found))
        x, y, u, v = samples(jax.random.key(0), jnp.ones(3), n=9)
        return emd_lower_bound(jax.random.key(1), x, y, u, v, steps=1, batch_size=2)

    expected = bound([1.0, 1.0, 1.0], [0.5, 0.5, 0.5])
    assert expected > 0
    for place in range(3):
        of_train, of_test = np.eye(3)[place] + 2, 5 - 4.5 * np.eye(3)[place]
        np.testing.assert_allclose(bound(of_train, of_test), expected)
    assert bound([1.0, 3.0, 2.0], [5.0, -0.5, 4.0]) == 0
    assert bound([-3.0, -1.0, -2.0], [5.0, -0.5, 4.0]) == 0


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_the_critics_of_a_lower_bound_begin_at_the_samples_and_between_the_means(
    monkeypatch, key, factor
):
    """If `factor` is 1, a few test samples lie exactly at an apex of the critic."""
    monkeypatch.setattr(lower, "train", lambda critic, params, *_, **__: params)
    near, far = np.array([[0.5, -0.5], [-0.5, 0.5]]), np.array([[2.4, 2.0], [-1.6, -2.0]])
    train = np.stack([near, far]) + 3
    test = factor * train
    found = emd_lower_bound(key, *map(jnp.asarray, (*train, *test)))
    center = train.mean((0, 1))
    scale = np.sqrt(np.square(train - center).sum(-1).mean(-1)).max()
    (x, y), (u, v) = (train - center) / scale, (test - center) / scale

    def cones(z, apexes):
        apexes = np.concatenate([apexes, np.zeros((1, 2))])
        distances = np.linalg.norm(z[:, None] - apexes, axis=-1)
        return -0.02 * np.log(np.exp(-distances / 0.02).sum(1))

    direction = (x.mean(0) - y.mean(0)) / np.linalg.norm(x.mean(0) - y.mean(0))
    critics = [lambda z: cones(z, y), lambda z: -cones(z, x), lambda z: z @ direction]
    best = max(critics, key=lambda f: f(x).mean() - f(y).mean())
    np.testing.assert_allclose(found, scale * (best(u).mean() - best(v).mean()), rtol=1e-9)
    assert emd_lower_bound(key, *[jnp.full((2, 2), 3.0)] * 4) == 0
