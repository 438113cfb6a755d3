"""Filters of a layer as the rows of a matrix."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnorm._numerics import flat_rows
from pruning._arguments import floating


def filter_matrix(kernel: Float[Array, "*window cin cout"]) -> Float[Array, "cout dims"]:
    """The filters of a kernel, one a row: dims is cin times the size of the window.

    Kernels are laid out as in Flax: HWIO for images, (cin, cout) for dense layers. Row j holds
    `kernel[..., j]` in row-major order. On Explicit mesh axes the filters of a kernel stay
    sharded, and its other axes are gathered.

    Example:
      >>> filter_matrix(jnp.ones((3, 3, 16, 64))).shape
      (64, 144)
    """
    floating(kernel, "kernel")
    if kernel.ndim < 2:
        raise ValueError(f"kernel must have shape (*window, cin, cout); got {kernel.shape}")
    return flat_rows(jnp.moveaxis(jnp.asarray(kernel), -1, 0))
