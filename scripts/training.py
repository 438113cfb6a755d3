"""Training one network so that a killed run goes on where it was, to the last bit."""

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jaxtyping import Array, Float, Int

import jaxnorm
from command import InputError
from data import Images

ARMS: Mapping[str, Callable] = {
    "batch_norm": jaxnorm.nnx.BatchNorm,
    "unitized": jaxnorm.nnx.UnitizedBatchNorm,
}
# Of the running statistics. Flax's 0.99 would still hold last epoch's after a few hundred steps.
RUNNING_MOMENTUM = 0.9
DROPS = ((3, 10), (6, 10), (8, 10))  # of the epochs: 60, 120 and 160 of the paper's 200
CHUNK = 500
BETWEEN_CHECKPOINTS = 5.0  # seconds; a network's last epoch is always kept


class Settings(NamedTuple):
    """What decides the numbers of a run."""

    dataset: str
    epochs: int
    seeds: int
    batch_size: int
    depth: int
    learning_rate: float = 0.05
    weight_decay: float = 5e-4
    momentum: float = 0.9
    probe: int = 1000


class State(NamedTuple):
    """What a step changes: parameters, running statistics, SGD's velocity."""

    params: Any
    statistics: Any
    optimizer: Any


class History(NamedTuple):
    """What is measured at every epoch; entry 0 of moments is the untrained network."""

    loss: np.ndarray  # (epochs,)
    accuracy: np.ndarray  # (epochs,), on all test images
    moments: np.ndarray  # (epochs + 1, 4, channels)
    distances: np.ndarray  # (epochs, channels), from one epoch to the next


class Program(NamedTuple):
    """One arm's compiled functions, shared by its seeds."""

    start: Callable[[int], State]
    step: Callable[..., tuple[State, Array]]
    logits: Callable[[State, Array], Array]
    outputs: Callable[[State, Array], Array]


