"""Cells of a batch, which are sets of weight vectors of neurons active on the same samples.

Two weight vectors lie in the same cell of the samples x if their products with every sample have
the same sign. The volume of a cell is the probability that a Gaussian weight vector lies in the
cell. γ(x) is the smallest positive volume of a cell (Nachum et al., Definition 1). In two
dimensions, cells are sectors, bounded by the lines orthogonal to the samples. In three dimensions,
cells are polygons on the sphere. Volumes have the dtype of the samples. If samples are sharded over
Explicit mesh axes, they are gathered.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from geometry._arguments import as_samples, whole_number
from jaxnorm import unit_vector
from jaxnorm.internal import auto_sharded, check_key, check_whole, host_only, replicate, row_at

__all__ = [
    "SampledCells",
    "cell_volumes_2d",
    "cell_volumes_3d",
    "gamma_2d",
    "gamma_3d",
    "number_of_cells",
    "sampled_cells",
]


class SampledCells(NamedTuple):
    """The pairs of opposite cells in which random neurons lie.

    The two cells of a pair have the same volume.

    Attributes:
      volumes: For each pair of opposite cells in which a neuron lies, the estimated volume of one
        cell, padded with zeros.
      seen: The number of pairs in which a neuron lies.
      gamma: The smallest estimated volume of a cell.
    """

    volumes: Float[Array, " pairs"]
    seen: Int[Array, ""]
    gamma: Float[Array, ""]


def cell_volumes_2d(x: Float[Array, "n 2"]) -> Float[Array, "2*n"]:
    """Gaussian volumes of the 2n cells of n samples in the plane.

    Cells i and i + n are opposite. The 2n volumes sum to 1. Collinear samples have the same
    orthogonal line, so the cells between collinear samples have volume 0. An angle of a few units
    in the last place between two lines counts as 0. A zero vector does not bound a cell. If all
    samples are zero, there is one cell of volume 1, and the gradient is zero.

    Example:
      >>> print(cell_volumes_2d(jnp.array([[1.0, 0.0], [1.0, 1.0]])))
      [0.125 0.375 0.125 0.375]
    """
    h, nonzero = _replace_zeros(replicate(as_samples(x, columns=2)))
    line = jnp.sort(jnp.mod(jnp.arctan2(h[:, 1], h[:, 0]), math.pi))
    line = jnp.concatenate([line - math.pi, line]) / (2 * math.pi)
    # A line that nearly equals the previous line is replaced by the first of the equal lines, so
    # that the volumes sum to 1.
    repeated = jnp.diff(line, prepend=-1) <= 4 * jnp.finfo(h.dtype).eps
    line = jax.lax.cummax(jnp.where(repeated, -1, line))
    gap = jnp.roll(jnp.diff(line)[len(h) - 1 :], -1)
    volumes = jnp.concatenate([gap, gap])
    whole_plane = jnp.eye(1, 2 * len(h), dtype=h.dtype)[0]
    return jnp.where(nonzero, volumes, whole_plane).astype(jnp.result_type(x))


def gamma_2d(x: Float[Array, "n 2"]) -> Float[Array, ""]:
    """The smallest positive volume γ(x) of a cell of n samples in the plane.

    If no two samples are collinear, γ is at most 1/(2n), with equality for n equally spaced
    directions. For an odd number n of equally spaced points, the paper prints γ = 1/n. However, the
    lines orthogonal to the n points bound 2n sectors, so γ = 1/(2n).

    Example:
      >>> turn = jnp.linspace(0, 2 * jnp.pi, 5, endpoint=False)
      >>> print(f"{gamma_2d(jnp.stack([jnp.cos(turn), jnp.sin(turn)], 1)):.4f}")
      0.1000
    """
    volumes = cell_volumes_2d(x)
    return row_at(volumes, jnp.argmin(jnp.where(volumes == 0, 1, volumes)))


@auto_sharded
def cell_volumes_3d(x: Float[Array, "n 3"]) -> Float[Array, " cells"]:
    """Gaussian volumes of the n² − n + 2 cells of n samples in space.

    The order of the cells is the lexicographic order of their n bits; bit i is 1 if the cell is
    active on sample i. The cells are polygons on the sphere with the corners ±xᵢ × xⱼ. The area of
    a polygon is the sum of its angles minus the sum of the angles of a flat polygon with the same
    number of corners. Samples must be in general position, so that no two samples are collinear,
    and no three samples lie in a plane through 0. If samples are not in general position, all
    volumes are NaN. Volumes are also NaN if a corner is so close to a plane that the side of the
    corner depends on rounding. The absolute error of a volume is a few times the rounding unit of
    the dtype, so the relative error of a small volume can be large.

    Example:
      >>> print(jax.jit(cell_volumes_3d)(jnp.eye(3)).round(3))
      [0.125 0.125 0.125 0.125 0.125 0.125 0.125 0.125]
    """
    h = as_samples(x, columns=3)
    n, eps = len(h), float(jnp.finfo(h.dtype).eps)
    if n == 1:
        return jnp.where(jnp.any(h != 0), jnp.full(2, 0.5, x.dtype), jnp.nan)
    u = unit_vector(h)
    i, j = np.triu_indices(n, 1)
    first, second = np.eye(n, dtype=bool)[i], np.eye(n, dtype=bool)[j]
    own = first | second
    corner = jnp.cross(u[i], u[j])
    sine, cosine = jnp.linalg.norm(corner, axis=1), jnp.sum(u[i] * u[j], axis=1)
    side = jnp.einsum("cd,nd->cn", corner, u, precision="highest")
    undecided = jnp.any((jnp.abs(side) < 8 * eps) & ~own) | jnp.any(sine < 8 * eps)
    # Two planes cross at each corner. The four cells at a corner have different pairs of signs for
    # the two planes.
    signs, angles = [], []
    for outer, a, b in np.ndindex(2, 2, 2):
        ahead = (side > 0) if outer else (side < 0)
        signs.append(ahead & ~own | first & bool(a) | second & bool(b))
        angles.append(jnp.arctan2(sine, cosine if a != b else -cosine))
    cells = number_of_cells(n, 3)
    patterns = jnp.concatenate(signs).astype(jnp.int8)
    _, cell = jnp.unique(patterns, axis=0, size=cells, return_inverse=True)
    excess = jax.ops.segment_sum(jnp.concatenate(angles) - math.pi, cell.ravel(), cells)
    volumes = 0.5 + excess / (4 * math.pi)
    return jnp.where(undecided | ~jnp.any(h != 0, axis=1).all(), jnp.nan, volumes).astype(
        jnp.result_type(x)
    )


def gamma_3d(x: Float[Array, "n 3"]) -> Float[Array, ""]:
    """The smallest volume γ(x) of a cell of n samples in space.

    The result is NaN unless the samples are in general position.

    Example:
      >>> print(jax.jit(gamma_3d)(jnp.eye(3)).round(3))
      0.125
    """
    volumes = cell_volumes_3d(x)
    # The minimum is read by its index. If XLA recomputes the volumes with other rounding, no
    # element equals `volumes.min()`, and the derivative of the minimum is NaN.
    return row_at(volumes, jnp.argmin(volumes))


def sampled_cells(key: Key[Array, ""], x: Float[Array, "n d"], *, samples: int) -> SampledCells:
    """Volumes of cells in any number of dimensions, estimated by random neurons.

    The estimate of a volume is half of the share of `samples` Gaussian neurons that lie in the cell
    or in the opposite cell. A zero vector does not bound a cell. If all samples are zero, there is
    one cell of volume 1. The estimates of volumes are unbiased, but `gamma` is biased. If no neuron
    lies in the smallest cells, `gamma` is usually too large. If a neuron lies in every cell,
    `gamma` is on average slightly too small, because `gamma` is the minimum of noisy estimates. For
    the exact number of cells of samples in general position, call `number_of_cells`. `gamma` is
    never below 1/(2 samples). Under `jit`, all volumes are NaN if `x` has a NaN.

    Raises:
      ValueError: `samples` is below 1, or `x` is not finite.

    Example:
      >>> sampled = jax.jit(sampled_cells, static_argnames="samples")
      >>> cells = sampled(jax.random.key(0), jnp.eye(3), samples=10_000)
      >>> print(cells.seen, cells.gamma.round(2))
      4 0.12
    """
    check_key(key)
    check_whole(samples=samples)
    if samples < 1:
        raise ValueError(f"samples must be at least 1; got {samples}")
    h, nonzero = _replace_zeros(replicate(as_samples(x)))
    u = unit_vector(h)
    n, dims = u.shape
    w = jax.random.normal(key, (samples, dims), u.dtype)
    active = jnp.einsum("sd,nd->sn", w, u, precision="highest") > 0
    same = active == active[:, :1]  # a cell and its opposite cell have the same bit pattern
    pairs = min(number_of_cells(n, dims) // 2, samples)
    _, counts = jnp.unique(
        same.astype(jnp.int8), axis=0, size=pairs, fill_value=2, return_counts=True
    )
    volumes = (counts / jnp.where(nonzero, 2 * samples, samples)).astype(jnp.result_type(x))
    volumes = jnp.where(jnp.isnan(u).any(), jnp.nan, volumes)
    gamma = jnp.min(volumes, where=counts > 0, initial=1).astype(jnp.result_type(x))
    return SampledCells(volumes, jnp.sum(counts > 0), gamma)


@host_only()
def number_of_cells(n: int, dims: int) -> int:
    """The number of cells of n samples in general position: 2 Σⱼ C(n − 1, j) over j < dims.

    The volume γ is at most the inverse of the number of cells. The number is computed exactly, on
    the host.

    Raises:
      ValueError: n or dims is not an integer, or is below 1.

    Example:
      >>> number_of_cells(6, 3), number_of_cells(5, 2), number_of_cells(4, 9)
      (32, 10, 16)
    """
    n, dims = whole_number(n, "n"), whole_number(dims, "dims")
    if n < 1 or dims < 1:
        raise ValueError(f"n and dims must be at least 1; got n {n} and dims {dims}")
    return 2 * sum(math.comb(n - 1, j) for j in range(min(n, dims)))


def _replace_zeros(h: Float[Array, "n d"]) -> tuple[Float[Array, "n d"], Bool[Array, ""]]:
    """Replace zero vectors by a nonzero sample or (1, 0, ...); say whether any sample is nonzero.

    A zero vector bounds no cell, and its direction has no derivative.
    """
    nonzero = jnp.any(h != 0, axis=1)
    first = row_at(h, jnp.argmax(nonzero))
    substitute = jnp.where(nonzero.any(), first, jnp.eye(1, h.shape[1], dtype=h.dtype)[0])
    return jnp.where(nonzero[:, None], h, substitute[None]), nonzero.any()
