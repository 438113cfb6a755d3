"""Redraws Figures 2 and 3 of the unitization paper: moments and shift of layers through training.

    python scripts/covariate_shift.py                                # digits, about a minute
    python scripts/covariate_shift.py --dataset mnist --data-dir DIR --epochs 60    # 15 minutes

The paper's dense network (ten layers of 100 units, one of 8) is trained with batch norm and with
unitized batch norm from the same weights, at a learning rate that is divided by 5 at 30, 60 and
80 % of the epochs, and again at a constant one: only the second tells whether a fall of the shift
comes from the layer or from the step. After every epoch a tracker measures, on test images, how far
two layers' outputs moved, and moments are streamed over all training images. OUT/index.html shows
it, OUT/results.json holds every number. Finished networks are kept in OUT/runs; a run that is
stopped goes on after the last of them. Nothing is downloaded.
"""

import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int
from optax import softmax_cross_entropy_with_integer_labels as cross_entropy
from rich.console import Console
from rich.progress import Progress

import command
import data
import jaxnorm
import shift_page
from data import Images
from jaxnorm.shift import Tracker, stream_moments
from page import plain, write
from reproduce import described
from training import ARMS, CHUNK, DROPS, RUNNING_MOMENTUM, accuracy

LAYERS = ("norms.4", "norms.10")
SCHEDULES = ("drops", "constant")


class Settings(NamedTuple):
    """What decides the numbers of a network."""

    dataset: str
    epochs: int
    batch_size: int
    exact: int
    probe: int = 1000
    learning_rate: float = 0.05


class State(NamedTuple):
    params: Any
    statistics: Any


class Program(NamedTuple):
    """One arm's compiled functions."""

    start: Callable[[int], State]
    epoch: Callable[..., tuple[State, Array]]
    logits: Callable[[State, Array], Array]
    layers: Callable[[State, Array], dict[str, Array]]


def main(
    dataset: str = "digits",
    data_dir: Path | None = None,
    epochs: int = 40,
    seeds: int = 3,
    batch_size: int = 128,
    exact: int = 400,
    out: Path = Path("out/shift"),
) -> None:
    """Follow moments and shift of a network's layers through training.

    Args:
      dataset: digits, mnist, fashion_mnist, cifar10 or cifar100.
      data_dir: Folder that holds the data set in tensorflow-datasets' format; digits need none.
      epochs: Passes over the training images, at least 2.
      seeds: Networks for each of two normalizations and two schedules, at least 1.
      batch_size: Images a step, at least 2.
      exact: Test images of which exact joint distances are computed, at least 2.
      out: Folder for the page, its numbers and finished networks.
    """
    command.at_least(1, seeds=seeds)
    command.at_least(2, epochs=epochs, batch_size=batch_size, exact=exact)
    start = time.perf_counter()
    images = data.load(dataset, data_dir)
    settings = Settings(dataset, epochs, batch_size, exact)
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("training", total=len(ARMS) * len(SCHEDULES) * seeds * epochs)

        def tell(label: str, epochs: int) -> None:
            progress.update(task, description=label, advance=epochs)

        runs = {arm: train_all(arm, images, settings, seeds, out, tell) for arm in ARMS}
    results = command.provenance(__file__) | {
        "settings": settings._asdict() | {"seeds": seeds, "running_momentum": RUNNING_MOMENTUM},
        "data": described(images, settings.probe),
        "seconds": time.perf_counter() - start,
        "learning_rate": {
            schedule: [rate(settings, schedule, epoch) for epoch in range(epochs)]
            for schedule in SCHEDULES
        },
        "runs": runs,
    }
    results["findings"] = shift_page.findings(results)
    write(results, shift_page.render(results), out)
    for sentence in shift_page.sentences(results):
        print(sentence)
    print(f"Open {(out / 'index.html').resolve()}")


def train_all(
    arm: str,
    images: Images,
    settings: Settings,
    seeds: int,
    out: Path,
    tell: Callable[[str, int], None],
) -> dict[str, list[list[dict]]]:
    """Every network of one arm, by schedule and seed; finished ones are read, not trained."""
    functions, found = program(arm, images), {schedule: [] for schedule in SCHEDULES}
    for schedule, seed in itertools.product(SCHEDULES, range(seeds)):
        label = f"{arm.replace('_', ' ')}, {schedule}, seed {seed + 1} of {seeds}"
        finished = out / "runs" / f"{digest(settings)}-{arm}-{schedule}-{seed}.json"
        tell(label, 0)
        if finished.exists():
            run = json.loads(finished.read_text(encoding="utf-8"))
            tell(label, settings.epochs)
        else:
            run = []
            for line in train(functions, images, settings, schedule, seed):
                run.append(plain(line))
                tell(label, 1)
            finished.parent.mkdir(parents=True, exist_ok=True)
            unfinished = finished.with_suffix(".unfinished")
            unfinished.write_text(json.dumps(run), encoding="utf-8")
            unfinished.replace(finished)
        found[schedule].append(run)
    return found


