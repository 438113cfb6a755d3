"""Evaluation, recalibration and fine-tuning of trained and of pruned networks."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from experiments.cli import InputError
from experiments.measures import tuning
from experiments.progress import TrainingView
from experiments.recipes import replace
from experiments.training import chunks, run_folder
from pruning import coupled_channels, mask_channels, remove_channels
from tests.support.small_runs import SMALL, bits, first_state

RECIPE = replace(SMALL, epochs=10, learning_rate=0.5, drops=(0.3, 0.65, 0.85))

pytestmark = pytest.mark.usefixtures("users_jax")


@pytest.fixture(scope="module")
def compiled(users_jax, images):
    return tuning.Programs.compiled(RECIPE, images, 20)


@pytest.fixture
def programs(compiled, one):
    """Programs in which `one` both trains and fine-tunes, because `one` is already compiled."""
    return compiled._replace(trainer=one, fine_tuner=one)


@pytest.fixture
def network(programs, images):
    """A network with seed 3 after five training steps."""
    return tuning.Network(images, programs, first_state(programs.trainer, 5, seeds=(3,)), 3)


def test_an_accuracy_is_the_share_of_the_test_images_with_the_largest_logit(network, images):
    tree = {"params": network.state.params, "statistics": network.state.statistics}
    assert jax.tree.all(jax.tree.map(lambda a, b: a is b, network.tree, tree))
    for scale, shift in ((1.0, 0.0), (-1.0, 0.0), (1.0, 2.0)):
        changed = {
            "params": jax.tree.map(lambda p, s=scale: s * p, tree["params"]),
            "statistics": jax.tree.map(lambda p, s=shift: p + s, tree["statistics"]),
        }
        largest = np.asarray(network.apply(changed, images.x_test)).argmax(1)
        assert network.accuracy(changed) == pytest.approx(np.mean(largest == images.y_test))


def test_fine_tuning_an_untrained_network_is_training_it(network, one):
    tree = network.tree | {"params": one.init_state((3,)).params}
    tree |= {"statistics": one.init_state((3,)).statistics}
    before = bits(tree)
    tuned = network.fine_tuned(tree)
    *_, last = chunks.epochs(one, one.init_state((3,)), (3,))
    assert bits(tuned) == bits({"params": last.state.params, "statistics": last.state.statistics})
    assert bits(tree) == before  # fine-tuning must not donate `tree`


def test_a_network_with_few_channels_is_tuned_as_if_the_others_were_zero(network, images):
    groups = coupled_channels(network.apply, network.tree, images.x_test[:1])
    keep = [np.arange(group.size) % 3 > 0 for group in groups]
    small, zeros = (f(network.tree, groups, keep) for f in (remove_channels, mask_channels))
    found, expected = network.fine_tuned(small), network.fine_tuned(zeros)
    expected = remove_channels(expected, groups, keep)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), found, expected
    )


@pytest.mark.parametrize(
    ("size", "most", "count"), [(30, 10, 60), (500, 10, 70), (7, 10, 70), (7, 9, 63), (35, 1, 35)]
)
def test_statistics_are_of_the_training_images_of_whole_batches(
    programs, network, images, monkeypatch, size, most, count
):
    monkeypatch.setattr(tuning, "RECALIBRATION_IMAGES", size)
    monkeypatch.setattr(tuning, "RECALIBRATION_BATCHES", most)
    x = np.random.default_rng(0).normal(3, 2, (70, 2)).astype(np.float32)
    graph, params, statistics = nnx.split(nnx.BatchNorm(2, rngs=nnx.Rngs(0)), nnx.Param, ...)
    norm = tuning.Network(
        images._replace(x_train=x), programs._replace(graph=graph), network.state, seed=3
    )
    found = norm.recalibrated({"params": params, "statistics": statistics})
    assert found["params"] is params
    np.testing.assert_allclose(found["statistics"]["mean"][...], x[:count].mean(0), rtol=1e-4)
    np.testing.assert_allclose(found["statistics"]["var"][...], x[:count].var(0), rtol=1e-4)
    np.testing.assert_array_equal(statistics["mean"][...], 0)


def test_further_training_is_the_schedule_from_a_fifth_of_the_rate(compiled, network):
    assert compiled.trainer.recipe == RECIPE
    assert compiled.fine_tuner.recipe == replace(RECIPE, epochs=20, learning_rate=0.1)
    for trainer in (compiled.trainer, compiled.fine_tuner):
        assert trainer.placement["shape"] == {"data": 1}
    # `graph` is in training mode, so a call updates the running statistics.
    x, tree = 3 + jnp.ones((2, 4, 4, 1)), network.tree
    model = nnx.merge(compiled.graph, tree["params"], tree["statistics"], copy=True)
    before = bits(nnx.state(model, nnx.BatchStat))
    model(x)
    assert bits(nnx.state(model, nnx.BatchStat)) != before


@pytest.mark.parametrize(("channels", "classes"), [(3, 2), (1, 10)])
def test_a_weight_file_that_does_not_fit_the_images_is_refused_before_anything_is_compiled(
    channels, classes, images, monkeypatch, tmp_path
):
    layers = {"stem": (3, 3, channels, 4), "head": (8, classes)}
    kernels = {name: SimpleNamespace(kernel=np.zeros(shape)) for name, shape in layers.items()}
    monkeypatch.setattr(tuning.weight_files, "read", lambda path: SimpleNamespace(**kernels))
    monkeypatch.setattr(tuning.Programs, "compiled", lambda *_: pytest.fail("compiled"))
    said = f"must have {channels} channels and {classes} classes, .*; made has 1 and 2"
    with pytest.raises(InputError, match=said):
        tuning.network_of_file(images, RECIPE, 4, tmp_path / "w.safetensors")


def test_every_seed_is_trained_with_its_name_on_the_bar(images, programs, monkeypatch, tmp_path):
    said, logged, asked = [], [], []
    stages: Any = SimpleNamespace(describe=said.append, log=logged.append, reach=said.append)
    monkeypatch.setattr(tuning.Programs, "compiled", lambda *of: asked.append(of) or programs)
    found = tuning.trained_networks(images, RECIPE, 4, 2, tmp_path, stages)
    assert asked == [(RECIPE, images, 4)]
    for seed, network in enumerate(found):
        assert network.seed == seed
        lines = run_folder.read_lines(tmp_path / f"seed-{seed}" / "metrics.jsonl")
        assert network.accuracy(network.tree) == lines[-1]["accuracy"]
        assert len(lines) == 3
    assert bits(found[0].tree) != bits(found[1].tree)
    second = said.index("trained network, seed 2 of 2")
    for i, part in enumerate((said[:second], said[second:])):
        assert part[0] == f"trained network, seed {i + 1} of 2"
        assert part[1:] == sorted(part[1:])
        assert part[-1] == 3 * (i + 1)  # each network is trained for three epochs
    assert TrainingView(stages, 5).log == logged.append


def test_the_network_of_a_weight_file_is_the_only_one(images, programs, monkeypatch, tmp_path):
    path, checked = tmp_path / "w.safetensors", []
    path.touch()
    model = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
    monkeypatch.setattr(tuning.weight_files, "read", lambda given: {path: model}[given])
    monkeypatch.setattr(tuning.weight_files, "check_fits", lambda *of: checked.append(of))
    monkeypatch.setattr(tuning.Programs, "compiled", lambda *_: programs)
    stages: Any = SimpleNamespace()
    (network,) = tuning.trained_networks(images, RECIPE, 4, 7, path, stages)
    assert checked == [(model, images)]
    assert network.seed == 0
    assert network.tree["params"].keys() == {"scale", "bias"}
    assert network.tree["statistics"].keys() == {"mean", "var"}
    assert optax.tree.get(network.state.optimizer, "trace") is not None
