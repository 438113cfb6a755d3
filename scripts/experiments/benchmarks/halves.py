"""Compare the times of pruned and whole networks, with half of all multiply-accumulates removed.

The networks are ResNet-50 and VGG-16. The name of a row includes the ideal ratio of times, which is
the ratio of multiply-accumulates. The ideal ratio, divided by the measured ratio, is the share of
the ideal speed-up that the pruned network reaches.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import pruning
from experiments.benchmarks.timing import Pair
from jaxnorm import models

BUILD: dict[str, Callable[[nnx.Rngs], nnx.Module]] = {
    "ResNet-50": lambda rngs: models.ResNet(50, classes=1000, rngs=rngs),
    "VGG-16": lambda rngs: models.VGG(16, classes=1000, rngs=rngs),
}
SIDE = 224
BATCHES = (1, 32)
RUNS = 10  # the largest number of timed calls, which is small because a call takes seconds
ROUND_TO = MIN_CHANNELS = 16
# if this share of the channels of each group is removed, half of the multiply-accumulates remain
UNIFORM = 0.29


def groups() -> dict[str, Callable[[], list[Pair]]]:
    what = "with half of its multiply-accumulates, compared with the whole network"
    return {f"{name} {what}": partial(pairs, name) for name in BUILD}


def evaluation(model: nnx.Module) -> tuple[Callable[..., Any], Any]:
    """A function from a state and images to logits, and the state of the model."""
    graph, state = nnx.split(nnx.view(model, use_running_average=True))
    return lambda state, x: nnx.merge(graph, state)(x), state


def pairs(name: str) -> list[Pair]:
    """Pairs to time the whole network and networks with half of its multiply-accumulates."""
    apply, whole = evaluation(BUILD[name](nnx.Rngs(0)))
    image = jnp.zeros((1, SIDE, SIDE, 3), jnp.float32)
    macs = pruning.cost(apply, whole, image).macs
    within = partial(pruning.channels.select_within, min_channels=MIN_CHANNELS)
    prune = partial(pruning.prune, apply, whole, image, fold=False)
    small = {
        "29 % of every group": prune(ratios=[UNIFORM]),
        "a budget": prune(budget=0.5, select=within),
        f"a budget, multiples of {ROUND_TO}": prune(budget=0.5, select=within, round_to=ROUND_TO),
    }
    run, timed = jax.jit(apply), []
    for batch in BATCHES:
        x = jax.random.normal(jax.random.key(0), (batch, SIDE, SIDE, 3), jnp.float32)
        for how, pruned in small.items():
            half = pruned.params
            ideal = pruning.cost(apply, half, image).macs / macs
            label = f"{how}, batch {batch}, ideal {ideal:.3f}"
            timed.append(Pair(label, partial(run, half, x), partial(run, whole, x), runs=RUNS))
    return timed
