"""The recentering tree, in which every neuron has two children, above and below its mean.

The tree is the deterministic model of recentering and ReLU of Nachum et al., Definition 5. Samples
are rows of x (n, neurons). A layer doubles the number of neurons. `tree_gram` computes the Gram
matrix of the n samples at any depth in polynomial time, because all but at most n − 2 of the 2ᵗ
neurons at depth t take only two values. `depth_bound` returns a depth from which all neurons take
at most three values.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from geometry._angles import distances, gram
from geometry._arguments import as_samples, whole_number
from geometry.tree import _recursion
from geometry.tree._float_exp import FloatExp, at_exponent, renormalize, top_exponent
from jaxnorm import recenter
from jaxnorm.internal import auto_sharded, check_array, replicate, varying_like


class TreeGram(NamedTuple):
    """The Gram matrix of the tree and the squared distances, both divided by exp(2 log_scale).

    `squared_distances` are computed as sums of squares. If samples merge, sums of squares keep
    their digits, while gᵢᵢ + gⱼⱼ − 2gᵢⱼ of the Gram matrix g loses all digits.
    """

    gram: Float[Array, "n n"]
    log_scale: Float[Array, ""]
    squared_distances: Float[Array, "n n"]


def step(x: Float[Array, "n m"]) -> Float[Array, "n 2*m"]:
    """One layer of the tree: all positive children, then all negative children (Definition 5).

    The children of a neuron are ReLU(x − μ) and ReLU(μ − x), where μ is the mean over the samples
    (Equations 9 and 10).

    Example:
      >>> print(step(jnp.array([[0.0], [1.0], [5.0]])))
      [[0. 2.]
       [0. 1.]
       [3. 0.]]
    """
    return _children(as_samples(x).astype(jnp.result_type(x)))


def neurons(x: Float[Array, " n"] | Float[Array, "n m"], *, depth: int) -> Float[Array, "n width"]:
    """All 2ᵈᵉᵖᵗʰ neurons of the tree for each coordinate, by `depth` calls of `step`.

    The function computes every neuron, so the depth must be small. `tree_gram` computes inner
    products at any depth. The samples may be sharded.

    Raises:
      ValueError: `depth` is not an integer of at least 0, or gives more than 2³⁰ numbers; `x` is
        not a vector or matrix, or is not finite outside `jit`.

    Example:
      >>> neurons(jnp.array([0.0, 1.0, 5.0]), depth=3).shape
      (3, 8)
    """
    depth = _check_depth(depth)
    x = _columns(x).astype(jnp.result_type(x))
    if depth > 30 or x.size << depth > 2**30:
        raise ValueError(
            f"x must have at most 2**30 / 2**depth numbers; x has {x.size} and depth is {depth}: "
            "for inner products at any depth, use tree_gram"
        )
    for _ in range(depth):
        x = _children(x)
    return x


def tree_gram(x: Float[Array, " n"] | Float[Array, "n coordinates"], depth: int) -> TreeGram:
    """Gram matrix of all 2ᵈᵉᵖᵗʰ `neurons` of the tree at `depth` on `x`.

    The result is exact up to rounding. `tree_gram` takes O(n log n) operations for each layer, and
    O(n³) operations once. The algorithm is a recursion over positions of jumps. Suppose that a
    neuron is zero on p of n samples and c on the n − p remaining samples. The positive child of the
    neuron is c p/n on the n − p samples, and the negative child is c (n − p)/n on the p samples.
    Each coordinate has its own tree, and the Gram matrices are added. The result is differentiable
    except where a neuron's activity for a sample equals the neuron's mean over samples. If samples
    coincide, only the sum of their gradients is right. At depth 0, the result is the Gram matrix of
    `x` itself and is not scaled, so squares may overflow. If `x` is constant, the Gram matrix is
    zero from depth 1 on. The result is computed in at least float32.

    Run `tree_gram` on a CPU: each layer consists of tens of small kernels, so a TPU or GPU would
    spend most of the time on launching kernels. If samples are sharded over Explicit mesh axes,
    they are gathered.

    Args:
      x: One number or several numbers for each sample, in any order and possibly repeated.
      depth: Number of layers.

    Raises:
      ValueError: `depth` is not an integer of at least 0, or `x` is not a vector or matrix, or is
        not finite outside `jit`.

    Example:
      >>> tree = jax.jit(tree_gram, static_argnums=1)(jnp.array([0.0, 1.0, 5.0]), 10_000)
      >>> norms = jnp.sqrt(jnp.diagonal(tree.gram))
      >>> print((norms / norms[2]).round(4))  # the third is longest, and orthogonal to the first
      [0.6325 0.5292 1.    ]
      >>> print(tree.gram[0, 2])
      0.0
    """
    depth = _check_depth(depth)
    h = replicate(_columns(x))
    if depth == 0:
        return TreeGram(gram(h), jnp.zeros((), h.dtype), jnp.square(distances(h)))
    grams, squares = auto_sharded(jax.vmap(lambda c: _one_coordinate(c, depth), in_axes=1))(h)
    top = top_exponent(grams)
    # Each layer of the recursion multiplied the heights by n, so log(n**depth) is subtracted from
    # the logarithm of the scale. The integer part of log2(n**depth) is subtracted exactly.
    fraction, whole = math.modf(depth * math.log2(len(h)))
    log_scale = ((top - 2 * int(whole)).astype(h.dtype) / 2 - fraction) * math.log(2)
    return TreeGram(
        at_exponent(grams, top).sum(0),
        jnp.where(jnp.any(grams.mantissa != 0), log_scale, 0),
        at_exponent(squares, top).sum(0),
    )


def _children(x: Float[Array, "n m"]) -> Float[Array, "n 2*m"]:
    h = recenter(x)
    return jax.nn.relu(jnp.concatenate([h, -h], axis=1))


def _columns(x: Float[Array, " n"] | Float[Array, "n m"]) -> Float[Array, "n m"]:
    """`x` in at least float32, with one column if `x` has one number for each sample."""
    check_array(x, "x")
    return as_samples(x[:, None] if x.ndim == 1 else x)


def _check_depth(depth: int) -> int:
    depth = whole_number(depth, "depth")
    if depth < 0:
        raise ValueError(f"depth must not be negative; got {depth}")
    return depth


def _one_coordinate(x: Float[Array, " n"], depth: int) -> tuple[FloatExp, FloatExp]:
    """The Gram matrix and the squared distances of one coordinate's tree, times n**(2 depth)."""
    order = jnp.argsort(x)
    h = x[order] - x[order[0]]
    unit = renormalize(FloatExp(h, jnp.zeros((), jnp.int32)))
    h, exponent = unit.mantissa, 2 * unit.exponent
    state, _ = jax.lax.scan(
        lambda state, _: (_recursion.layer(h, state), None),
        varying_like(_recursion.start(h), h),
        length=depth,
    )
    inverse = jnp.argsort(order)

    def in_given_order(matrix: FloatExp) -> FloatExp:
        mantissa = matrix.mantissa[inverse][:, inverse]
        return FloatExp(mantissa, (matrix.exponent + exponent)[None, None])

    g, square = _recursion.gram(h, state), _recursion.squared_distances(h, state)
    return in_given_order(g), in_given_order(square)
