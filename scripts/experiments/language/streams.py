"""Decoders evaluated layer by layer, some sequences at a time, on the host between the steps."""

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

BATCH = 4  # sequences at a time
STEPS: dict[str, Callable[..., Array]] = {
    name: jax.jit(getattr(decoder, name), static_argnums=0)
    for name in ("attend", "add_attention", "activate", "add_activations", "layer")
}
NORMALIZE = jax.jit(decoder.rms_norm, static_argnums=0)
Params = Mapping[str, Any]
Stream = Float[np.ndarray, "sequences tokens channels"]


class Perplexity(NamedTuple):
    """exp of the mean cross entropy, and its standard error over sequences."""

    value: float
    stderr: float


class Layer(NamedTuple):
    """A layer of a decoder, ready to run: its program, parameters and positions."""

    model: Architecture
    params: Params
    at: Positions

    def run(self, name: str, *arrays: Stream) -> Stream:
        """Runs one of `STEPS`, a batch of sequences at a time."""
        at = (self.at,) if name in ("attend", "layer") else ()
        step = partial(STEPS[name], self.model, self.params)
        return np.concatenate([np.asarray(step(*parts, *at)) for parts in batches(*arrays)])

    def normalize(self, name: str, x: Stream) -> Stream:
        """The stream after a norm."""
        weight = self.params[name]
        return np.concatenate([np.asarray(NORMALIZE(self.model, *b, weight)) for b in batches(x)])

    def replace(self, params: Params) -> "Layer":
        """The layer with other parameters."""
        return self._replace(params={**self.params, **jax.tree.map(jnp.asarray, dict(params))})


def norm_names(model: Architecture) -> tuple[str, str]:
    """The names of the norms that attention and the perceptron read."""
    second = "pre_feedforward_layernorm" if model.traits.gemma else "post_attention_layernorm"
    return "input_layernorm.weight", f"{second}.weight"


def batches(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Some sequences of each array at a time."""
    for start in range(0, len(arrays[0]), BATCH):
        yield tuple(array[start : start + BATCH] for array in arrays)


def make_layer(model: Architecture, params: Params, layer: int, tokens: int) -> Layer:
    """A layer with its parameters on the device; layers of one decoder share their programs."""
    at = decoder.positions(model, layer, tokens)
    return Layer(without_layers(model), jax.tree.map(jnp.asarray, dict(params)), at)


def without_layers(model: Architecture) -> Architecture:
    """The decoder without what differs between its layers, which are compiled once."""
    return replace(model, windows=(), rates=())


def embed(model: Architecture, table: np.ndarray, tokens: Tokens) -> Stream:
    """The stream before the first layer; `table` in the dtype of its file."""
    rows, where = np.unique(tokens, return_inverse=True)
    used = table[rows].astype(np.float32)
    return np.asarray(
        decoder.embed(model, jnp.asarray(used), jnp.asarray(where.reshape(tokens.shape)))
    )


def perplexity(
    model: Architecture, norm: np.ndarray, head: np.ndarray, x: Stream, tokens: Tokens
) -> Perplexity:
    """The perplexity of the next tokens, from the stream after the last layer."""
    weight, kernel = jnp.asarray(norm), jnp.asarray(head)
    of_one = jax.jit(partial(cross_entropy, without_layers(model)))
    losses = np.array([float(of_one(weight, kernel, a, b)) for a, b in zip(x, tokens, strict=True)])
    value = float(np.exp(losses.mean()))
    stderr = losses.std(ddof=1) / len(losses) ** 0.5 if len(losses) > 1 else np.nan
    return Perplexity(value, float(value * stderr))


def cross_entropy(
    model: Architecture, norm: Array, head: Array, x: Array, following: Array
) -> Float[Array, ""]:
    """The mean cross entropy over the tokens of one sequence."""
    found = decoder.logits(model, norm, head.astype(jnp.float32), x)
    picked = jnp.take_along_axis(found, following[:, None], 1)[:, 0]
    return (jax.nn.logsumexp(found, -1) - picked).mean()
