"""Primitives of JAX that read or write windows of an array, in NumPy, for `numpy_programs`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def dynamic_slice(params: dict[str, Any], x: Any, *starts: Any) -> Any:
    """The window of `x` at the start indices, which are clipped as in JAX."""
    sizes = params["slice_sizes"]
    corner = np.clip(np.array(starts, int), 0, np.subtract(x.shape, sizes))
    return x[tuple(slice(k, k + size) for k, size in zip(corner, sizes, strict=True))]


def gather(params: dict[str, Any], x: Any, indices: Any) -> Any:
    """Windows of `x`, or None if a window extends beyond `x`."""
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    batch = numbers.operand_batching_dims, numbers.start_indices_batching_dims
    windows = _windows(x.shape, sizes, indices, numbers.start_index_map, batch)
    if not windows:
        return None
    single = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    slices = np.stack([np.squeeze(x[window], single) for window in windows])
    slices = slices.reshape((*indices.shape[:-1], *slices.shape[1:]))
    return np.moveaxis(slices, range(indices.ndim - 1, slices.ndim), numbers.offset_dims)


def scatter(combine: Callable[..., Any]) -> Callable[..., Any]:
    """A function that combines windows of `x` with updates.

    The function returns the new `x`, or None if a window extends beyond `x`.
    """

    def scattered(params: dict[str, Any], x: Any, indices: Any, updates: Any) -> Any:
        numbers, first = params["dimension_numbers"], indices.ndim - 1
        batch = numbers.operand_batching_dims, numbers.scatter_indices_batching_dims
        single = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
        updates = np.moveaxis(updates, numbers.update_window_dims, range(first, updates.ndim))
        updates = updates.reshape((-1, *updates.shape[first:]))
        updates = np.expand_dims(updates, [k + 1 for k in single])
        to = numbers.scatter_dims_to_operand_dims
        windows = _windows(x.shape, updates.shape[1:], indices, to, batch)
        result = np.array(x)
        for window, update in zip(windows, updates, strict=False):
            result[window] = combine(result[window], update)
        return result if windows else None

    return scattered


def _windows(
    shape: Sequence[int], sizes: Sequence[int], indices: Any, to: Sequence[int], batch: Any
) -> list[tuple[slice, ...]]:
    """The window at each index, or no windows if a window extends beyond the array."""
    windows = []
    for place in np.ndindex(indices.shape[:-1]):
        start = np.zeros(len(shape), int)
        start[list(to)] = indices[place]
        start[list(batch[0])] = [place[k] for k in batch[1]]
        if (start < 0).any() or (start + sizes > shape).any():
            return []
        windows.append(tuple(slice(k, k + n) for k, n in zip(start, sizes, strict=True)))
    return windows
