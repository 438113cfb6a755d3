"""The Gram matrix of a batch after a layer with any activation, or after a normalization.

All layers of this module have infinite width.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from geometry._angles import trace
from geometry._arguments import as_gram
from geometry.mean_field._kernel_map import Activation, Expansion, expand, ramp_kernel, within
from jaxnorm.internal import auto_sharded, replicate, safe_sqrt, unit_of


def activation_step(
    gram: Float[Array, "n n"],
    activation: Activation,
    kinks: tuple[float, ...] = (),
    *,
    terms: int | None = None,
) -> Float[Array, "n n"]:
    """The Gram matrix E φ(zᵢ) φ(zⱼ) after an activation φ of Gaussian z with covariance `gram`.

    The samples may have any norms. The result is the sum of a series as in `kernel_map`, with
    different coefficients for each sample. For ReLU, the result is half of `arccosine_kernel`. To
    compute a layer with a part of batch norm, first apply the normalization to the Gram matrix:

        neither                activation_step(gram, φ)
        recentering            activation_step(recenter_gram(gram), φ)
        rescaling              activation_step(rescale_gram(gram), φ)
        both                   activation_step(rescale_gram(recenter_gram(gram)), φ)
        RMS or layer norm      activation_step(rms_norm_gram(gram), φ), over features
        branch times scale     gram + scale² · activation_step(...), for a residual branch

    In a finite batch, rescaling divides each neuron by its own root mean square over the batch.
    `rescale_gram` divides all neurons by one mean size. This is exact in the limit of many samples
    in many directions. For ReLU, `rescale_rms_step` and `standardize_step` are exact for any batch.
    Without a rescaling over the batch, `activation_step` is exact for any batch.

    Args:
      activation: The activation φ. `activation`, `kinks` and `terms` have the same meaning as in
        `kernel_map`.

    Raises:
      ValueError: `kernel_map` would raise an error for these arguments, or `gram` is not a Gram
        matrix.

    Example:
      >>> gram = jnp.array([[1.0, 0.5], [0.5, 2.0]])
      >>> print(activation_step(gram, lambda x: x**2, terms=3).round(4))
      [[ 3.   2.5]
       [ 2.5 12. ]]
    """
    step = partial(activation_kernel, activation=activation, kinks=kinks, terms=terms)
    return auto_sharded(step)(as_gram(gram)).astype(jnp.result_type(gram))


def rescale_gram(gram: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The Gram matrix of the batch, scaled to a mean squared norm of 1; a zero matrix remains zero.

    Example:
      >>> print(rescale_gram(jnp.diag(jnp.array([1.0, 3.0]))))
      [[0.5 0. ]
       [0.  1.5]]
    """
    g = as_gram(gram)
    g = g / unit_of(jnp.abs(g).max())  # the division keeps the sum of the diagonal finite
    mean = trace(g) / len(g)
    return (g / jnp.where(mean == 0, 1, mean)).astype(jnp.result_type(gram))


def rms_norm_gram(gram: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The Gram matrix of the batch with each sample scaled to norm 1; zero samples remain zero.

    The elements of the result are the cosines of the samples. `rms_norm_gram` describes RMS norm
    over features. For preactivations, RMS norm equals layer norm, because the mean of
    preactivations over features vanishes at infinite width. For layer norm of activations, see
    `layer_norm_map`.

    Example:
      >>> print(rms_norm_gram(jnp.array([[4.0, 3.0], [3.0, 9.0]])))
      [[1.  0.5]
       [0.5 1. ]]
    """
    g = replicate(as_gram(gram))
    g = g / unit_of(jnp.abs(g).max())  # the division keeps derivatives of a small matrix finite
    std = safe_sqrt(jnp.diagonal(g))
    divisor = jnp.where(std == 0, 1, std)
    return (g / divisor[:, None] / divisor[None]).astype(jnp.result_type(gram))


def activation_kernel(
    g: Float[Array, "n n"],
    activation: Activation,
    kinks: tuple[float, ...],
    *,
    terms: int | None,
    nodes: int | None = None,
) -> Float[Array, "n n"]:
    """The result of `activation_step`, without a check of the Gram matrix.

    `nodes` is the number of quadrature nodes in each interval between two kinks.
    """
    variances = jnp.diagonal(g)
    std = safe_sqrt(jnp.where(variances <= 0, 0, variances))
    divisor = jnp.where(std == 0, 1, std)
    rho = within(g / divisor[:, None] / divisor[None])
    series = jax.vmap(lambda s: expand(activation, kinks, s, terms=terms, nodes=nodes))(std)

    def horner(total: Array, columns: tuple[Array, Array]) -> tuple[Array, None]:
        whole, ramps = (column[:, None] * column[None] for column in columns)
        return total * rho + (whole - ramps), None

    columns = (series.coefficients.T, series.ramps.T)
    smooth = jax.lax.scan(horner, jnp.zeros_like(g), columns, reverse=True)[0]

    def pair(a: Expansion, b: Expansion, rho: Array) -> Array:
        return ramp_kernel(a, b, rho)

    over_columns = jax.vmap(pair, in_axes=(None, 0, 0))
    kernel = smooth + jax.vmap(over_columns, in_axes=(0, None, 0))(series, series, rho)
    return jnp.where(jnp.eye(len(g), dtype=bool), series.mean_square[None], kernel)
