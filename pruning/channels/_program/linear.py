"""Writes a convolution or a product with a kernel as one matrix product for each feature group.

In each group, the outputs are the matrix product of the inputs and the kernel. The shapes are
(groups, rows, outputs) for the outputs, (groups, rows, inputs) for the inputs, and (groups, inputs,
outputs) for the kernel's matrix. The matrix has the elements of the kernel in a different order.
Padding, strides, dilation and grouping are applied to the inputs before the product.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from pruning.channels._program.calls import Equation, shape_of

Axes = tuple[int, ...]


class Product(NamedTuple):
    """The axes of a `dot_general`.

    The axes are (batch, rows, contracted) of the inputs, (batch, outputs, contracted) of the
    kernel, and (batch, rows, outputs) of the outputs.
    """

    of_inputs: tuple[Axes, Axes, Axes]
    of_kernel: tuple[Axes, Axes, Axes]
    of_outputs: tuple[Axes, Axes, Axes]

    def inputs(self, x: Array) -> Array:
        batch, rows, contracted = self.of_inputs
        return _matrices(x, batch, rows, contracted)

    def matrix(self, kernel: Array) -> Array:
        batch, outputs, contracted = self.of_kernel
        return _matrices(kernel, batch, contracted, outputs)

    def outputs(self, y: Array) -> Array:
        return _matrices(y, *self.of_outputs)

    def squares(self, x: Array) -> Array:
        """For each row of the matrix, the sum Σ x² of the inputs x that the row multiplies."""
        return jnp.square(self.inputs(x)).sum(1)

    def output_axes(self) -> tuple[Axes, Axes]:
        """The axes along which the outputs lie in the kernel, and those in the result."""
        return self.of_kernel[1], self.of_outputs[2]


class Convolution(NamedTuple):
    """A `conv_general_dilated` with its parameters, and the size of its window."""

    window: Axes
    strides: Axes
    padding: tuple[tuple[int, int], ...]
    input_dilation: Axes
    window_dilation: Axes
    axes: tuple[Axes, Axes, Axes]
    groups: int

    def inputs(self, x: Array) -> Array:
        """The inputs as matrices with one row for each window.

        Within each row, the elements of one channel are next to each other.
        """
        x = x.transpose(self.axes[0])
        edges = zip(self.padding, self.input_dilation, strict=True)
        config = [(0, 0, 0), (0, 0, 0), *((low, high, n - 1) for (low, high), n in edges)]
        padded = lax.pad(x, jnp.zeros((), x.dtype), config)
        reach = [(n - 1) * d for n, d in zip(self.window, self.window_dilation, strict=True)]
        spans = [n - r for n, r in zip(padded.shape[2:], reach, strict=True)]

        def shifted(offset: Axes) -> Array:
            start = [i * d for i, d in zip(offset, self.window_dilation, strict=True)]
            end = [i + n for i, n in zip(start, spans, strict=True)]
            limits = (*x.shape[:2], *end)
            return lax.slice(padded, (0, 0, *start), limits, (1, 1, *self.strides))

        windows = jnp.stack([shifted(offset) for offset in np.ndindex(*self.window)])
        # After `moveaxis`, the axes are channels, offsets in the window, images, and positions.
        windows = jnp.moveaxis(windows, 2, 0)
        flat = windows.reshape(self.groups, -1, math.prod(windows.shape[2:]))
        return flat.swapaxes(1, 2)

    def matrix(self, kernel: Array) -> Array:
        kernel = kernel.transpose(self.axes[1])
        outputs = kernel.shape[0] // self.groups
        return kernel.reshape(self.groups, outputs, math.prod(kernel.shape[1:])).swapaxes(1, 2)

    def outputs(self, y: Array) -> Array:
        y = jnp.moveaxis(y.transpose(self.axes[2]), 1, 0)
        outputs = y.shape[0] // self.groups
        return y.reshape(self.groups, outputs, math.prod(y.shape[1:])).swapaxes(1, 2)

    def squares(self, x: Array) -> Array:
        """For each row of the matrix, the sum Σ x² over the feature map x that the row multiplies.

        The result has the shape (groups, inputs). The offset of a row in the window is ignored: the
        sum runs over the whole feature map.
        """
        maps = jnp.square(x.transpose(self.axes[0])).sum((0, *range(2, x.ndim)))
        return jnp.repeat(maps, math.prod(self.window)).reshape(self.groups, -1)

    def output_axes(self) -> tuple[Axes, Axes]:
        return (self.axes[1][0],), (self.axes[2][1],)


Linear = Product | Convolution


def convolution_of(eqn: Equation, side: int) -> Linear | None:
    """The equation of a convolution, written as matrix products.

    The result is None if the convolution has batch groups, or if operand `side` is not the kernel
    of the convolution.
    """
    params, numbers = eqn.params, eqn.params["dimension_numbers"]
    if side != 1 or params["batch_group_count"] > 1:
        return None
    return Convolution(
        tuple(shape_of(eqn.invars[1])[k] for k in numbers.rhs_spec[2:]),
        tuple(params["window_strides"]),
        tuple(map(tuple, params["padding"])),
        tuple(params["lhs_dilation"]),
        tuple(params["rhs_dilation"]),
        (tuple(numbers.lhs_spec), tuple(numbers.rhs_spec), tuple(numbers.out_spec)),
        params["feature_group_count"],
    )


def product_of(eqn: Equation, side: int) -> Linear:
    """The equation of a `dot_general`, written as matrix products with the kernel."""
    contracted, batch = eqn.params["dimension_numbers"]
    free = [
        tuple(k for k in range(len(shape_of(v))) if k not in (*contracted[i], *batch[i]))
        for i, v in enumerate(eqn.invars)
    ]
    axes = [(tuple(batch[i]), free[i], tuple(contracted[i])) for i in (0, 1)]
    ends = np.cumsum([len(batch[0]), len(free[0]), len(free[1])]).tolist()
    groups, first, second = (tuple(range(a, b)) for a, b in zip([0, *ends[:-1]], ends, strict=True))
    of_outputs = (groups, first, second) if side == 1 else (groups, second, first)
    return Product(axes[1 - side], axes[side], of_outputs)


def _matrices(x: Array, *parts: Sequence[int]) -> Array:
    sizes = [math.prod(x.shape[k] for k in part) for part in parts]
    return x.transpose([k for part in parts for k in part]).reshape(sizes)
