"""Sections 1 and 3.3, with claims on depth, on vanishing gradients and on the bound 2."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from claims.unitization.experiments import SHIFT
from geometry.claims import Claim, Remark, Result, Values
from jaxnorm import shift

claim = partial(Claim, "Unitization")


def by_layer(found: Any) -> str:
    """A sentence with the mean shift W of two layers before the first drop of the learning rate."""
    first = found["settings"]["drops"][0]
    epochs = round(first * found["settings"]["epochs"]) if first < 1 else first
    said = []
    for run in found["runs"]:
        if run["seed"] == 0 and run["schedule"] == "drops":
            layers = run["shift"]["whole set"]
            means = {name: np.mean(layer["exact"][:epochs]) for name, layer in layers.items()}
            kind = "batch norm" if run["normalization"] == "batch_norm" else "unitization"
            said.append(
                f"{means['norms.4']:.2f} in layer 5 and {means['norms.10']:.2f} in layer 11 "
                f"({kind}, {run['order']})"
            )
    return (
        "the distance between the outputs of a layer before and after an epoch, averaged over the "
        f"epochs before the first drop of the learning rate, is {'; '.join(said)}; one dense "
        "network of each kind, on MNIST"
    )


DEPTH = claim(
    "Section 1, divergence by depth",
    "The distance between the outputs of two iterations grows with the number of layers",
    printed="Section 1: “the divergence will become much larger with increase of the number of "
    "network layers”",
    results=(Result(by_layer, "no number", SHIFT),),
    reason="The statement is about networks in training without normalization. All our networks "
    "have a normalization in every layer.",
)

LAYERS, WIDTH, RATE = 20, 16, 0.1
Weights = list[Float[Array, "m n"]]


def _outputs(weights: Weights, x: Float[Array, "n m"]) -> Weights:
    """The outputs of every layer of a network with sigmoids and a linear last layer."""
    found = []
    for i, w in enumerate(weights):
        x = x @ w
        x = x if i == len(weights) - 1 else jax.nn.sigmoid(x)
        found.append(x)
    return found


def _distances(key: Key[Array, ""], target: float | None) -> list[float]:
    """For every layer, the earth mover distance between outputs before and after a gradient step.

    The loss is the squared difference from `target`. If `target` is None, the target is the
    network's own output, so the gradient is zero.
    """
    keys = jax.random.split(key, LAYERS + 1)
    weights = [jax.random.normal(k, (WIDTH, WIDTH)) / WIDTH**0.5 for k in keys[:-1]]
    x = jax.random.normal(keys[-1], (32, WIDTH))
    before = _outputs(weights, x)
    wanted = before[-1] if target is None else jnp.full_like(before[-1], target)
    gradient = jax.grad(lambda w: jnp.mean((_outputs(w, x)[-1] - wanted) ** 2))(weights)
    after = _outputs([w - RATE * g for w, g in zip(weights, gradient, strict=True)], x)
    return [float(shift.emd(a, b)) for a, b in zip(before, after, strict=True)]


VANISHING = claim(
    "Section 1, vanishing gradients",
    "If gradients vanish, no output moves, and the distance between two iterations is 0",
    printed="Section 1: “in the case of gradient vanishing, the ICS is totally eliminated”",
    remark=Remark(
        "hypothesis",
        "If gradients vanish only in the first layers, the last layers still learn, so the "
        "outputs of the last layers change.",
    ),
    why="In a network of 20 sigmoid layers, the movement of the first layer's outputs is less "
    "than a billionth of the movement of the last layer's outputs.",
)


@VANISHING.equal("no gradient in any layer: no output moves")
def _(key: Key[Array, ""]) -> Values:
    return _distances(key, None)


@VANISHING.at_most("20 sigmoid layers: the first moves by 10⁻⁹ of the last at most", 1e-9)
def _(key: Key[Array, ""]) -> Values:
    distances = _distances(key, 1.0)
    return distances[0] / distances[-1]


@VANISHING.at_most("20 sigmoid layers: the last one's outputs move by 10⁻³", 1e-3, form="overread")
def _(key: Key[Array, ""]) -> Values:
    return _distances(key, 1.0)[-1]


BOUND_2 = claim(
    "Section 3.3, the bound 2",
    "Unitized outputs stay within the distance 2 of the outputs at the start of training",
    printed="Section 3.3: “This might be a severe problem, especially when the network is poorly "
    "initialized”",
    remark=Remark(
        "over-reading",
        "The paper says that the bound 2 of $W$ “might be a severe problem”. Unitized outputs lie "
        "on the unit sphere, which has the diameter 2, so all unitized outputs satisfy the bound "
        "2.",
    ),
    why="Two points of the unit sphere are at most 2 apart, and opposite points are 2 apart.",
)


@BOUND_2.equal("opposite points attain 2, so that the bound excludes no pair", 2.0)
def _(key: Key[Array, ""]) -> Values:
    direction = jax.random.normal(key, (1, 8))
    point = direction / jnp.linalg.norm(direction)
    return float(shift.emd(point, -point))
