"""Checks of the normalization and the images that networks take."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array

from jaxnorm.internal import check_array, check_function

Norm = Callable[..., Callable[..., Array]]
"""Constructor of a layer, called as `norm(num_features, rngs=rngs)`; the layer keeps shapes."""


def check_norm(norm: Any) -> None:
    """Raise `TypeError` unless `norm` can be called; the name of a layer cannot."""
    check_function(norm, "norm", "jaxnorm.nnx.BatchNorm")


def check_images(x: Any, channels: int) -> None:
    """Raise `ValueError` unless `x` are images with this many channels on the last axis."""
    check_array(x, "x")
    if x.ndim != 4 or x.shape[-1] != channels:
        first = x.ndim == 4 and x.shape[1] == channels
        cure = "; for channels first give jnp.moveaxis(x, 1, -1)" if first else ""
        raise ValueError(
            f"x must be images (samples, height, width, {channels} channels); got {x.shape}{cure}"
        )
