"""Constants that vary along channels, made and used in different ways."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.support.random_blocks import Kinds, last


def angles(rows: int, channels: int) -> np.ndarray:
    return np.outer(np.arange(1.0, rows + 1), 2.0 ** -(np.arange(channels) / channels))


def sines(rows: int, channels: int) -> np.ndarray:
    return np.sin(angles(rows, channels))


def in_bfloat16(rows: int, channels: int) -> jax.Array:
    return jnp.asarray(sines(rows, channels), jnp.bfloat16).astype(float)


def counted(rows: int, channels: int) -> jax.Array:
    """A table that is computed from two `iota`, as tables of positions often are."""
    shape = (rows, channels)
    count = partial(lax.broadcasted_iota, jnp.zeros(()).dtype, shape)
    return jnp.cos((count(0) + 1) / (count(1) + 3))


def in_halves(rows: int, channels: int) -> jax.Array:
    """A table of sines in the first half of the channels and cosines in the second half."""
    half = jnp.asarray(angles(rows, channels - channels // 2))
    return jnp.concatenate([jnp.sin(half), jnp.cos(half[:, : channels // 2])], -1)


def in_a_loop(rows: int, channels: int) -> jax.Array:
    """A table of the outputs of a scan, whose state begins with zeros."""
    rows_of_sines = jnp.asarray(sines(rows, channels))
    return lax.scan(lambda h, row: (h / 2 + row, h + row), jnp.zeros(channels), rows_of_sines)[1]


def in_a_while_loop(rows: int, channels: int) -> jax.Array:
    table = jnp.asarray(sines(rows, channels))
    start = 0, jnp.zeros((rows, channels))
    return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] / 2 + table), start)[1]


CONSTANTS: dict[str, Callable[[int, int], Any]] = {
    "table": sines,
    "cast table": in_bfloat16,
    "scaled table": lambda *shape: jnp.asarray(sines(*shape)) * 0.5,
    "negative table": lambda *shape: -jnp.asarray(sines(*shape)),
    "sine of a table": lambda *shape: jnp.sin(jnp.asarray(angles(*shape))),
    "traced table": lambda *shape: jax.jit(lambda: jnp.sin(angles(*shape)))(),
    "table handed to jit": lambda *shape: jax.jit(jnp.cos)(angles(*shape)),
    "counted table": counted,
    "table in halves": in_halves,
    "exponent of a table": lambda *shape: jnp.exp(jnp.asarray(sines(*shape))),
    "sum of tables": lambda *shape: jnp.asarray(angles(*shape)) + counted(*shape),
    "table of a scan": in_a_loop,
    "table of a while loop": in_a_while_loop,
    "table from a table": lambda *shape: jnp.asarray(angles(*shape).T).T[::-1] / 2,
}
"""Functions of the number of rows and the number of channels, by name."""

TAKEN: dict[str, Callable[[Any, Any], Any]] = {
    "added": lambda x, table: x + table,
    "multiplied": lambda x, table: x * table,
    "subtracted from": lambda x, table: table - x,
    "dividing": lambda x, table: x / (3 + table),
    "choosing": lambda x, table: jnp.where(table > 0, x, jnp.tanh(x)),
    "at least": jnp.maximum,
    "squared beside": lambda x, table: jnp.square(x + table),
}
"""Functions of activations and a table, by name."""


def with_constant(
    constant: Callable[[int, int], Any], take: Callable[[Any, Any], Any], p: Any, x: Any
) -> Any:
    return take(x, last(constant(*x.shape[-2:]), x))


TABLES: Kinds = {
    f"{name} {taken}": ("", partial(with_constant, constant, take))
    for i, (name, constant) in enumerate(CONSTANTS.items())
    for k, (taken, take) in enumerate(TAKEN.items())
    if (i - k) % 3 == 0
}
EMBEDDED: Kinds = {
    f"embedding, {name} {taken}": (
        "w:em",
        lambda p, x, constant=constant, take=take: with_constant(constant, take, p, p["w"][x]),
    )
    for name, constant in CONSTANTS.items()
    for taken, take in TAKEN.items()
}
