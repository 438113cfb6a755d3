"""Cells of a batch: Gaussian neurons that are active on the same samples.

Two weight vectors w lie in one cell of x when all signs of x w agree; γ(x) is the smallest
positive Gaussian volume of a cell (Nachum et al., Definition 1). In two dimensions cells are
sectors, bounded by the lines orthogonal to the samples.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnorm._statistics import widen


def cell_volumes_2d(x: Float[Array, "n 2"]) -> Float[Array, "2*n"]:
    """Gaussian volumes of the 2n cells of n samples in the plane, opposite cells n places apart.

    They sum to 1. Collinear samples share a line: of the cells between them volume 0 remains, and
    gaps of a few ulp count as none. A zero vector bounds no cell; if all are zero, there is one
    cell, of volume 1.

    Example:
      >>> print(cell_volumes_2d(jnp.array([[1.0, 0.0], [1.0, 1.0]])))
      [0.125 0.375 0.125 0.375]
    """
    h = widen(x)
    nonzero = jnp.any(h != 0, axis=1)
    # A zero vector repeats a line that is there.
    h = jnp.where(nonzero[:, None], h, h[jnp.argmax(nonzero)][None])
    line = jnp.sort(jnp.mod(jnp.arctan2(h[:, 1], h[:, 0]), math.pi))
    gap = jnp.diff(line, append=line[:1] + math.pi) / (2 * math.pi)
    gap = jnp.where(gap > 4 * jnp.finfo(h.dtype).eps, gap, 0)
    volumes = jnp.concatenate([gap, gap])
    return jnp.where(nonzero.any(), volumes, jnp.eye(1, 2 * len(h), dtype=h.dtype)[0])


def gamma_2d(x: Float[Array, "n 2"]) -> Float[Array, ""]:
    """γ(x), the smallest positive volume of a cell of n samples in the plane.

    At most 1/(2n) when no two samples are collinear, with equality for n equally spaced
    directions. The paper's example has 1/n for an odd number n of equally spaced points; their n
    lines bound 2n sectors, so that γ = 1/(2n).

    Example:
      >>> turn = jnp.linspace(0, 2 * jnp.pi, 5, endpoint=False)
      >>> print(f"{gamma_2d(jnp.stack([jnp.cos(turn), jnp.sin(turn)], 1)):.4f}")
      0.1000
    """
    volumes = cell_volumes_2d(x)
    return jnp.min(jnp.where(volumes > 0, volumes, 1))
