"""Computes a lower bound on the earth mover distance by a critic with Lipschitz constant 1."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key

from jaxnorm._unitize import unit_vector
from jaxnorm.internal import check_key, matmul, unit_of
from jaxnorm.shift._pairs import Pairs, train, train_and_test_pairs
from jaxnorm.shift._samples import vectors

Critic = Callable[[Array], Array]

# These values of τ, of the learning rate and of the number of cones suit samples whose `_spread` is
# 1.
CONES, TAU, LEARNING_RATE = 128, 0.02, 5e-3


def emd_lower_bound(
    key: Key[Array, ""],
    x_train: Float[Array, "n *features"],
    y_train: Float[Array, "n *features"],
    x_test: Float[Array, "m *features"],
    y_test: Float[Array, "m *features"],
    *,
    steps: int = 1500,
    batch_size: int = 128,
) -> Float[Array, ""]:
    """A lower bound on the exact earth mover distance of the test samples, in the samples' unit.

    The critic is a soft minimum of cones, f(z) = −τ log Σ exp(−(‖z − a_j‖ + b_j)/τ), with trained
    apexes a_j and heights b_j. The gradient of the critic f is a weighted mean of unit vectors.
    Therefore f has Lipschitz constant 1 for every τ, a and b. As τ tends to 0, soft minima of cones
    can approach the optimal critic of Equation 3 for finitely many samples. Two critics are
    trained. The first critic is f with large values on x. The second critic is −g, where g has
    large values on y. A third critic is linear along the difference of the training means.
    `emd_lower_bound` selects the critic with the largest difference of means on the training
    samples. The result is the chosen critic's difference of means on the test samples, or 0 if the
    difference is negative. Up to rounding (10⁻⁶ of the spread of float32 samples), the result is at
    most the distance of the test samples, even if training fails. The expected difference on the
    test samples is at most the distance of the distributions. Because negative differences become
    0, the expected result can exceed the distance of the distributions, for example if this
    distance is 0.

    Args:
      key: The random key for the minibatches.
      x_train: Samples on the first axis; each sample is flattened to a vector. Row i of `y_train`
        comes from the same input as row i of `x_train`.
      y_train: Outputs for the same inputs as `x_train`, before or after a change of the weights.
      x_test: Samples that are not used in training.
      y_test: Outputs for the same inputs as `x_test`, at the same time of training as `y_train`.
      steps: The number of training steps of Adam, with a learning rate that decreases to zero.
      batch_size: The number of samples of x, and of y, in one step.

    Raises:
      ValueError: `emd_1d` would raise an error for the samples, or x and y have different numbers
        of samples. `steps` or `batch_size` is not positive.

    Example:
      >>> from jaxnorm.shift import emd
      >>> x, test = jax.random.normal(jax.random.key(0), (2, 200, 3))
      >>> bounded = jax.jit(emd_lower_bound, static_argnames="steps")
      >>> bound = bounded(jax.random.key(1), x, 2 * x, test, 2 * test, steps=100)
      >>> print(1.3 < bound < emd(test, 2 * test))
      True
    """
    check_key(key)
    pairs = train_and_test_pairs(x_train, y_train, x_test, y_test)
    mean_x, mean_y = (vectors(side).mean(0) for side in pairs[0])
    center = mean_x[None] / 2 + mean_y[None] / 2
    spread = jnp.maximum(*(_spread(vectors(side) - center) for side in pairs[0]))
    scale = jnp.where(spread == 0, 1, spread)
    train_pairs, test_pairs = (
        Pairs((vectors(x) - center) / scale, (vectors(y) - center) / scale) for x, y in pairs
    )

    def train_cones(key: Key[Array, ""], x: Array, y: Array) -> Critic:
        params = train(
            partial(_cones, _distances_by_products),
            _init_cones(y),
            key,
            Pairs(x, y),
            project=lambda params: params,
            optimizer=optax.adam(optax.linear_schedule(LEARNING_RATE, 0, steps)),
            steps=steps,
            batch_size=batch_size,
        )
        return partial(_cones, _distances, params)

    forward, backward = jax.random.split(key)
    from_x = train_cones(forward, train_pairs.x, train_pairs.y)
    from_y = train_cones(backward, train_pairs.y, train_pairs.x)
    direction = unit_vector(mean_x - mean_y)[None]

    def critics(z: Float[Array, "n d"]) -> Float[Array, "n 3"]:
        return jnp.stack([from_x(z), -from_y(z), jnp.sum(direction * z, 1)], 1)

    on_train = train_pairs.difference(critics, batch_size)
    on_test = test_pairs.difference(critics, batch_size)
    return scale * jnp.maximum(on_test[jnp.argmax(on_train)], 0)


def _spread(h: Float[Array, "n d"]) -> Float[Array, ""]:
    """The root mean square length of the rows.

    Elements are divided by the largest absolute value before they are squared, so no square
    overflows.
    """
    unit = unit_of(jnp.abs(h).max())
    return unit * jnp.sqrt(jnp.square(h / unit).sum(1).mean())


def _init_cones(y: Float[Array, "n d"]) -> tuple[Float[Array, "k d"], Float[Array, " k"]]:
    """The initial cones, with apexes at samples of y and at the center, and heights of zero.

    The critic f should be small at samples of y, and a cone is smallest at its apex.
    """
    apexes = jnp.concatenate([y[:CONES], jnp.zeros_like(y[:1])])
    return apexes, jnp.zeros(len(apexes), y.dtype)


def _cones(
    distances: Callable[[Array, Array], Array],
    params: tuple[Float[Array, "k d"], Float[Array, " k"]],
    z: Float[Array, "n d"],
) -> Float[Array, " n"]:
    apexes, heights = params
    return -TAU * jax.nn.logsumexp(-(distances(z, apexes) + heights[None]) / TAU, axis=1)


def _distances_by_products(z: Float[Array, "n d"], a: Float[Array, "k d"]) -> Float[Array, "n k"]:
    """The distances between samples and apexes, by a fast formula for training.

    Small distances have only three correct digits, which is enough for training.
    """
    product = matmul(z, a.T)
    square = jnp.square(z).sum(1)[:, None] - 2 * product + jnp.square(a).sum(1)[None]
    return jnp.sqrt(jnp.maximum(square, 1e-12))


def _distances(z: Float[Array, "n d"], a: Float[Array, "k d"]) -> Float[Array, "n k"]:
    """The distances by an exact formula, so that rounding gives no cone a slope above 1."""
    return jnp.sqrt(jnp.square(z[:, None] - a[None]).sum(2))
