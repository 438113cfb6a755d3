"""Evaluate decoders layer by layer, for a few sequences at a time.

The host stores the residual streams between layers.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from experiments.language import decoder
from experiments.language.architecture import Architecture
from experiments.language.decoder import Positions
from experiments.language.tokens import Tokens

BATCH = 4  # the number of sequences that are evaluated at a time
STEPS: dict[str, Callable[..., Array]] = {
    name: jax.jit(getattr(decoder, name), static_argnums=0)
    for name in (
        "attend",
        "add_attention",
        "activate",
        "add_activations",
        "activate_expert",
        "add_experts",
        "layer",
    )
}
NORMALIZE = jax.jit(decoder.normalize, static_argnums=(0, 2))
Params = Mapping[str, Any]
Stream = Float[np.ndarray, "sequences tokens channels"]


class Perplexity(NamedTuple):
    """A perplexity, exp(mean cross entropy), and its standard error over sequences."""

    value: float
    stderr: float


class Layer(NamedTuple):
    """A layer of a decoder, ready to run: its architecture, parameters and positions."""

    model: Architecture
    params: Params
    at: Positions

    def run(self, name: str, *arrays: Stream) -> Stream:
        """Run the function `name` of `STEPS` on all sequences, one batch after another."""
        at = (self.at,) if name in ("attend", "layer") else ()
        step = partial(STEPS[name], self.model, self.params)
        return np.concatenate([np.asarray(step(*parts, *at)) for parts in batches(*arrays)])

    def run_expert(self, x: Stream, expert: int) -> Stream:
        """The input of an expert's down projection, times the router's weight for each token."""
        step = partial(STEPS["activate_expert"], self.model, self.params)
        return np.concatenate([np.asarray(step(*b, jnp.asarray(expert))) for b in batches(x)])

    def normalize(self, name: str, x: Stream) -> Stream:
        """Normalize the residual stream by the layer's norm `name`."""
        step = partial(NORMALIZE, self.model, self.params, name)
        return np.concatenate([np.asarray(step(*b)) for b in batches(x)])

    def replace(self, params: Params) -> "Layer":
        return self._replace(params={**self.params, **jax.tree.map(jnp.asarray, dict(params))})


def norm_names(model: Architecture) -> tuple[str, str]:
    """The names of the norms before attention and before the perceptron."""
    return "input_layernorm", decoder.perceptron_norm(model)


def batches(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Divide all arrays into parts of `BATCH` sequences, and yield one part of each array."""
    for start in range(0, len(arrays[0]), BATCH):
        yield tuple(array[start : start + BATCH] for array in arrays)


def make_layer(model: Architecture, params: Params, layer: int, tokens: int) -> Layer:
    """A layer with parameters on the device; layers of one decoder share compiled functions."""
    at = decoder.positions(model, layer, tokens)
    return Layer(without_layers(model), jax.tree.map(jnp.asarray, dict(params)), at)


def without_layers(model: Architecture) -> Architecture:
    """The architecture without `windows` and `rates`, so that layers share compiled functions."""
    return replace(model, windows=(), rates=())


class Ends(NamedTuple):
    """The parameters before and after the layers, in the dtypes of their files.

    Attributes:
      table: Matrix of the embedding, of shape (vocabulary, hidden).
      norm: Weight of the last norm.
      head: Kernel of the output layer.
      places: Learned positions of shape (positions, hidden), or None.
      bias: Bias of the last norm, or None.
    """

    table: np.ndarray
    norm: np.ndarray
    head: np.ndarray
    places: np.ndarray | None = None
    bias: np.ndarray | None = None


def embed(model: Architecture, ends: Ends, tokens: Tokens) -> Stream:
    """The residual stream before the first layer."""
    rows, where = np.unique(tokens, return_inverse=True)
    used = jnp.asarray(ends.table[rows].astype(np.float32))
    places = to_device(ends.places)
    at = jnp.asarray(where.reshape(tokens.shape))
    return np.asarray(decoder.embed(model, used, at, places))


def to_device(array: np.ndarray | None) -> Array | None:
    """Copy an array in float32 to the device; None remains None."""
    return None if array is None else jnp.asarray(array.astype(np.float32))


def perplexity(model: Architecture, ends: Ends, x: Stream, tokens: Tokens) -> Perplexity:
    """The perplexity of `tokens`, predicted from the residual stream `x` after the last layer."""
    norm, bias, head = to_device(ends.norm), to_device(ends.bias), jnp.asarray(ends.head)
    of_one = partial(CROSS_ENTROPY, without_layers(model))
    losses = np.array(
        [float(of_one(norm, bias, head, a, b)) for a, b in zip(x, tokens, strict=True)]
    )
    value = float(np.exp(losses.mean()))
    stderr = losses.std(ddof=1) / len(losses) ** 0.5 if len(losses) > 1 else np.nan
    return Perplexity(value, float(value * stderr))


def cross_entropy(
    model: Architecture, norm: Array, bias: Array | None, head: Array, x: Array, following: Array
) -> Float[Array, ""]:
    """The mean cross entropy over the tokens of one sequence; `following` are the next tokens."""
    found = decoder.logits(model, norm, head.astype(jnp.float32), x, bias)
    picked = jnp.take_along_axis(found, following[:, None], 1)[:, 0]
    return (jax.nn.logsumexp(found, -1) - picked).mean()


CROSS_ENTROPY = jax.jit(cross_entropy, static_argnums=0)
