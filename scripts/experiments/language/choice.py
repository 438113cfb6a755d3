"""Score a decoder's units (layers, heads, channels, experts), and select the units that remain."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from experiments.language import folders, naming, removal, scores, streams
from experiments.language.architecture import Architecture, parse
from experiments.language.naming import Sources
from experiments.language.removal import (
    EMBEDDING,
    HEAD,
    NORM,
    NORM_BIAS,
    POSITIONS,
    Counts,
    Selection,
)
from experiments.language.scores import Score, largest
from experiments.language.streams import Ends, Layer, Perplexity
from experiments.language.tokens import Tokens

Params = dict[str, np.ndarray]


@dataclass(frozen=True)
class Model:
    """A decoder in files: its architecture, and the places of its tensors in the files."""

    architecture: Architecture
    tensors: Sources

    def layer(self, layer: int) -> Params:
        """The parameters of a layer in at least float32, under names without the layer's prefix."""
        return {
            short: in_float32(self.read(name))
            for short, name in removal.layer_names(self.tensors, layer)
        }

    @property
    def tied(self) -> bool:
        """Whether the embedding is also the kernel of the output layer."""
        return HEAD not in self.tensors

    def read(self, name: str) -> np.ndarray:
        """A tensor, read in the dtype of the file."""
        return self.tensors[name].read()

    def ends(self) -> Ends:
        """Read the parameters outside the layers: embeddings, last norm and output kernel."""
        names = [*removal.end_names(self.tensors)]
        return make_ends({name: self.read(name) for name in names})


def make_ends(arrays: Mapping[str, np.ndarray]) -> Ends:
    """The parameters outside the layers, from a dictionary of arrays with Llama's names."""
    table = arrays[EMBEDDING]
    others = arrays.get(POSITIONS), arrays.get(NORM_BIAS)
    return Ends(table, arrays[NORM], arrays.get(HEAD, table), *others)


def read_model(folder: Path) -> tuple[dict[str, Any], Model]:
    """The configuration and the model of a folder; names and shapes of tensors are checked.

    Raises:
      InputError: The architecture is not supported, or a tensor has an unexpected name or shape.
    """
    config = folders.read_config(folder)
    architecture = parse(config)
    model = Model(architecture, naming.load(folder, architecture.family))
    removal.check_names(architecture, model.tensors)
    return config, model


def in_float32(array: np.ndarray) -> np.ndarray:
    return array.astype(np.promote_types(array.dtype, np.float32), copy=False)


class Text(NamedTuple):
    """The sequences of tokens of a calibration text (for scores and repair) and a held-out text.

    Each sequence has one more token than the decoder reads, because the last token is only
    predicted.
    """

    calibration: Tokens
    held_out: Tokens


class Chosen(NamedTuple):
    """The units that remain, and measurements from the pass over the layers that scored the units.

    Attributes:
      selection: The units that remain.
      influences: For each layer, the mean over tokens of 1 − cos α, where α is the angle between
        the residual streams before and after the layer; empty without text.
      perplexity: The perplexity of the whole decoder on held-out text; None without text.
    """

    selection: Selection
    influences: list[float]
    perplexity: Perplexity | None


