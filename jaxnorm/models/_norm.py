"""Functions that check the arguments of networks."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array

from jaxnorm.internal import check_array, check_call, check_whole
from jaxnorm.nnx._layers import check_rngs

Norm = Callable[..., Callable[..., Array]]
"""The constructor of a layer that keeps shapes, called as `norm(num_features, rngs=rngs)`."""


def check_norm(norm: Any) -> None:
    """Raise `TypeError` unless `norm` accepts a width and `rngs`, as a class of layers does.

    An instance of a layer, or the name of a layer, is not accepted.
    """
    check_call(norm, "norm", "jaxnorm.nnx.BatchNorm", "a width and rngs", 1, rngs=None)


def check_sizes(rngs: Any, **sizes: Any) -> None:
    """Raise unless the numbers of units are positive and `rngs` are random streams of NNX."""
    check_whole(**sizes)
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1; got {size}")
    check_rngs(rngs)


def check_widths(name: str, widths: Any) -> None:
    """Raise unless `widths` is a list or tuple of positive numbers of units."""
    if not isinstance(widths, tuple | list):
        raise TypeError(f"{name} must be a list of the layers' units; got {widths!r}")
    for width in widths:
        check_whole(**{name: width})
        if width < 1:
            raise ValueError(f"{name} must be at least 1 in each layer; got {list(widths)}")


def check_images(x: Any, channels: int) -> None:
    """Raise `ValueError` unless `x` is a batch of images with the number of channels `channels`."""
    check_array(x, "x")
    if x.ndim != 4 or x.shape[-1] != channels:
        first = x.ndim == 4 and x.shape[1] == channels
        cure = "; for channels first give jnp.moveaxis(x, 1, -1)" if first else ""
        raise ValueError(
            f"x must be images (samples, height, width, {channels} channels); got {x.shape}{cure}"
        )
