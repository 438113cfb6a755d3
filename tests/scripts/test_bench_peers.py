"""Programs compared by the benchmarks of pruning and training, at tiny sizes or with fakes."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.benchmarks import pruning as bench, training
from experiments.recipes import replace
from jaxnorm import models
from tests.support import numpy_torch


@pytest.fixture
def small_layers(monkeypatch):
    monkeypatch.setattr(bench, "VGG16", ((16, 27),))
    return bench.drawn()


def test_scores_in_pytorch_are_ours_and_come_first(small_layers, monkeypatch):
    monkeypatch.setattr(bench, "torch_on_all_cores", lambda peer: numpy_torch.NUMPY)
    first, gram, gm = bench.criteria()
    assert [pair.name for pair in (first, gram, gm)] == [
        "four criteria / PyTorch",
        "four criteria / Gram matrices",
        "gm / SciPy cdist",
    ]
    names = ("l1", "l2", "gm", "fermat")
    for ours, peer in zip(first.ours(), first.peer(), strict=True):
        for name, expected in zip(names, peer, strict=True):
            np.testing.assert_allclose(ours[name], expected, rtol=1e-4)
    for scores, again in zip(first.ours(), gram.ours(), strict=True):
        jax.tree.map(np.testing.assert_array_equal, scores, again)
    for layer, product in zip(small_layers, gram.peer(), strict=True):
        np.testing.assert_allclose(product, layer @ layer.T, rtol=1e-5, atol=1e-5)


def test_without_pytorch_its_pairs_are_left_out(small_layers, monkeypatch):
    asked: list[str] = []
    for module in (bench, training):
        monkeypatch.setattr(module, "torch_on_all_cores", asked.append)
    assert [pair.name for pair in bench.criteria()] == [
        "four criteria / Gram matrices",
        "gm / SciPy cdist",
    ]
    assert training.pytorch(training.random_images(8, 1, 16)) is None
    assert asked == ["four criteria / PyTorch", "the PyTorch network"]


def test_the_layers_are_those_of_a_vgg16():
    shapes = nnx.eval_shape(lambda: models.VGG(16, classes=10, hidden=(), rngs=nnx.Rngs(0)))
    kernels = [p.shape for p in jax.tree.leaves(nnx.state(shapes, nnx.Param)) if p.ndim == 4]
    assert sorted(bench.VGG16) == sorted((k[-1], int(np.prod(k[:-1]))) for k in kernels)


@pytest.mark.usefixtures("users_jax")
def test_half_of_a_network_is_timed_beside_the_whole(monkeypatch):
    """Half of the multiply-accumulates remain, but more than half of the parameters."""

    class Small(nnx.Module):
        def __init__(self, classes, rngs):
            self.pixels, self.head = nnx.Linear(3, 6, rngs=rngs), nnx.Linear(6, classes, rngs=rngs)
            self.norm = nnx.BatchNorm(6, rngs=rngs)

        def __call__(self, x):
            return self.head(nnx.relu(self.norm(self.pixels(x))).mean((1, 2)))

    def small(depth, *, classes, hidden, rngs):
        assert (depth, hidden) == (16, ())
        return Small(classes, rngs)

    monkeypatch.setattr(bench, "models", SimpleNamespace(VGG=small))
    monkeypatch.setattr(bench, "BATCH", 2)
    (pair,) = bench.halved()
    assert pair.name == "half / whole, batch 2, ideal 0.500"
    model = nnx.view(small(16, classes=10, hidden=(), rngs=nnx.Rngs(0)), use_running_average=True)
    x = jax.random.normal(jax.random.key(0), (2, 32, 32, 3), jnp.float32)
    np.testing.assert_allclose(pair.peer(), model(x), rtol=1e-4, atol=1e-5)
    assert pair.ours().shape == (2, 10)
    assert jnp.abs(pair.ours() - pair.peer()).max() > 1e-2


PLAIN_LAYOUT = training.Layout()


class MadeUpTrainer:
    """A fake trainer, which counts steps, and stores its arguments and the requested batches."""

    def __init__(self, recipe, images, mesh, layout=PLAIN_LAYOUT):
        assert mesh.size == 1
        self.recipe, self.images, self.layout = recipe, images, layout
        self.steps, self.asked = len(images.x_train) // recipe.batch_size, []

    def init_state(self, seeds):
        return SimpleNamespace(step=np.zeros(len(seeds), int), loss=seeds)

    def batches(self, seeds, epoch, step):
        self.asked.append((seeds, epoch, step))
        return step

    def advance(self, state, batches, seeds, steps):
        loss = np.empty((), object)
        loss[()] = (self, seeds, state.step[0], batches)
        return SimpleNamespace(step=state.step + steps, loss=loss)


@pytest.fixture
def made_up(monkeypatch):
    monkeypatch.setattr(training, "Trainer", MadeUpTrainer)


def trainer_of(call) -> Any:
    return call().item()[0]


def test_a_timed_call_takes_the_next_steps_of_one_epoch(made_up):
    images = training.random_images(8, 1, count=3 * 128 + 5)
    run = training.training_loop(images, training.RECIPE)
    calls = [run().item() for _ in range(4)]
    assert [call[1] for call in calls] == 4 * [(0,)]
    assert [call[2] for call in calls] == [0, 2, 4, 6]  # each call takes two steps
    trainer = calls[0][0]
    assert trainer.asked == [((0,), 0, step) for step in (0, 2, 1, 0)]  # an epoch has three steps
    assert trainer.images is images
    assert trainer.recipe == training.RECIPE


def test_the_steps_of_a_resnet_are_beside_what_their_pairs_are_named_for(made_up, monkeypatch):
    byhand, torch = object(), object()
    monkeypatch.setattr(training, "by_hand", lambda images: byhand)
    monkeypatch.setattr(training, "pytorch", lambda images: torch)
    pairs = {pair.name: pair for pair in training.steps()}
    ours = {name: trainer_of(pair.ours) for name, pair in pairs.items()}
    recipes = {name: trainer.recipe for name, trainer in ours.items()}
    plain = replace(training.RECIPE, augment=False)
    assert training.RECIPE.augment
    assert recipes == {
        "unitized / batch norm": replace(training.RECIPE, normalization="unitized"),
        "our loop / compiled step alone": training.RECIPE,
        "our loop without augmentation / loop by hand": plain,
        "our loop without augmentation / PyTorch": plain,
    }
    assert trainer_of(pairs["unitized / batch norm"].peer).recipe == training.RECIPE
    assert training.RECIPE.normalization == "batch_norm"
    bare = trainer_of(pairs["our loop / compiled step alone"].peer)
    assert bare.recipe == plain
    assert (bare.steps, ours["our loop / compiled step alone"].steps) == (1, 10)
    for part, whole in (("x_train", 128), ("y_train", 128)):
        everything = getattr(ours["our loop / compiled step alone"].images, part)
        np.testing.assert_array_equal(getattr(bare.images, part), everything[:whole])
    pairs["our loop / compiled step alone"].peer()
    assert bare.asked == [((0,), 0, 0)]  # every step of this program takes the same batch
    assert pairs["our loop without augmentation / loop by hand"].peer is byhand
    assert pairs["our loop without augmentation / PyTorch"].peer is torch
    assert {pair.runs for pair in pairs.values()} == {training.RUNS}
    shapes = {trainer.images.x_train.shape[1:] for trainer in ours.values()}
    assert shapes == {(32, 32, 3)}
    monkeypatch.setattr(training, "pytorch", lambda images: None)
    assert [pair.name for pair in training.steps()] == [*pairs][:3]


def test_the_bare_step_is_the_same_batch_and_goes_on_from_its_state(made_up):
    run = training.bare(training.random_images(8, 1))
    assert [run().item()[2:] for _ in range(3)] == [(0, 0), (2, 0), (4, 0)]


def test_five_seeds_are_vmapped_beside_one_after_the_other(made_up):
    pairs = training.seeds()
    assert [pair.name for pair in pairs] == ["digits-mlp", "digits-preact8"]
    for pair in pairs:
        trainer, seeds, *_ = pair.ours().item()
        alone = [loss.item() for loss in pair.peer()]
        assert seeds == (0, 1, 2, 3, 4)
        assert trainer.layout.vmap_seeds
        assert [seeds for _, seeds, *_ in alone] == [(0,), (1,), (2,), (3,), (4,)]
        assert not any(one.layout.vmap_seeds for one, *_ in alone)
        assert {one.recipe for one, *_ in alone} == {trainer.recipe}
        assert trainer.recipe == training.PRESETS[pair.name][1]
        assert trainer.images.x_train.shape[1:] == (8, 8, 1)


def test_groups_are_named_for_what_they_time():
    steps, seeds = training.groups().items()
    assert steps == ("2 training steps of a ResNet-20 on batches of 128 images", training.steps)
    assert seeds[1] is training.seeds
    assert list(bench.groups().values()) == [bench.criteria, bench.distance, bench.halved]


def test_images_at_random_have_labels_of_all_classes():
    images = training.random_images(4, 3, count=500)
    assert images.x_train.shape == (500, 4, 4, 3)
    assert (images.x_train.dtype, images.y_train.dtype) == (np.float32, np.int32)
    assert set(images.y_train) == set(range(images.classes))
    assert abs(images.x_train.std() - 1) < 0.02


@pytest.mark.usefixtures("users_jax")
def test_what_is_written_by_hand_takes_the_steps_of_the_recipe(monkeypatch):
    """Softmax regression replaces the ResNet; NumPy computes the expected optimizer steps."""

    class Linear(nnx.Module):
        def __init__(self, depth, *, classes, norm, rngs):
            assert (depth, classes, norm) == (20, 10, nnx.BatchNorm)
            self.kernel = nnx.Param(jnp.ones((4, 10), jnp.float32))

        def __call__(self, x):
            return x.reshape(len(x), 4) @ self.kernel[...]

    monkeypatch.setattr(training.jaxnorm.models, "PreActResNet", Linear)
    recipe = replace(training.RECIPE, batch_size=3)
    monkeypatch.setattr(training, "RECIPE", recipe)
    images = training.random_images(2, 1, count=6)
    run = training.by_hand(images)
    order = np.random.default_rng(0).permutation(6)
    kernel, velocity = np.ones((4, 10)), np.zeros((4, 10))
    rate, momentum = recipe.learning_rate, recipe.momentum
    losses = []
    for i in (0, 1, 0, 1):
        part = order[3 * i : 3 * i + 3]
        x, one_hot = images.x_train[part].reshape(3, 4), np.eye(10)[images.y_train[part]]
        exponents = np.exp(x @ kernel)
        shares = exponents / exponents.sum(1, keepdims=True)
        losses.append(-np.log((shares * one_hot).sum(1)).mean())
        gradient = x.T @ (shares - one_hot) / 3 + recipe.weight_decay * kernel
        velocity = gradient + momentum * velocity
        kernel -= rate * (gradient + momentum * velocity)
    np.testing.assert_allclose([run(), run()], losses[1::2], rtol=1e-5)


def test_steps_in_pytorch_are_those_of_the_recipe(monkeypatch):
    """A fake PyTorch records its calls in order."""
    done: list[Any] = []

    class Loss:
        def __init__(self, number):
            self.number = number

        def backward(self):
            done.append("backward")

        def item(self):
            return self.number

    class Model:
        def to(self, *, memory_format):
            assert memory_format == "last"
            return self

        def parameters(self):
            return ["weights"]

        def __call__(self, x):
            return x

    def cross_entropy(logits, labels):
        done.append((np.asarray(logits), np.asarray(labels)))
        return Loss(len(done))

    class Images(np.ndarray):
        def contiguous(self, *, memory_format):
            assert memory_format == "last"
            return self

    def optimizer(parameters, rate, **options):
        done.append((parameters, rate, options))
        return SimpleNamespace(
            zero_grad=lambda: done.append("zero"), step=lambda: done.append("step")
        )

    torch = SimpleNamespace(
        channels_last="last",
        from_numpy=lambda x: x.view(Images),
        optim=SimpleNamespace(SGD=optimizer),
        nn=SimpleNamespace(functional=SimpleNamespace(cross_entropy=cross_entropy)),
    )
    monkeypatch.setattr(training, "torch_on_all_cores", lambda peer: torch)
    monkeypatch.setattr(
        training, "pytorch_resnet20", lambda module: {id(torch): Model()}[id(module)]
    )
    recipe = replace(training.RECIPE, batch_size=3)
    monkeypatch.setattr(training, "RECIPE", recipe)
    images = training.random_images(4, 2, count=8)
    run = training.pytorch(images)
    assert run is not None
    loss = run()
    parameters, rate, options = done[0]
    assert (parameters, rate) == (["weights"], recipe.learning_rate)
    expected = {"momentum": recipe.momentum, "weight_decay": recipe.weight_decay}
    assert options == expected | {"nesterov": True}
    kinds = [part if isinstance(part, str) else "loss" for part in done[1:]]
    assert kinds == 2 * ["zero", "loss", "backward", "step"]
    assert loss == 7  # the loss of the second step
    for start, (x, y) in zip((0, 3), (done[2], done[6]), strict=True):
        np.testing.assert_array_equal(np.moveaxis(x, 1, -1), images.x_train[start : start + 3])
        np.testing.assert_array_equal(y, images.y_train[start : start + 3])
        assert y.dtype == np.int64


def test_the_network_in_pytorch_is_that_of_the_recipe():
    network = numpy_torch.Sequence([training.pytorch_resnet20(numpy_torch.SHAPES)])
    assert network(numpy_torch.Shape((5, 3, 32, 32))) == (5, 10)
    ours = nnx.eval_shape(lambda: models.PreActResNet(20, classes=10, rngs=nnx.Rngs(0)))
    sizes = [leaf.size for leaf in jax.tree.leaves(nnx.state(ours, nnx.Param))]
    assert network.count() == sum(sizes)
    blocks = network[0].parts[3:-5]
    shapes = [network[0][0](numpy_torch.Shape((1, 3, 32, 32)))]
    for block in blocks:
        shapes.append(block(shapes[-1]))
    expected = 3 * [(16, 32, 32)] + 3 * [(32, 16, 16)] + 3 * [(64, 8, 8)]
    assert [shape[1:] for shape in shapes[1:]] == expected
    assert sum(isinstance(block.shortcut, numpy_torch.Conv2d) for block in blocks) == 2