def write_settings(folder: Path, settings: Settings) -> None:
    """Say beside the checkpoints of a run what decided its numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(settings._asdict(), indent=1) + "\n"
    (folder / "settings.json").write_text(text, encoding="utf-8")


def read_settings(folder: Path) -> Settings:
    """What decided the numbers of the run in `folder`."""
    try:
        return Settings(**json.loads((folder / "settings.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"the run must be a folder that scripts/reproduce.py made, with its settings.json; "
            f"got {folder} ({type(error).__name__})"
        ) from error


def learning_rate(settings: Settings, epoch: int) -> float:
    """Rate of the 0-based `epoch`: divided by 5 at 30, 60 and 80 % of the epochs."""
    passed = sum(epoch * of >= part * settings.epochs for part, of in DROPS)
    return settings.learning_rate / 5**passed


def network(
    arm: str, images: Images, settings: Settings, seed: int, running: float = RUNNING_MOMENTUM
) -> nnx.Module:
    """The untrained network of one arm."""
    return jaxnorm.models.PreActResNet(
        settings.depth,
        classes=images.classes,
        channels=images.x_train.shape[-1],
        norm=partial(ARMS[arm], momentum=running),
        rngs=nnx.Rngs(jax.random.key(seed)),
    )


def program(arm: str, images: Images, settings: Settings) -> Program:
    """Compiled functions to train and measure the network of one arm."""

    def build(arm: str, seed: int, running: float = RUNNING_MOMENTUM) -> nnx.Module:
        return network(arm, images, settings, seed, running)

    optimizer = optax.chain(
        optax.add_decayed_weights(
            settings.weight_decay, mask=partial(jax.tree.map, lambda p: p.ndim > 1)
        ),
        optax.trace(settings.momentum, nesterov=True),
    )
    model = nnx.eval_shape(lambda: build(arm, 0))
    training = nnx.graphdef(model)
    inference = nnx.graphdef(nnx.view(model, use_running_average=True))
    # With momentum 0 one forward pass sets the running statistics to those of the sample.
    first_pass = nnx.graphdef(nnx.eval_shape(lambda: build(arm, 0, running=0.0)))
    sample = jnp.asarray(images.x_train[:CHUNK])

    def start(seed: int) -> State:
        # Every arm starts from batch norm's weights, whatever its layers drew for themselves.
        model = build(arm, seed)
        nnx.update(model, nnx.state(build("batch_norm", seed), nnx.Param))
        _, params, statistics = nnx.split(model, nnx.Param, nnx.BatchStat)
        return State(params, statistics_of_sample(params, statistics), optimizer.init(params))

    @jax.jit
    def statistics_of_sample(params: Any, statistics: Any) -> Any:
        model = nnx.merge(first_pass, params, statistics, copy=True)
        model(sample)
        return nnx.state(model, nnx.BatchStat)

    @partial(jax.jit, donate_argnums=0)
    def step(
        state: State, x: Float[Array, "n h w c"], y: Int[Array, " n"], rate: Float[Array, ""]
    ) -> tuple[State, Array]:
        def loss(params: Any) -> tuple[Array, Any]:
            model = nnx.merge(training, params, state.statistics, copy=True)
            losses = optax.softmax_cross_entropy_with_integer_labels(model(x), y)
            return losses.mean(), nnx.state(model, nnx.BatchStat)

        (value, statistics), gradient = jax.value_and_grad(loss, has_aux=True)(state.params)
        updates, velocity = optimizer.update(gradient, state.optimizer, state.params)
        params = jax.tree.map(lambda p, u: p - rate * u, state.params, updates)
        return State(params, statistics, velocity), value

    def frozen(state: State) -> Any:
        return nnx.merge(inference, state.params, state.statistics)

    return Program(
        start,
        step,
        jax.jit(lambda state, x: frozen(state)(x)),
        jax.jit(lambda state, x: frozen(state).last_normalized(x)),
    )


def accuracy(logits: Callable[[Array], Array], x: np.ndarray, y: np.ndarray) -> float:
    """Fraction of `x` that is classified as `y`, over every image, in chunks of one shape."""
    right = 0
    for i in range(0, len(x), CHUNK):
        part, labels = x[i : i + CHUNK], y[i : i + CHUNK]
        padded = np.pad(part, [(0, min(CHUNK, len(x)) - len(part)), *[(0, 0)] * (x.ndim - 1)])
        predicted = np.asarray(logits(jnp.asarray(padded))).argmax(-1)[: len(part)]
        right += int((predicted == labels).sum())
    return right / len(x)


def train(
    functions: Program,
    images: Images,
    settings: Settings,
    seed: int,
    folder: Path,
    on_epoch: Callable[[int], None],
) -> tuple[State, History]:
    """Train from `seed`, or from the newest checkpoint in `folder`, and measure every epoch.

    Args:
      functions: Of the arm to train.
      images: Training and test images.
      settings: As at the time of the checkpoint.
      seed: Decides the initial weights and the order of the images.
      folder: Where the newest checkpoint is kept.
      on_epoch: Called with the number of finished epochs, restored ones included.
    """
    probe = jnp.asarray(images.x_test[: settings.probe])
    state = functions.start(seed)
    outputs = functions.outputs(state, probe)
    history = _empty_history(settings.epochs, outputs)
    done = 0
    with _checkpoints(folder) as checkpoints:
        if (newest := checkpoints.latest_step()) is not None:
            saved = _restore(checkpoints, newest, {"state": state, "history": history}, folder)
            state, history, done = saved["state"], saved["history"], newest
            history = jax.tree.map(np.array, history)
            outputs = functions.outputs(state, probe)
        on_epoch(done)
        saved_at = time.monotonic()
        for epoch in range(done, settings.epochs):
            state, loss = one_epoch(functions, images, settings, seed, epoch, state)
            before, outputs = outputs, functions.outputs(state, probe)
            history.loss[epoch] = loss
            history.accuracy[epoch] = accuracy(
                partial(functions.logits, state), images.x_test, images.y_test
            )
            history.moments[epoch + 1] = _moments(outputs)
            history.distances[epoch] = _distances(before, outputs)
            if epoch + 1 == settings.epochs or time.monotonic() - saved_at > BETWEEN_CHECKPOINTS:
                tree = {"state": state, "history": history}
                checkpoints.save(epoch + 1, args=ocp.args.StandardSave(jax.tree.leaves(tree)))
                saved_at = time.monotonic()
            on_epoch(epoch + 1)
    return state, history


def one_epoch(
    functions: Program, images: Images, settings: Settings, seed: int, epoch: int, state: State
) -> tuple[State, float]:
    """One pass over the shuffled images, less the remainder that fills no batch."""
    # A loop of compiled steps: XLA's CPU back end runs convolutions in a scan 4 to 17 times slower.
    order = np.random.default_rng((seed, epoch)).permutation(len(images.x_train))
    size = min(settings.batch_size, len(order))
    rate = jnp.float32(learning_rate(settings, epoch))
    losses = []
    for i in range(0, len(order) - size + 1, size):
        batch = order[i : i + size]
        state, loss = functions.step(state, images.x_train[batch], images.y_train[batch], rate)
        losses.append(loss)
    return state, float(np.mean(jax.device_get(losses), dtype=np.float64))


@jax.jit
def _moments(outputs: Float[Array, "n h w c"]) -> Float[Array, "4 c"]:
    return jnp.stack(jaxnorm.moments(outputs, axis=(0, 1, 2)))


@jax.jit
def _distances(
    before: Float[Array, "n h w c"], after: Float[Array, "n h w c"]
) -> Float[Array, " c"]:
    return jaxnorm.shift.emd_1d(
        *(outputs.reshape(-1, outputs.shape[-1]) for outputs in (before, after))
    )


def _empty_history(epochs: int, outputs: Float[Array, "n h w c"]) -> History:
    channels = outputs.shape[-1]
    history = History(
        np.zeros(epochs),
        np.zeros(epochs),
        np.zeros((epochs + 1, 4, channels), np.float32),
        np.zeros((epochs, channels), np.float32),
    )
    history.moments[0] = _moments(outputs)
    return history


def _checkpoints(folder: Path) -> ocp.CheckpointManager:
    # Not in the background: the next step reuses the buffers that are being written.
    options = ocp.CheckpointManagerOptions(
        max_to_keep=1, cleanup_tmp_directories=True, enable_async_checkpointing=False
    )
    return ocp.CheckpointManager(folder.resolve(), options=options)


def _restore(checkpoints: ocp.CheckpointManager, step: int, like: Any, folder: Path) -> Any:
    """The tree of which `train` saved the leaves, in the structure of `like`."""
    leaves, structure = jax.tree.flatten(like)
    try:
        saved = checkpoints.restore(step, args=ocp.args.StandardRestore(leaves))
    except Exception as error:  # Orbax and TensorStore raise many kinds
        raise InputError(
            f"the checkpoint {folder / str(step)} must be whole and of these settings; it cannot "
            f"be read ({type(error).__name__}): delete {folder} to train that network anew"
        ) from error
    return jax.tree.unflatten(structure, saved)