def choose(
    model: Model,
    counts: Counts,
    score: Score,
    text: Text | None,
    seed: int,
    log: Callable[[str], None],
) -> Chosen:
    """Score the units of every layer, and select the units with the largest scores.

    `counts` gives the numbers of units that remain. With the score `random`, random layers remain.
    With other scores, the layers with the largest influence on the residual stream remain.
    """
    rng, whole = np.random.default_rng(seed), model.architecture
    ends = model.ends()
    of_hidden = np.square(ends.table.astype(np.float32)).sum(0)  # the scores for `magnitude`
    of_hidden = of_hidden if score == "magnitude" else np.zeros(whole.hidden)
    x, y = (streams.embed(whole, ends, part[:, :-1]) for part in text) if text else (None, None)
    # The embeddings and the output kernel in `ends` are large, so they are removed from memory
    # before a layer is read.
    del ends
    remaining, influences = [], []
    for i in range(whole.layers):
        p = model.layer(i)
        if text is not None and x is not None and y is not None:
            layer = streams.make_layer(whole, p, i, x.shape[1])
            seen = observe(layer, x, experts=counts.experts < whole.experts)
            influences.append(influence(x, seen.after))
            y = layer.run("layer", y)
        else:
            seen = None
        remaining.append(of_layer(whole, p, seen, counts, score, rng))
        of_hidden = of_hidden + hidden_scores(whole, p, seen, score)
        x = seen.after if seen else None
        log(f"layer {i + 1} of {whole.layers} scored")
    measured = None
    if text is not None and y is not None:
        measured = streams.perplexity(whole, model.ends(), y, text.held_out[:, 1:])
    ranks = np.array(influences or np.zeros(whole.layers))
    if score == "random":
        ranks, of_hidden = rng.random(whole.layers), rng.random(whole.hidden)
    layers, hidden = largest(ranks, counts.layers), largest(of_hidden, counts.hidden)
    groups, intermediate, experts = zip(*remaining, strict=True)
    selection = Selection(layers, groups, intermediate, hidden, experts)
    return Chosen(selection, influences, measured)


