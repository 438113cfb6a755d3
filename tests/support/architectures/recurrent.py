"""Recurrent networks in Linen, flax.nnx and Equinox, and as plain functions."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import linen as nn, nnx
from jax import lax

from tests.support.architectures._common import (
    Architecture,
    Make,
    normal,
    of_equinox,
    of_linen,
    of_nnx,
)

WIDTH, INPUTS, STEPS, CLASSES = 8, 3, 5, 4


def sequence(dtype: Any) -> Any:
    return normal(dtype, 2, STEPS, INPUTS)


class LinenRecurrent(nn.Module):
    """LSTM, Hochreiter and Schmidhuber (1997), or GRU, Cho et al. (2014), by Linen's cells."""

    cell: Any
    dtype: Any

    @nn.compact
    def __call__(self, inputs):
        x: Any = nn.RNN(self.cell(WIDTH, param_dtype=self.dtype))(inputs)
        return nn.Dense(CLASSES)(x[:, -1])


def linen_recurrent(cell: Any) -> Make:
    return lambda dtype: of_linen(LinenRecurrent(cell, dtype), dtype, sequence(dtype))


class AttendedBothWays(nn.Module):
    """An LSTM in both directions and attention over its states, Bahdanau et al. (2015)."""

    dtype: Any

    @nn.compact
    def __call__(self, inputs):
        cells = [nn.OptimizedLSTMCell(WIDTH, param_dtype=self.dtype) for _ in range(2)]
        x: Any = nn.Bidirectional(nn.RNN(cells[0]), nn.RNN(cells[1]))(inputs)
        scores = nn.Dense(1)(jnp.tanh(nn.Dense(WIDTH)(x)))
        return nn.Dense(CLASSES)((nn.softmax(scores, 1) * x).sum(1))


class NnxRecurrent(nnx.Module):
    def __init__(self, cell: Any, rngs: nnx.Rngs, dtype: Any):
        self.rnn = nnx.RNN(cell(INPUTS, WIDTH, param_dtype=dtype, rngs=rngs), rngs=rngs)
        self.head = nnx.Linear(WIDTH, CLASSES, param_dtype=dtype, rngs=rngs)

    def __call__(self, x):
        states: Any = self.rnn(x)
        return self.head(states[:, -1])


def nnx_recurrent(cell: Any) -> Make:
    return lambda dtype: of_nnx(
        lambda rngs: NnxRecurrent(cell, rngs, dtype), dtype, sequence(dtype)
    )


class EquinoxRecurrent(eqx.Module):
    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __init__(self, key: Any):
        self.cell = eqx.nn.GRUCell(INPUTS, WIDTH, key=key)
        self.head = eqx.nn.Linear(WIDTH, CLASSES, key=key)

    def __call__(self, x):
        start = jnp.zeros(WIDTH, x.dtype)
        return self.head(lax.scan(lambda h, x: (self.cell(x, h), None), start, x)[0])


def equinox_recurrent(dtype: Any) -> Architecture:
    return of_equinox(EquinoxRecurrent, dtype, sequence(dtype))


def elman(dtype: Any) -> Architecture:
    """Elman (1990), as a plain function, with two layers."""
    shapes = {"a": (INPUTS, WIDTH), "aa": (WIDTH, WIDTH), "b": (WIDTH, WIDTH), "bb": (WIDTH, WIDTH)}
    shapes |= {"head": (WIDTH, CLASSES)}
    params = {
        name: normal(dtype, *shape, seed=i) / 3 for i, (name, shape) in enumerate(shapes.items())
    }

    def layer(w, u, x):
        def step(h, x):
            h = jnp.tanh(x @ w + h @ u)
            return h, h

        return lax.scan(step, jnp.zeros((x.shape[1], u.shape[0]), x.dtype), x)[1]

    def apply(p, x):
        x = layer(p["a"], p["aa"], jnp.swapaxes(x, 0, 1))
        return layer(p["b"], p["bb"], x)[-1] @ p["head"]

    return Architecture(apply, params, (sequence(dtype),))


class SequenceToSequence(nn.Module):
    """A decoder that begins with the last state of the encoder, Sutskever et al. (2014)."""

    dtype: Any

    @nn.compact
    def __call__(self, x, y):
        encoder = nn.RNN(nn.LSTMCell(WIDTH, param_dtype=self.dtype), return_carry=True)
        decoder = nn.RNN(nn.LSTMCell(WIDTH, param_dtype=self.dtype))
        state, _ = encoder(x)
        return nn.Dense(CLASSES)(decoder(y, initial_carry=state))


def sequence_to_sequence(dtype: Any) -> Architecture:
    y = normal(dtype, 2, 4, INPUTS, seed=2)
    return of_linen(SequenceToSequence(dtype), dtype, sequence(dtype), y)


def wavenet(dtype: Any) -> Architecture:
    """WaveNet: gated, dilated convolutions with residuals and skips, van den Oord et al. (2016)."""
    shapes = {"in": (1, INPUTS, WIDTH), "out": (WIDTH, CLASSES)}
    for i in range(2):
        shapes |= {f"w{i}": (2, WIDTH, 2 * WIDTH), f"r{i}": (WIDTH, WIDTH), f"s{i}": (WIDTH, WIDTH)}
    params = {
        name: normal(dtype, *shape, seed=i) / 3 for i, (name, shape) in enumerate(shapes.items())
    }

    def conv(x, w, dilation):
        edges = [((w.shape[0] - 1) * dilation, 0)]
        numbers = ("NWC", "WIO", "NWC")
        return lax.conv_general_dilated(
            x, w, (1,), edges, rhs_dilation=(dilation,), dimension_numbers=numbers
        )

    def apply(p, x):
        x, skips = conv(x, p["in"], 1), 0.0
        for i in range(2):
            a, b = jnp.split(conv(x, p[f"w{i}"], 2**i), 2, -1)
            h = jnp.tanh(a) * jax.nn.sigmoid(b)
            x, skips = x + h @ p[f"r{i}"], skips + h @ p[f"s{i}"]
        return jax.nn.relu(skips) @ p["out"]

    return Architecture(apply, params, (sequence(dtype),))


RECURRENT: dict[str, Make] = {
    "Elman": elman,
    "LSTM (Linen)": linen_recurrent(nn.LSTMCell),
    "LSTM, fused (Linen)": linen_recurrent(nn.OptimizedLSTMCell),
    "GRU (Linen)": linen_recurrent(nn.GRUCell),
    "LSTM (flax.nnx)": nnx_recurrent(nnx.LSTMCell),
    "GRU (flax.nnx)": nnx_recurrent(nnx.GRUCell),
    "GRU (Equinox)": equinox_recurrent,
    "LSTM both ways and attention": lambda dtype: of_linen(
        AttendedBothWays(dtype), dtype, sequence(dtype)
    ),
    "Sequence to sequence": sequence_to_sequence,
    "WaveNet": wavenet,
}
