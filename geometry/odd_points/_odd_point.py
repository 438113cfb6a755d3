"""The odd point is the sample that a recentered ReLU network drives away from all other samples."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from geometry._arguments import as_gram, whole_number
from jaxnorm.internal import replicate, row_at


class OddPoint(NamedTuple):
    """Facts about the longest sample of a batch, compared with the other samples.

    Attributes:
      index: The index of the longest sample; the first index if several samples are equally long.
      norm_ratio: The norm of the longest sample divided by the mean norm of the other samples. In
        an `invariant_representation` of n samples, the norm ratio is n − 1.
      second_ratio: The second largest norm divided by the largest norm.
      angle: The mean angle between the longest sample and the other samples, in radians.
      spread: The mean angle between two of the other samples, in radians.
    """

    index: Int[Array, ""]  # pyright: ignore[reportIncompatibleMethodOverride]
    norm_ratio: Float[Array, ""]
    second_ratio: Float[Array, ""]
    angle: Float[Array, ""]
    spread: Float[Array, ""]


def odd_point(gram: Float[Array, "n n"]) -> OddPoint:
    """Facts about the longest of the n samples with Gram matrix `gram`.

    Every batch has a longest sample. `is_odd` decides whether the longest sample is an odd point.
    Angles below 3e-4 (float32) or 1e-8 (float64) are not resolved; to resolve smaller angles, apply
    `angles` to the samples. A zero vector makes `angle` and `spread` NaN. Pairs of parallel or
    antiparallel samples contribute nothing to the gradient. A Gram matrix that is sharded over
    Explicit mesh axes is gathered.

    Raises:
      ValueError: There are fewer than 3 samples.

    Example:
      >>> x = invariant_representation(5, 2)
      >>> print(odd_point(x @ x.T).norm_ratio)
      4.0
    """
    g = replicate(as_gram(gram, min_samples=3))
    n = len(g)
    norm = jnp.sqrt(jnp.diagonal(g))
    cosine = g / norm[:, None] / norm[None]
    oblique = jnp.abs(cosine) < 1
    parallel = jnp.where(jnp.isnan(cosine), cosine, jnp.where(cosine <= 0, jnp.pi, 0))
    angle = jnp.where(oblique, jnp.arccos(jnp.where(oblique, cosine, 0)), parallel)
    index = jnp.argmax(norm)
    other = jnp.arange(n) != index
    pair = other[:, None] & other[None] & ~jnp.eye(n, dtype=bool)
    longest, second = (row_at(norm, i) for i in (index, jnp.argmax(jnp.where(other, norm, -1))))
    measures = (
        longest / jnp.mean(norm, where=other),
        second / longest,
        jnp.mean(row_at(angle, index), where=other),
        jnp.mean(angle, where=pair),
    )
    return OddPoint(index, *(part.astype(jnp.result_type(gram)) for part in measures))


def is_odd(gram: Float[Array, "n n"]) -> Bool[Array, ""]:
    """Whether a batch with the Gram matrix `gram` has an odd point, as in Figure 3 of Nachum et al.

    The fields of `OddPoint` must satisfy `norm_ratio` ≥ (n − 1)/2, `angle` ≥ 80° and `spread` ≤
    65°. The thresholds are our choice. In the `odd_state` of 7 samples, the spread is 61.4°; for
    more than 7 samples, the spread is smaller. In a batch with equal norms and equal angles, the
    spread after a layer is at least 71.4°.

    In the recentering tree, the smallest and the largest sample often both have large norms, so no
    single sample is the odd point.

    Raises:
      ValueError: There are fewer than 3 samples.

    Example:
      >>> print(is_odd(jnp.diag(jnp.array([1.0, 1.0, 4.0]))))
      False
    """
    odd = odd_point(gram)
    apart = (odd.angle >= math.radians(80)) & (odd.spread <= math.radians(65))
    return apart & (odd.norm_ratio >= (len(gram) - 1) / 2)


def invariant_representation(n: int, dims: int) -> Float[Array, "n dims"]:
    """The batch of Definition 12 of Nachum et al., a unit vector and n − 1 equal shorter vectors.

    The first sample is (1, 0, ...), and all other samples are (0, 1/(n − 1), 0, ...). A layer of
    recentering, Gaussian weights of variance 2 n²/((n² − 2n + 2) width) and ReLU does not change
    the expected Gram matrix (Theorem 13).

    Raises:
      ValueError: There are fewer than 2 samples or dimensions.

    Example:
      >>> print(invariant_representation(3, 2))
      [[1.  0. ]
       [0.  0.5]
       [0.  0.5]]
    """
    n, dims = whole_number(n, "n"), whole_number(dims, "dims")
    if n < 2 or dims < 2:
        raise ValueError(f"n and dims must be at least 2; got n {n} and dims {dims}")
    return jnp.zeros((n, dims)).at[0, 0].set(1).at[1:, 1].set(1 / (n - 1))