def digest(settings: Settings) -> str:
    """Of what decides the numbers: settings, code and versions."""
    code = [Path(__file__), *sorted(Path(jaxnorm.__file__).parent.rglob("*.py"))]
    decisive = json.dumps([settings, jax.__version__])
    found = hashlib.sha256(decisive.encode())
    for path in code:
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


def rate(settings: Settings, schedule: str, epoch: int) -> float:
    """Learning rate of the 0-based `epoch`."""
    passed = sum(epoch * of >= part * settings.epochs for part, of in DROPS)
    return settings.learning_rate / 5 ** (passed if schedule == "drops" else 0)


def program(arm: str, images: Images) -> Program:
    inputs = math.prod(images.x_train.shape[1:])

    def build(arm: str, seed: int) -> jaxnorm.models.MLP:
        norm = partial(ARMS[arm], momentum=RUNNING_MOMENTUM)
        rngs = nnx.Rngs(jax.random.key(seed))
        return jaxnorm.models.MLP(inputs=inputs, classes=images.classes, norm=norm, rngs=rngs)

    model = nnx.eval_shape(lambda: build(arm, 0))
    training = nnx.graphdef(model)
    inference = nnx.graphdef(nnx.view(model, use_running_average=True))

    def start(seed: int) -> State:
        model = build(arm, seed)
        # Both arms start from batch norm's weights.
        nnx.update(model, nnx.state(build("batch_norm", seed), nnx.Param))
        return State(*nnx.split(model, nnx.Param, nnx.BatchStat)[1:])

    def step(
        state: State, x: Float[Array, "n h w c"], y: Int[Array, " n"], rate: Float[Array, ""]
    ) -> tuple[State, Array]:
        def loss(params: Any) -> tuple[Array, Any]:
            model = nnx.merge(training, params, state.statistics, copy=True)
            return cross_entropy(model(x), y).mean(), nnx.state(model, nnx.BatchStat)

        (value, statistics), gradient = jax.value_and_grad(loss, has_aux=True)(state.params)
        params = jax.tree.map(lambda p, g: p - rate * g, state.params, gradient)
        return State(params, statistics), value

    @jax.jit
    def epoch(
        state: State, x: Array, y: Array, order: Int[Array, "steps batch"], rate: Array
    ) -> tuple[State, Array]:
        state, losses = jax.lax.scan(lambda s, i: step(s, x[i], y[i], rate), state, order)
        return state, losses.mean()

    def frozen(state: State) -> jaxnorm.models.MLP:
        return nnx.merge(inference, *state, copy=True)

    return Program(
        start,
        epoch,
        jax.jit(lambda state, x: frozen(state)(x)),
        jax.jit(lambda state, x: jaxnorm.nnx.layer_outputs(frozen(state), LAYERS, x)),
    )


def train(
    functions: Program, images: Images, settings: Settings, schedule: str, seed: int
) -> Iterator[dict[str, Any]]:
    """Trains one network; after every epoch, what was measured."""
    x, probe = jnp.asarray(images.x_train), jnp.asarray(images.x_test[: settings.probe])
    tracker = Tracker(functions.layers, probe, exact=settings.exact)
    tracker.update(functions.start(seed))
    for state, loss in trained(functions, images, settings, schedule, seed):
        yield {
            "loss": loss,
            "accuracy": accuracy(partial(functions.logits, state), images.x_test, images.y_test),
            "shift": {
                name: found["shift"] | {"channels": float(np.mean(found["shift"]["channels"]))}
                for name, found in tracker.update(state).items()
            },
            "tracker_seconds": tracker.seconds,
            "moments": stream_moments(partial(functions.layers, state), chunks(x))[
                LAYERS[-1]
            ]._asdict(),
        }


def trained(
    functions: Program, images: Images, settings: Settings, schedule: str, seed: int
) -> Iterator[tuple[State, float]]:
    """State and loss after every epoch."""
    x, y = jnp.asarray(images.x_train), jnp.asarray(images.y_train)
    state, size = functions.start(seed), min(settings.batch_size, len(x))
    for epoch in range(settings.epochs):
        order = np.random.default_rng((seed, epoch)).permutation(len(x))
        order = order[: len(order) - len(order) % size].reshape(-1, size)
        now = rate(settings, schedule, epoch)
        state, loss = functions.epoch(state, x, y, jnp.asarray(order), jnp.float32(now))
        yield state, float(loss)


def chunks(x: Float[Array, "n h w c"]) -> Iterator[Float[Array, "m h w c"]]:
    for i in range(0, len(x), CHUNK):
        yield x[i : i + CHUNK]


if __name__ == "__main__":
    command.run(main, again="start again to go on after the last finished network")
