"""The recentering tree: every neuron has a child that sees it above its mean and one below.

The deterministic model of recentering and ReLU of Nachum et al., Definition 5. Samples are rows
of x (n, neurons). A layer doubles the neurons; `tree_gram` has the Gram matrix of its n samples at
any depth in polynomial time, because all but n − 2 of the 2ᵗ neurons take only two values. How
deep trees end is in `geometry.tree._limits`.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from geometry._angles import distances, gram
from geometry._arguments import array, samples
from geometry.tree import _recursion
from jaxnorm import recenter
from jaxnorm._sharding import replicated


class TreeGram(NamedTuple):
    """Gram matrix of the tree: the true one is exp(2 log_scale) gram, likewise the distances.

    `squared_distances` are sums of squares, without the cancellation of gᵢᵢ + gⱼⱼ − 2gᵢⱼ, so that
    they tell how far apart merging samples are long after `gram` cannot.
    """

    gram: Float[Array, "n n"]
    log_scale: Float[Array, ""]
    squared_distances: Float[Array, "n n"]


def positive(x: Float[Array, "n *neurons"]) -> Float[Array, "n *neurons"]:
    """ReLU(x − μ) with μ the mean over the samples: the positive children (Eq. 9).

    Example:
      >>> print(positive(jnp.array([0.0, 1.0, 5.0])))
      [0. 0. 3.]
    """
    return jax.nn.relu(recenter(x))


def negative(x: Float[Array, "n *neurons"]) -> Float[Array, "n *neurons"]:
    """ReLU(μ − x) with μ the mean over the samples: the negative children (Eq. 10).

    Example:
      >>> print(negative(jnp.array([0.0, 1.0, 5.0])))
      [2. 1. 0.]
    """
    return jax.nn.relu(-recenter(x))


def tree_step(x: Float[Array, "n m"]) -> Float[Array, "n 2*m"]:
    """One layer of the tree: all positive children, then all negative ones (Definition 5).

    Example:
      >>> print(tree_step(jnp.array([[0.0], [1.0], [5.0]])))
      [[0. 2.]
       [0. 1.]
       [3. 0.]]
    """
    return _children(samples(x).astype(x.dtype))


def tree(x: Float[Array, " n"] | Float[Array, "n m"], depth: int) -> Float[Array, "n width"]:
    """`tree_step` applied `depth` times: all 2ᵈᵉᵖᵗʰ neurons, or as many for each of m coordinates.

    By brute force, for small depths; `tree_gram` has inner products at any. Samples may be sharded.

    Raises:
      ValueError: `depth` is negative, or `x` no vector or matrix, or outside `jit` not finite.

    Example:
      >>> tree(jnp.array([0.0, 1.0, 5.0]), 10).shape
      (3, 1024)
    """
    _not_negative(depth)
    array(x)
    x = samples(_columns(x)).astype(x.dtype)
    for _ in range(depth):
        x = _children(x)
    return x


def tree_gram(x: Float[Array, " n"] | Float[Array, "n coordinates"], depth: int) -> TreeGram:
    """Gram matrix of `depth` tree layers on `x`: of `tree`, 2ᵈᵉᵖᵗʰ neurons wide.

    Exact but for rounding, in O(n log n) operations a layer and O(n³) once, by the recursion over
    split positions: a neuron that is zero on p of n samples and c on the rest has children that are
    c p/n on the rest and c (n − p)/n on the p. With several coordinates each has its tree and the
    Gram matrices add. Differentiable but where a sample equals a mean. Depth 0 is `x` itself; a
    constant `x` has a Gram matrix of zeros from depth 1. Computed in at least float32.

    Best left to a CPU: layers are tens of small kernels, one after the other, and a TPU or GPU
    mostly launches them. Samples that are sharded over Explicit mesh axes are gathered.

    Args:
      x: One number a sample, in any order and possibly repeated, or several.
      depth: Number of layers.

    Raises:
      ValueError: `depth` is negative, or `x` no vector or matrix, or outside `jit` not finite.

    Example:
      >>> tree = tree_gram(jnp.array([0.0, 1.0, 5.0]), 10_000)
      >>> norms = jnp.sqrt(jnp.diagonal(tree.gram))
      >>> print((norms / norms[2]).round(4))  # the third is longest, and orthogonal to the first
      [0.6325 0.5292 1.    ]
      >>> print(tree.gram[0, 2])
      0.0
    """
    _not_negative(depth)
    array(x)
    h = replicated(samples(_columns(x)))
    if depth == 0:
        return TreeGram(gram(h), jnp.zeros((), h.dtype), jnp.square(distances(h)))
    grams, squares, exponents = jax.vmap(lambda c: _one_coordinate(c, depth), in_axes=1)(h)
    some = jnp.any(grams != 0, axis=(1, 2))
    top = jnp.max(exponents, where=some, initial=jnp.iinfo(exponents.dtype).min)
    factor = _power_of_four(jnp.where(some, exponents - top, 0), h.dtype)
    # Every layer was computed n times too large; whole powers of two cancel exactly.
    fraction, whole = math.modf(depth * math.log2(len(x)))
    log_scale = ((top - int(whole)).astype(h.dtype) - fraction) * math.log(2)
    return TreeGram(
        jnp.einsum("c,cij->ij", factor, grams, precision="highest"),
        jnp.where(some.any(), log_scale, 0),
        jnp.einsum("c,cij->ij", factor, squares, precision="highest"),
    )


def _children(x: Float[Array, "n m"]) -> Float[Array, "n 2*m"]:
    return jnp.concatenate([positive(x), negative(x)], axis=1)


def _columns(x: Array) -> Array:
    """One column for one number a sample."""
    return x[:, None] if x.ndim == 1 else x


def _not_negative(depth: int) -> None:
    if depth < 0:
        raise ValueError(f"depth must not be negative; got {depth}")


def _one_coordinate(x: Float[Array, " n"], depth: int) -> tuple[Array, Array, Array]:
    """Gram matrix, squared distances and exponent of the tree of one coordinate."""
    order = jnp.argsort(x)
    h = x[order] - x[order[0]]
    _, exponent = jnp.frexp(jax.lax.stop_gradient(h[-1]))
    h = h * jnp.ldexp(jnp.ones((), h.dtype), -exponent)
    state, _ = jax.lax.scan(
        lambda state, _: (_recursion.layer(h, state), None),
        _recursion.start(h),
        length=depth,
    )
    place = jnp.argsort(order)
    found = _recursion.gram(h, state), _recursion.squared_distances(h, state)
    g, square = (matrix[place][:, place] for matrix in found)
    return g, square, state.exponent + exponent


def _power_of_four(exponent: Array, dtype: jnp.dtype) -> Array:
    return jnp.ldexp(jnp.ones(exponent.shape, dtype), 2 * exponent)
