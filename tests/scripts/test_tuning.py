"""What is done to trained networks before and after they are pruned, with made-up programs."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from experiments.measures import tuning
from experiments.recipes import Recipe
from experiments.training.step import State
from tests.support.small_runs import random_images

RECIPE = Recipe(
    dataset="made", model="resnet8", epochs=10, learning_rate=0.5, drops=(0.3, 0.65, 0.85)
)

pytestmark = pytest.mark.usefixtures("users_jax")


@pytest.fixture
def images():
    return random_images()


class MadeUpTrainer:
    """Trains by adding one to every parameter an epoch."""

    def __init__(self, recipe: Any = RECIPE, images: Any = None, mesh: Any = None):
        self.recipe, self.images, self.mesh, self.steps = recipe, images, mesh, 5
        self.optimizer = optax.sgd(0.1, momentum=0.9)

    def init_state(self, seeds):
        params = {"w": jnp.full(2, 10.0 + seeds[0])}
        trace = optax.tree.set(self.optimizer.init(params), trace={"w": jnp.ones(2)})
        return State(params, {"mean": jnp.zeros(2)}, trace, jnp.int32(0), jnp.float32(0))

    def evaluate(self, state):
        return [{"accuracy": (state.params, state.statistics)}]


def made_up_network(images, seed=3) -> Any:
    programs: Any = SimpleNamespace(
        trainer=MadeUpTrainer(), fine_tuner=MadeUpTrainer(), graph="graph", logits="logits"
    )
    return tuning.Network(images, programs, programs.trainer.init_state((seed,)), seed)


def test_a_network_is_its_parameters_and_statistics(images):
    network = made_up_network(images)
    assert network.tree == {"params": network.state.params, "statistics": network.state.statistics}
    assert network.apply == "logits"
    assert network.accuracy({"params": "w", "statistics": "mean"}) == ("w", "mean")


def test_fine_tuning_begins_without_momentum_and_leaves_its_tree_alone(images, monkeypatch):
    seen = []

    def epochs(trainer, state, seeds):
        seen.append((trainer, seeds, optax.tree.get(state.optimizer, "trace"), state))
        for i in (1, 2):
            params = jax.tree.map(lambda p, i=i: p + i, state.params)
            yield SimpleNamespace(state=state._replace(params=params, statistics={"mean": i}))
        jax.tree.map(lambda p: p.delete(), state.params)  # donated

    monkeypatch.setattr(tuning.chunks, "epochs", epochs)
    network = made_up_network(images)
    tree = {"params": {"w": jnp.array([1.0, 2.0, 3.0])}, "statistics": {"mean": jnp.zeros(3)}}
    tuned = network.fine_tuned(tree)
    np.testing.assert_array_equal(tuned["params"]["w"], [3, 4, 5])
    assert tuned["statistics"] == {"mean": 2}
    ((trainer, seeds, trace, state),) = seen
    assert trainer is network.programs.fine_tuner
    assert seeds == (3,)
    np.testing.assert_array_equal(trace["w"], [0, 0, 0])
    assert state.statistics["mean"].shape == (3,)
    np.testing.assert_array_equal(tree["params"]["w"], [1, 2, 3])


@pytest.mark.parametrize(
    ("size", "most", "sizes"),
    [(30, 10, [30, 30]), (500, 10, [70]), (7, 10, 10 * [7]), (35, 1, [35])],
)
def test_statistics_are_taken_from_whole_batches_of_training_images(
    images, monkeypatch, size, most, sizes
):
    monkeypatch.setattr(tuning, "RECALIBRATION_IMAGES", size)
    monkeypatch.setattr(tuning, "RECALIBRATION_BATCHES", most)
    seen: list[Any] = []
    monkeypatch.setattr(tuning, "recalibrate", lambda model, batches: seen.extend(batches))
    network = made_up_network(images)
    model = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
    graph, params, statistics = nnx.split(model, nnx.Param, nnx.BatchStat)
    network.programs.graph = graph
    found = network.recalibrated({"params": params, "statistics": statistics})
    assert [len(batch) for batch in seen] == sizes
    assert all(isinstance(batch, jax.Array) for batch in seen)
    np.testing.assert_array_equal(np.concatenate(seen), images.x_train[: sum(sizes)])
    assert found["params"] is params


def test_a_network_has_the_statistics_of_its_training_images(images):
    x = np.random.default_rng(0).normal(3, 2, (70, 2)).astype(np.float32)
    network = made_up_network(images._replace(x_train=x))
    model = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
    network.programs.graph, params, statistics = nnx.split(model, nnx.Param, nnx.BatchStat)
    found = network.recalibrated({"params": params, "statistics": statistics})["statistics"]
    np.testing.assert_allclose(found["mean"][...], x.mean(0), rtol=1e-4)
    np.testing.assert_allclose(found["var"][...], x.var(0), rtol=1e-4)
    np.testing.assert_array_equal(statistics["mean"][...], 0)


def test_further_training_is_the_schedule_from_a_fifth_of_the_rate(images, monkeypatch):
    monkeypatch.setattr(tuning, "Trainer", MadeUpTrainer)
    model = nnx.BatchNorm(4, rngs=nnx.Rngs(0))
    training = nnx.graphdef(model)
    inference = nnx.graphdef(nnx.view(model, use_running_average=True))
    both = training, inference
    monkeypatch.setattr(tuning, "graphs", lambda *of: both if of == (RECIPE, images) else None)
    programs: Any = tuning.Programs.compiled(RECIPE, images, 20)
    assert programs.trainer.recipe == RECIPE
    further = programs.fine_tuner.recipe
    assert (further.epochs, further.learning_rate, further.drops) == (20, 0.1, RECIPE.drops)
    assert further.model == RECIPE.model
    for trainer in (programs.trainer, programs.fine_tuner):
        assert trainer.images is images
        assert trainer.mesh.size == 1
    assert programs.graph is training
    _, params, statistics = nnx.split(model, nnx.Param, nnx.BatchStat)
    x = jnp.arange(8.0).reshape(2, 4)
    found = programs.logits({"params": params, "statistics": statistics}, x)
    np.testing.assert_allclose(found, x, rtol=1e-4)  # running means of 0 and variances of 1


def test_every_seed_is_trained_with_its_name_on_the_bar(images, monkeypatch, tmp_path):
    shown, trained = [], []
    stages: Any = SimpleNamespace(
        describe=shown.append, log=shown.append, reach=lambda *units: shown.append(units)
    )

    def train(trainer, seeds, run, view, interrupted):
        trained.append((trainer, seeds, run))
        assert not interrupted.is_set()
        view.update(10, "of loop.train", "0.5")
        view.log("line")
        return SimpleNamespace(state=trainer.init_state(seeds))

    programs = SimpleNamespace(trainer=MadeUpTrainer(), logits=None)
    asked = []
    monkeypatch.setattr(
        tuning.Programs, "compiled", lambda *arguments: asked.append(arguments) or programs
    )
    monkeypatch.setattr(tuning.loop, "train", train)
    found = tuning.trained_networks(images, RECIPE, 4, 2, tmp_path, stages)
    assert asked == [(RECIPE, images, 4)]
    assert [network.seed for network in found] == [0, 1]
    assert [float(network.tree["params"]["w"][0]) for network in found] == [10, 11]
    assert trained == [(programs.trainer, (seed,), tmp_path) for seed in (0, 1)]
    assert shown == [
        *("training, seed 1 of 2", (0, 2), "line"),
        *("training, seed 2 of 2", (0, 2), "line"),
    ]


def test_the_network_of_a_weight_file_is_the_only_one(images, monkeypatch, tmp_path):
    path, checked = tmp_path / "w.safetensors", []
    path.touch()
    model = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
    programs = SimpleNamespace(trainer=MadeUpTrainer(), logits=None)
    monkeypatch.setattr(tuning.weight_files, "read", lambda given: {path: model}[given])
    monkeypatch.setattr(tuning.weight_files, "check_fits", lambda *of: checked.append(of))
    monkeypatch.setattr(tuning.Programs, "compiled", lambda *_: programs)
    stages: Any = SimpleNamespace()
    (network,) = tuning.trained_networks(images, RECIPE, 4, 7, path, stages)
    assert checked == [(model, images)]
    assert network.seed == 0
    assert network.tree["params"].keys() == {"scale", "bias"}
    assert network.tree["statistics"].keys() == {"mean", "var"}
    assert optax.tree.get(network.state.optimizer, "trace")["w"].shape == (2,)
