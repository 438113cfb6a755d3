"""Kinds of block for random networks, with operations on channels that occur in users' models.

A kind is a pair `(arrays, apply)`. The string `arrays` has the shapes of the parameters by letters,
such as `"w:cn b:n"`. The function `apply(p, x)` maps images, tokens or vectors, whose last axis has
the channels. The letters are

    c        channels of the input; i = c/2, C = 2c, z = c + 1, Z = c + 2
    n, m     widths that are drawn for the block; N = 2n, M = 2m, T = 3m, F = 4m
    h, d     heads and their depth; H = 2h, D = h · d
    k, l, r  window, layers (or experts, or parts), rank
    t, f     size of the second axis; number of elements of an example
    e, o     words, classes
    1, s     an axis of size 1; a scalar, without axes

Arrays whose name begins with v are positive.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

Params = Mapping[str, Any]
Apply = Callable[[Any, Any], Any]
Kind = tuple[str, Apply]
Kinds = dict[str, Kind]
WIDTHS, WORDS, CLASSES = (4, 6), 8, 3


def drawn_sizes(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, int]:
    """The size of each letter, for a block whose input has this shape."""
    c, (n, m), d = shape[-1], rng.choice(WIDTHS, 2).tolist(), int(rng.choice((2, 4)))
    of_channels = {"c": c, "i": c // 2, "C": 2 * c, "z": c + 1, "Z": c + 2}
    of_widths = {"n": n, "m": m, "N": 2 * n, "M": 2 * m, "T": 3 * m, "F": 4 * m}
    of_heads = {"h": 2, "d": d, "H": 4, "D": 2 * d}
    of_axes = {"t": shape[1], "f": int(np.prod(shape[1:])), "e": WORDS, "o": CLASSES}
    return of_channels | of_widths | of_heads | of_axes | {"k": 3, "l": 2, "r": 2, "1": 1}


def drawn_arrays(rng: np.random.Generator, arrays: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Random arrays, scaled like initial kernels. Scalars and positive arrays are in [0.5, 1.5]."""
    params: dict[str, Any] = {}
    for name, _, letters in (item.partition(":") for item in arrays.split()):
        shape = tuple(sizes[letter] for letter in letters if letter != "s")
        if not shape or name.startswith("v"):
            params[name] = rng.uniform(0.5, 1.5, shape)
        else:
            params[name] = rng.normal(size=shape) * np.prod(shape[:-1] or (4,)) ** -0.5
        if not shape and rng.random() < 0.5:
            params[name] = float(params[name])
    return params


def last(v: Any, x: Any) -> jax.Array:
    """The array `v` with leading axes of size 1, so that it has as many axes as `x`."""
    return jax.lax.expand_dims(v, range(np.ndim(x) - np.ndim(v)))
