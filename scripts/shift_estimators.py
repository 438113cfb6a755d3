"""How near four estimates of the earth mover distance come, on pairs whose distance is known.

    python scripts/shift_estimators.py           # about ten minutes on 2 cores

Gaussians that are shifted, Gaussians of two scales and the unbounded example of the unitization
paper have laws with known distances; for the outputs of a real layer (before and after an epoch of
training on the digits) the exact distance of the test samples stands in. Each estimate sees 2,000
training and 500 test samples, afresh for every seed. Writes OUT and prints the table: mean ±
standard deviation over seeds of estimate minus distance, over the distance; of Algorithm 3, which
is too small by orders of magnitude, what part of the distance it is.
"""

import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import covariate_shift
from experiments import cli
from experiments.data import datasets
from experiments.training import recipes, trainer
from jaxnorm.shift import emd, emd_critic, emd_lower_bound, emd_sliced, mean_projection

TRAIN, TEST = 2000, 500
Sample = Float[Array, "n d"]


class Case(NamedTuple):
    name: str
    draw: Callable[[Key[Array, ""], int], tuple[Sample, Sample]]
    distance: float | None  # of the laws; None: of the test samples


def main(seeds: int = 5, steps: int = 1500, out: Path = Path("out/shift_estimators.json")) -> None:
    """Measure bias and spread of the critic, its certified successor, slices and exact distance.

    Args:
      seeds: Independent samples and initializations, at least 2.
      steps: Of training of both critics, at least 1; the paper's are 1,500.
      out: File for the numbers.
    """
    cli.at_least(1, steps=steps)
    cli.at_least(2, seeds=seeds)
    found = list(cases())
    table = Table(title=f"(estimate − distance) / distance: mean ± sd of {seeds} seeds")
    for column in ("pair", "distance", "exact", "slices", "lower bound", "Algorithm 3"):
        table.add_column(column, justify="left" if column == "pair" else "right")
    results = []
    with Progress(console=Console(stderr=True)) as progress:
        for case in progress.track(found, description="measuring"):
            result = measured(case, seeds, steps)
            results.append(result)
            cells = [
                f"{e['bias']:+.3f} ± {e['spread']:.3f}"
                for e in list(result["estimates"].values())[:3]
            ]
            critic = f"{1 + result['estimates']['Algorithm 3']['bias']:.1e} of it"
            table.add_row(case.name, f"{result['distance']:.3f}", *cells, critic)
    Console(width=120).print(table)
    written = cli.provenance(__file__) | {
        "settings": {"seeds": seeds, "steps": steps, "train": TRAIN, "test": TEST},
        "pairs": results,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(written, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def measured(case: Case, seeds: int, steps: int) -> dict:
    """Bias and spread of every estimate, relative to the distance."""
    keys = jax.random.split(jax.random.key(0), (seeds, 4))
    train, test = ([case.draw(key[i], size) for key in keys] for i, size in ((0, TRAIN), (1, TEST)))
    samples = [jnp.stack(part) for pairs in (train, test) for part in zip(*pairs, strict=True)]
    exact = np.array([emd(x, y) for x, y in test])
    sliced = jax.jit(jax.vmap(emd_sliced))(keys[:, 2], *samples[2:])
    critics = [
        jax.jit(jax.vmap(partial(critic, steps=steps)))(keys[:, 3], *samples)
        for critic in (emd_lower_bound, emd_critic)
    ]
    truth = exact if case.distance is None else np.full(seeds, case.distance)
    values = {
        "exact": exact,
        "slices": np.asarray(sliced.distance) / mean_projection(samples[0].shape[-1]),
        "lower bound": np.asarray(critics[0]),
        "Algorithm 3": np.asarray(critics[1]),
    }
    errors = {name: np.asarray(value, np.float64) / truth - 1 for name, value in values.items()}
    return {
        "name": case.name,
        "distance": float(truth.mean()),
        "estimates": {
            name: {
                "bias": float(e.mean()),
                "spread": float(e.std(ddof=1)),
                "values": np.asarray(values[name], np.float64).tolist(),
            }
            for name, e in errors.items()
        },
    }


def cases() -> Iterator[Case]:
    def gaussians(
        key: Key[Array, ""], n: int, *, dims: int, shift: float, scale: float
    ) -> tuple[Sample, Sample]:
        x, y = jax.random.normal(key, (2, n, dims))
        return x, scale * y + shift / dims**0.5

    def unbounded(key: Key[Array, ""], n: int, *, dims: int) -> tuple[Sample, Sample]:
        x, y = jax.random.uniform(key, (2, n, dims))
        return 5 + 5 * x, 2.5 * y  # C' = 10

    for dims in (1, 8, 64, 512):
        for shift in (0.5, 2.0, 8.0):
            draw = partial(gaussians, dims=dims, shift=shift, scale=1.0)
            yield Case(f"Gaussians, d = {dims}, shift {shift:g}", draw, shift)
    for dims in (2, 64):
        draw = partial(gaussians, dims=dims, shift=0.0, scale=2.0)
        logs = math.lgamma((dims + 1) / 2) - math.lgamma(dims / 2)
        yield Case(f"Gaussians, d = {dims}, scales 1 and 2", draw, 2**0.5 * math.exp(logs))
    yield Case("unbounded example, d = 1", partial(unbounded, dims=1), 6.25)
    yield Case("layer of 8 units, one epoch", real_layer(), None)


def real_layer() -> Callable[[Key[Array, ""], int], tuple[Sample, Sample]]:
    """Draws digits and gives the last normalization's outputs before and after an epoch."""
    images = datasets.load("digits")
    recipe = recipes.replace(recipes.PRESETS["digits-mlp"][1], epochs=6, momentum=0.0, drops=())
    layers = covariate_shift.layers_of(recipe, images)
    program = trainer.trainer(recipe, images, trainer.mesh_of(1))
    every = jnp.asarray(np.concatenate([images.x_train, images.x_test]))
    *_, before, after = (
        layers(state, every)[covariate_shift.LAYERS[-1]]
        for state in covariate_shift.trained(program, recipe, seed=0)
    )

    def draw(key: Key[Array, ""], n: int) -> tuple[Sample, Sample]:
        index = jax.random.randint(key, (n,), 0, len(every))
        return before[index], after[index]

    return draw


if __name__ == "__main__":
    cli.run(main)
