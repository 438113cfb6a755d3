"""The recentering tree: every neuron has a child that sees it above its mean and one below.

The deterministic model of recentering and ReLU of Nachum et al., Definition 5. Samples are rows
of x (n, neurons). A layer doubles the neurons; `tree_gram` has the Gram matrix of its n samples at
any depth in polynomial time, because all but n − 2 of the 2ᵗ neurons take only two values.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from geometry._angles import distances, gram
from jaxnorm import recenter
from jaxnorm._statistics import widen


class TreeGram(NamedTuple):
    """Gram matrix of the tree: the true one is exp(2 log_scale) gram, likewise the distances.

    `squared_distances` are sums of squares, without the cancellation of gᵢᵢ + gⱼⱼ − 2gᵢⱼ, so that
    they tell how far apart merging samples are long after `gram` cannot.
    """

    gram: Float[Array, "n n"]
    log_scale: Float[Array, ""]
    squared_distances: Float[Array, "n n"]


class _State(NamedTuple):
    """The tree at one depth, up to the factor 2**exponent.

    Samples are sorted. Slot i of `rows` has the neuron that takes at least three values and in
    which sample i lies strictly between the smallest and the largest, as 2**slot_exponent rows[i];
    it is zero if there is none. A neuron with k samples strictly between is held k times. `right`
    [p] is the sum of squared heights of the neurons that are zero on the first p samples and
    positive and equal on the rest, `left` [p] of those positive on the first p and zero after.
    """

    rows: Float[Array, "slots n"]
    slot_exponent: Int[Array, " slots"]
    left: Float[Array, " splits"]
    right: Float[Array, " splits"]
    exponent: Int[Array, ""]


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
    return jnp.concatenate([positive(x), negative(x)], axis=1)


def tree_gram(x: Float[Array, " n"] | Float[Array, "n coordinates"], depth: int) -> TreeGram:
    """Gram matrix of `depth` tree layers on `x`: of `tree_step` applied so often, 2ᵈᵉᵖᵗʰ neurons.

    Exact but for rounding, in O(n²) operations a layer and O(n³) once, by the recursion over split
    positions: a neuron that is zero on p of n samples and c on the rest has children that are
    c p/n on the rest and c (n − p)/n on the p. With several coordinates each has its tree and the
    Gram matrices add. Differentiable but where a sample equals a mean. Depth 0 is `x` itself; a
    constant `x` has a Gram matrix of zeros from depth 1. Computed in at least float32.

    Args:
      x: One number a sample, in any order and possibly repeated, or several.
      depth: Number of layers.

    Raises:
      ValueError: `depth` is negative.

    Example:
      >>> tree = tree_gram(jnp.array([0.0, 1.0, 5.0]), 10_000)
      >>> norms = jnp.sqrt(jnp.diagonal(tree.gram))
      >>> print((norms / norms[2]).round(4))  # the third is longest, and orthogonal to the first
      [0.6325 0.5292 1.    ]
      >>> print(tree.gram[0, 2])
      0.0
    """
    if depth < 0:
        raise ValueError(f"depth must not be negative; got {depth}")
    h = widen(x).reshape(len(x), -1)
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


def _one_coordinate(x: Float[Array, " n"], depth: int) -> tuple[Array, Array, Array]:
    """Gram matrix, squared distances and exponent of the tree of one coordinate."""
    order = jnp.argsort(x)
    state, _ = jax.lax.scan(lambda s, _: (_layer(s), None), _start(x[order]), length=depth)
    place = jnp.argsort(order)
    g, square = _gram(state), _squared_distances(state)
    return g[place][:, place], square[place][:, place], state.exponent


def _start(x: Float[Array, " n"]) -> _State:
    """Depth 0, less the smallest entry: children depend on differences only."""
    n = len(x)
    row, exponent = _power_of_two_out(x - x[0], x[-1] - x[0])
    inner = _between(row)
    rows = jnp.where(inner[:, None], row[None], 0)
    # Two values only: a height and a split, as of a neuron that is zero below.
    split = jnp.arange(n + 1) == jnp.sum(row == 0)
    height = jnp.where(inner.any(), 0, jnp.square(row[-1]))
    right = jnp.where(split, height, 0)
    none = jnp.zeros(n, exponent.dtype)
    return _State(rows, none, jnp.zeros_like(right), right, exponent)


def _layer(state: _State) -> _State:
    """All neurons replaced by n times their children."""
    n = state.rows.shape[1]
    centred = recenter(state.rows, axis=1) * n
    children = jax.nn.relu(jnp.stack([centred, -centred]))
    weight = _slot_weight(state)
    left, right = _two_valued(children, weight)
    # n times a child is zero outside and p or n − p times as high inside, an exact factor: the
    # rounding of p/n would add up over the layers.
    square = jnp.square(jnp.arange(n + 1)).astype(weight.dtype)
    total = state.left + state.right
    left, right = left + square[::-1] * total, right + square * total
    # Of the two children, a slot goes on with the one in which its sample is positive.
    own = jnp.where(jnp.diagonal(centred)[:, None] > 0, children[0], children[1])
    own = jnp.where(jnp.diagonal(_between(own))[:, None], own, 0)
    rows, shift = _power_of_two_out(own, own[:, :1] + own[:, -1:])
    return _renormalized(
        _State(rows, state.slot_exponent + shift[:, 0], left, right, state.exponent)
    )


def _two_valued(
    children: Float[Array, "2 slots n"], weight: Float[Array, " slots"]
) -> tuple[Array, Array]:
    """Squared heights of the children with two values, by split, for `left` and `right`."""
    n = children.shape[-1]
    first, last = children[..., 0], children[..., -1]
    two = ~_between(children).any(-1)
    square = jnp.where(two, weight[None] * jnp.square(first + last), 0)
    split = jnp.sum(children == first[..., None], axis=-1)
    at = (split[..., None] == jnp.arange(n + 1)[None, None]).astype(children.dtype)
    left = jnp.einsum("cs,csp->p", jnp.where(first > 0, square, 0), at, precision="highest")
    right = jnp.einsum("cs,csp->p", jnp.where(last > 0, square, 0), at, precision="highest")
    return left, right


def _slot_weight(state: _State) -> Float[Array, " slots"]:
    """Factor of the squares of a slot: 1/k for a neuron held k times, and its scale."""
    held = jnp.sum(_between(state.rows), axis=1)
    count = jnp.maximum(held, 1).astype(state.rows.dtype)
    scale = _power_of_four(state.slot_exponent, state.rows.dtype)
    return jnp.where(held > 0, scale / count, 0)


def _renormalized(state: _State) -> _State:
    """The same state with its largest sum of squares near 1; powers of two cost no digits."""
    largest = jnp.maximum(jnp.max(state.left + state.right), jnp.max(_slot_weight(state)))
    _, exponent = jnp.frexp(jax.lax.stop_gradient(largest))
    half = exponent // 2
    factor = _power_of_four(-half, largest.dtype)
    return _State(
        state.rows,
        state.slot_exponent - half,
        state.left * factor,
        state.right * factor,
        state.exponent + half,
    )


def _gram(state: _State) -> Float[Array, "n n"]:
    n = state.rows.shape[1]
    weighted = _slot_weight(state)[:, None] * state.rows
    many = jnp.einsum("si,sj->ij", weighted, state.rows, precision="highest")
    below = jnp.cumsum(state.right)[:n]  # sample i is positive where the split is at most i
    above = jnp.cumsum(state.left[::-1])[::-1][1:]
    i = jnp.arange(n)
    return many + below[jnp.minimum(i[:, None], i[None])] + above[jnp.maximum(i[:, None], i[None])]


def _squared_distances(state: _State) -> Float[Array, "n n"]:
    """Sums of positive terms only: over slots, and over the splits between two samples."""
    n = state.rows.shape[1]
    weight = _slot_weight(state)

    def many(column: Float[Array, " slots"]) -> Float[Array, " n"]:
        return jnp.sum(weight[:, None] * jnp.square(state.rows - column[:, None]), axis=0)

    total = jnp.triu(jnp.broadcast_to((state.left + state.right)[1:n], (n, n - 1)))
    between = jnp.pad(jnp.cumsum(total, axis=1), ((0, 0), (1, 0)))
    upper = jnp.triu(between, 1)
    return jax.lax.map(many, state.rows.T) + upper + upper.T


def _between(rows: Float[Array, "*rows n"]) -> Array:
    """Where a monotone row lies strictly between its two ends; exact comparison is meant."""
    return (rows != rows[..., :1]) & (rows != rows[..., -1:])


def _power_of_two_out(x: Array, largest: Array) -> tuple[Array, Array]:
    """`x` over the power of two next above `largest`, and its exponent."""
    _, exponent = jnp.frexp(jax.lax.stop_gradient(largest))
    return x * jnp.ldexp(jnp.ones_like(largest), -exponent), exponent


def _power_of_four(exponent: Array, dtype: jnp.dtype) -> Array:
    return jnp.ldexp(jnp.ones(exponent.shape, dtype), 2 * exponent)
