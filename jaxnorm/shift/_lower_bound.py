"""A critic that is 1-Lipschitz by its form, hence a lower bound of the earth mover distance."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key

from jaxnorm._numerics import matmul
from jaxnorm._unitize import unit_vector
from jaxnorm.shift._pairs import Outputs, Pairs, pairs_of, trained
from jaxnorm.shift._samples import vectors

CONES, TAU = 128, 0.02  # where the spread of the samples is 1


def emd_lower_bound(
    key: Key[Array, ""],
    x_train: Float[Array, "n *features"],
    y_train: Float[Array, "n *features"],
    x_test: Float[Array, "m *features"],
    y_test: Float[Array, "m *features"],
    *,
    steps: int = 1500,
    batch_size: int = 128,
    learning_rate: float = 5e-3,
    outputs: tuple[Outputs, Outputs] | None = None,
) -> Float[Array, ""]:
    """A lower bound of the exact earth mover distance of the test samples, in their unit.

    The critic is a soft minimum of cones, f(z) = −τ log Σ exp(−(‖z − a_j‖ + b_j)/τ), with
    trained apexes a_j and heights b_j. Its gradient is a weighted mean of unit vectors: for every
    τ, a, b it is 1-Lipschitz, without clipping or a constant to divide by, and for τ to 0 the
    optimum of Eq. 3 on finitely many samples has this form. One critic looks from x to y, one from
    y to x, a third is linear along the difference of the training means. The best of the three on
    the training samples is taken, and the result is its mean difference on the test samples: below
    their distance whatever training did, to rounding (10⁻⁶ of the spread of float32 samples), and
    in the mean below the distance of the laws that the test samples came from.

    Args:
      key: Decides the minibatches.
      x_train: Samples on the first axis; each is one vector, whatever its shape. Row i of
        `y_train` comes from the same input.
      y_train: The same at the other moment.
      x_test: Samples that the critic has not seen.
      y_test: The same at the other moment.
      steps: Steps of training, by Adam with a rate that falls to zero.
      batch_size: Samples of each side in a step.
      learning_rate: Of Adam at the start, where the spread of the samples is 1.
      outputs: As in `emd_critic`.

    Raises:
      ValueError: Samples do not fit, as in `emd_1d`, or are not paired; `steps` or `batch_size`
        is not positive.

    Example:
      >>> from jaxnorm.shift import emd
      >>> x, test = jax.random.normal(jax.random.key(0), (2, 200, 3))
      >>> bound = emd_lower_bound(jax.random.key(1), x, 2 * x, test, 2 * test, steps=100)
      >>> print(1.3 < bound < emd(test, 2 * test))
      True
    """
    raw = pairs_of(x_train, y_train, outputs)
    means = raw.means(vectors, batch_size)
    center = (means[0] + means[1])[None] / 2
    squares = raw.means(lambda z: jnp.square(vectors(z) - center).sum(1), batch_size)
    spread = jnp.sqrt(jnp.maximum(*squares))
    scale = jnp.where(spread > 0, spread, 1)

    def scaled(f: Outputs) -> Outputs:
        return lambda z: (vectors(f(z)) - center) / scale

    train, test = (
        pairs._replace(outputs=(scaled(pairs.outputs[0]), scaled(pairs.outputs[1])))
        for pairs in (raw, pairs_of(x_test, y_test, outputs))
    )
    optimizer = optax.adam(
        lambda done: learning_rate * (1 - jnp.asarray(done, center.dtype) / steps)
    )

    def cones(key: Key[Array, ""], pairs: Pairs) -> Outputs:
        start = _start_cones(pairs)
        value = partial(_cones, _distances_by_products)
        found = trained(value, start, key, pairs, lambda p: p, optimizer, steps, batch_size)
        return partial(_cones, _distances, found)

    forward, backward = jax.random.split(key)
    from_x, from_y = cones(forward, train), cones(backward, train.swapped())
    direction = unit_vector(means[0] - means[1])[None]
    critics = (from_x, lambda z: -from_y(z), lambda z: jnp.sum(direction * z, 1))

    def differences(pairs: Pairs) -> Float[Array, "3"]:
        return pairs.difference(lambda z: jnp.stack([f(z) for f in critics], 1), batch_size)

    return scale * jnp.maximum(differences(test)[jnp.argmax(differences(train))], 0)


def _start_cones(pairs: Pairs) -> tuple[Array, Array]:
    """Apexes at outputs of y, where f shall be small, and one in the middle; heights zero."""
    _, y = pairs.minibatch(jnp.arange(min(CONES, len(pairs.y))))
    apexes = jnp.concatenate([y, jnp.zeros_like(y[:1])])
    return apexes, jnp.zeros(len(apexes), y.dtype)


def _cones(
    distances: Callable[[Array, Array], Array],
    params: tuple[Float[Array, "k d"], Float[Array, " k"]],
    z: Float[Array, "n d"],
) -> Float[Array, " n"]:
    apexes, heights = params
    return -TAU * jax.nn.logsumexp(-(distances(z, apexes) + heights[None]) / TAU, axis=1)


def _distances_by_products(z: Float[Array, "n d"], a: Float[Array, "k d"]) -> Float[Array, "n k"]:
    """Fast, and good to three digits of a small distance: enough to train with."""
    product = matmul(z, a.T)
    square = jnp.square(z).sum(1)[:, None] - 2 * product + jnp.square(a).sum(1)[None]
    return jnp.sqrt(jnp.maximum(square, 1e-12))


def _distances(z: Float[Array, "n d"], a: Float[Array, "k d"]) -> Float[Array, "n k"]:
    """Exact, so that no rounding error makes a cone steeper than 1."""
    return jnp.sqrt(jnp.square(z[:, None] - a[None]).sum(2))
