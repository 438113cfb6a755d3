"""Embeddings, heads, and the layers between stages of random networks."""

from typing import Any

import jax
import jax.numpy as jnp

from tests.support.random_blocks import Kinds, last
from tests.support.random_blocks.constants import EMBEDDED


def middle(x: Any) -> tuple[int, ...]:
    """The axes between the axis of the batch and the axis of channels."""
    return tuple(range(1, x.ndim - 1))


def attended(p, x):
    """A mean over positions, weighted by a softmax of x w."""
    x = x.reshape(len(x), -1, x.shape[-1])
    return jnp.einsum("bt,btc->bc", jax.nn.softmax(x @ p["w"], -1), x)


EMBEDDING: Kinds = {"embedding": ("w:em", lambda p, x: p["w"][x])}
EMBEDDINGS = (EMBEDDING, EMBEDDED)
"""Embeddings of words without and with a constant, each with probability ½."""
INTO: dict[str, Kinds] = {
    "tokens": {"all positions": ("", lambda p, x: x.reshape(len(x), -1, x.shape[-1]))},
    "vectors": {
        "mean of positions": ("", lambda p, x: x.mean(middle(x))),
        "largest of positions": ("", lambda p, x: x.max(middle(x))),
        "last position": ("", lambda p, x: x.reshape(len(x), -1, x.shape[-1])[:, -1]),
        "flattened": ("", lambda p, x: x.reshape(len(x), -1)),
        "attended": ("w:c", attended),
    },
}
HEADS: Kinds = {
    "flat": ("w:fo b:o", lambda p, x: x.reshape(len(x), -1) @ p["w"] + p["b"][None]),
    "everywhere": ("w:co b:o", lambda p, x: x @ p["w"] + last(p["b"], x)),
    "two": ("w:co u:cc", lambda p, x: {"first": x @ p["w"], "second": jnp.tanh(x @ p["u"])}),
}