def of_layer(
    model: Architecture, p: Params, seen: "Seen | None", counts: Counts, score: Score, rng: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The indices of a layer's remaining key-value heads, intermediate units and experts."""
    groups = of_heads(model, p, seen, counts.groups, score, rng)
    if model.traits.mixture:
        experts = of_experts(model, p, seen, counts.experts, score, rng)
        return groups, np.arange(counts.intermediate), experts
    return groups, of_intermediate(p, seen, counts.intermediate, score, rng), np.arange(1)


class Seen(NamedTuple):
    """What one layer computes for the calibration text, as needed for scores.

    Attributes:
      mixed: The inputs of attention's output projection, one row for each token.
      activated: The inputs of the down projection; empty for a mixture of experts.
      experts: For each expert, a sum over tokens. Each term is the router's weight, times the norm
        of the expert's output.
      squares: For the norm before attention and the norm before the perceptron, the sum Σ h² over
        tokens for each channel, where h is the norm's output.
      after: The residual stream after the layer.
    """

    mixed: Float[np.ndarray, "rows queries"]
    activated: Float[np.ndarray, "rows intermediate"]
    experts: Float[np.ndarray, " experts"]
    squares: dict[str, Float[np.ndarray, " hidden"]]
    after: streams.Stream


def observe(layer: Layer, x: streams.Stream, *, experts: bool) -> Seen:
    """Run a layer and return its activations; `experts` says whether experts are scored."""
    mixed = layer.run("attend", x)
    between = layer.run("add_attention", x, mixed)
    sizes = np.zeros(layer.model.experts)
    if layer.model.traits.mixture:
        activated = np.zeros((0, 0), np.float32)
        after = layer.run("add_experts", between)
        sizes = expert_sizes(layer, between) if experts else sizes
    else:
        inner = layer.run("activate", between)
        after, activated = layer.run("add_activations", between, inner), rows(inner)
    names = streams.norm_names(layer.model)
    squares = {
        name: np.square(layer.normalize(name, stream)).sum((0, 1))
        for name, stream in zip(names, (x, between), strict=True)
    }
    return Seen(rows(mixed), activated, sizes, squares, after)


def expert_sizes(layer: Layer, x: streams.Stream) -> Float[np.ndarray, " experts"]:
    """For each expert, Σ (router's weight × norm of the expert's output), summed over tokens."""
    down = layer.params["mlp.experts.down_proj.weight"]
    outputs = (
        product(rows(layer.run_expert(x, e)), np.asarray(down[e]).T) for e in range(len(down))
    )
    return np.array([np.linalg.norm(y, axis=1).sum() for y in outputs])


def rows(x: np.ndarray) -> np.ndarray:
    """Reshape an array to a matrix with one row for each token."""
    return x.reshape(-1, x.shape[-1])


def influence(before: streams.Stream, after: streams.Stream) -> float:
    """The mean over tokens of 1 − cos α, where a layer turns the residual stream by the angle α.

    If the influence is small, the residual stream has nearly the same direction before and after
    the layer: Men et al. (2024), ShortGPT.
    """
    products = np.einsum("...c,...c->...", before, after)
    sizes = np.linalg.norm(before, axis=-1) * np.linalg.norm(after, axis=-1)
    return float(1 - np.mean(products / np.maximum(sizes, np.finfo(np.float32).tiny)))


def of_heads(
    model: Architecture, p: Params, seen: Seen | None, count: int, score: Score, rng: Any
) -> np.ndarray:
    """The indices of a layer's remaining key-value heads."""
    width = model.head_dim * model.heads // model.groups
    if score == "random":
        return np.sort(rng.permutation(model.groups)[:count])
    if seen is None or score == "magnitude":
        return largest(scores.head_magnitudes(model, p), count)
    return of_inputs(p["self_attn.o_proj.weight"], seen.mixed, width, count, score)


def of_intermediate(p: Params, seen: Seen | None, count: int, score: Score, rng: Any) -> np.ndarray:
    """The indices of a layer's remaining intermediate units."""
    kernel = p["mlp.down_proj.weight"]
    if score == "random":
        return np.sort(rng.permutation(kernel.shape[1])[:count])
    if seen is None or score == "magnitude":
        return largest(scores.magnitudes(p, "intermediate"), count)
    return of_inputs(kernel, seen.activated, 1, count, score)


def of_experts(
    model: Architecture, p: Params, seen: Seen | None, count: int, score: Score, rng: Any
) -> np.ndarray:
    """The indices of a layer's remaining experts."""
    if count == model.experts:
        return np.arange(count)
    if score == "random":
        return np.sort(rng.permutation(model.experts)[:count])
    if seen is None or score == "magnitude":
        return largest(scores.magnitudes(p, "experts"), count)
    return largest(seen.experts, count)


def of_inputs(
    kernel: np.ndarray, inputs: np.ndarray, width: int, count: int, score: Score
) -> np.ndarray:
    """The `count` units with the largest scores on text; a unit is `width` inputs of `kernel`."""
    if count == kernel.shape[1] // width:
        return np.arange(count)
    if score == "reconstruction":
        return scores.reconstruction(kernel, gram(inputs, inputs), width, count)
    square = np.square(inputs).sum(0)
    return largest(scores.projection_scores(score, kernel, square, width), count)


def gram(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The matrix Σ a bᵀ, summed over rows a and b of two matrices, in float32 on the device."""
    return np.asarray(jnp.matmul(jnp.asarray(a).T, jnp.asarray(b), precision="highest"))


def product(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """The matrix product of `x` and a kernel of shape (inputs, outputs), on the device."""
    return np.asarray(jnp.matmul(jnp.asarray(x), jnp.asarray(kernel), precision="highest"))


def hidden_scores(
    model: Architecture, p: Params, seen: Seen | None, score: Score
) -> Float[np.ndarray, " hidden"]:
    """The contribution of one layer to the scores of the residual stream's channels.

    If the score is `reconstruction`, the score `wanda` is used instead.
    """
    if score == "random":
        return np.zeros(model.hidden)
    if seen is None or score == "magnitude":
        return scores.magnitudes(p, "hidden")
    sizes = {name: np.sqrt(square) for name, square in seen.squares.items()}
    if score == "activation":
        return np.sum(list(sizes.values()), 0)
    return np.sum([scores.readers(p, name) * size for name, size in sizes.items()], 0)
