"""Measure the times of a ResNet-20's training steps on CIFAR-sized images, and of several seeds."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import optax
from flax import nnx

import jaxnorm
from experiments.benchmarks.timing import Pair, torch_on_all_cores
from experiments.data.datasets import Images
from experiments.recipes import PRESETS, Recipe
from experiments.training.chunks import steps_done
from experiments.training.trainer import Layout, Trainer, mesh_of

RECIPE = PRESETS["cifar10-resnet20"][1]
PLAIN = replace(RECIPE, augment=False)
STEPS = 2  # the number of steps in one timed call
RUNS = 10


def groups() -> dict[str, Callable[[], list[Pair]]]:
    """For each table's title, the callable that makes the table's pairs of functions to time."""
    title = f"{STEPS} training steps of a ResNet-20 on batches of {RECIPE.batch_size} images"
    return {
        title: steps,
        "five seeds in one vmapped program, compared with one seed after the other": seeds,
    }


def random_images(side: int, channels: int, count: int = 1280) -> Images:
    """Images with pixels from a normal distribution, and random labels."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, side, side, channels)).astype(np.float32)
    y = rng.integers(0, 10, count).astype(np.int32)
    return Images("random", "", 10, x, y, x[:8], y[:8])


def steps() -> list[Pair]:
    """Pairs that compare training steps of `RECIPE` with unitized layers and with other loops."""
    images = random_images(32, 3)
    loop = partial(training_loop, images)
    pairs = [
        ("unitized / batch norm", loop(replace(RECIPE, normalization="unitized")), loop(RECIPE)),
        ("our loop / compiled step alone", loop(RECIPE), bare(images)),
        ("our loop without augmentation / loop by hand", loop(PLAIN), by_hand(images)),
    ]
    torch = pytorch(images)
    if torch is not None:
        pairs.append(("our loop without augmentation / PyTorch", loop(PLAIN), torch))
    return [Pair(name, ours, peer, runs=RUNS) for name, ours, peer in pairs]


def training_loop(images: Images, recipe: Recipe) -> Callable[[], Any]:
    """A function that trains like `train.py`: it loads batches, crops images and reads losses."""
    return train_steps(Trainer(recipe, images, mesh_of(1)), (0,))


def train_steps(trainer: Trainer, seeds: tuple[int, ...]) -> Callable[[], Any]:
    """A function that runs the next `STEPS` training steps each time that it is called."""
    state = trainer.init_state(seeds)

    def run() -> Any:
        nonlocal state
        batches = trainer.batches(seeds, 0, steps_done(state) % trainer.steps)
        state = trainer.advance(state, batches, seeds, STEPS)
        return np.asarray(state.loss)

    return run


def bare(images: Images) -> Callable[[], Any]:
    """A function that runs only the compiled step, always on one batch in memory, without crops."""
    batch = images._replace(
        x_train=images.x_train[: RECIPE.batch_size], y_train=images.y_train[: RECIPE.batch_size]
    )
    trainer = Trainer(PLAIN, batch, mesh_of(1))
    batches, state = trainer.batches((0,), 0, 0), trainer.init_state((0,))

    def run() -> Any:
        nonlocal state
        state = trainer.advance(state, batches, (0,), STEPS)
        return state.loss

    return run


def by_hand(images: Images) -> Callable[[], Any]:
    """A handwritten training loop with Flax's batch norm, Optax's SGD and batches from the host."""
    model = jaxnorm.models.PreActResNet(20, classes=10, norm=nnx.BatchNorm, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(
        model,
        optax.chain(optax.add_decayed_weights(5e-4), optax.sgd(0.05, momentum=0.9, nesterov=True)),
        wrt=nnx.Param,
    )

    @nnx.jit
    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        def loss(model: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

        value, gradient = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradient)
        return value

    order = np.random.default_rng(0).permutation(len(images.x_train))

    def run() -> Any:
        value = None
        for i in range(STEPS):
            index = order[i * RECIPE.batch_size : (i + 1) * RECIPE.batch_size]
            value = step(model, optimizer, images.x_train[index], images.y_train[index])
        return value

    return run


def pytorch(images: Images) -> Callable[[], Any] | None:
    """The training steps of `RECIPE` in PyTorch, with channels last; None if PyTorch cannot run."""
    torch = torch_on_all_cores("the PyTorch network")
    if torch is None:
        return None
    model = pytorch_resnet20(torch).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    x = torch.from_numpy(images.x_train.transpose(0, 3, 1, 2).copy())
    x = x.contiguous(memory_format=torch.channels_last)
    y = torch.from_numpy(images.y_train.astype(np.int64))

    def run() -> Any:
        loss: Any = None
        for i in range(STEPS):
            part = slice(i * RECIPE.batch_size, (i + 1) * RECIPE.batch_size)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x[part]), y[part])
            loss.backward()
            optimizer.step()
        return np.float32(loss.item())

    return run


def pytorch_resnet20(torch: Any) -> Any:
    """The ResNet-20 of `RECIPE` as a PyTorch module."""
    relu = torch.nn.functional.relu

    def conv(channels: int, width: int, size: int, stride: int = 1) -> Any:
        return torch.nn.Conv2d(channels, width, size, stride, size // 2)

    class Block(torch.nn.Module):
        def __init__(self, channels: int, width: int, stride: int):
            super().__init__()
            self.norms = torch.nn.ModuleList(map(torch.nn.BatchNorm2d, (channels, width)))
            self.first, self.second = conv(channels, width, 3, stride), conv(width, width, 3)
            changes = stride > 1 or channels != width
            self.shortcut = conv(channels, width, 1, stride) if changes else torch.nn.Identity()

        def forward(self, x: Any) -> Any:
            h = self.first(relu(self.norms[0](x)))
            return self.second(relu(self.norms[1](h))) + self.shortcut(x)

    blocks, channels = [], 16
    for width in (16, 32, 64):
        for k in range(3):
            blocks.append(Block(channels, width, 2 if k == 0 and width > 16 else 1))
            channels = width
    return torch.nn.Sequential(
        conv(3, 16, 3),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        *blocks,
        torch.nn.BatchNorm2d(64),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 10),
    )


def seeds() -> list[Pair]:
    """Pairs that compare training five seeds under one vmap with training one seed after another.

    The measured ratios of times are the reason for the default of `--vmap-seeds` in `train.py`.
    """
    images, five = random_images(8, 1), (0, 1, 2, 3, 4)
    pairs = []
    for name in ("digits-mlp", "digits-preact8"):
        recipe = PRESETS[name][1]
        vmapped = train_steps(Trainer(recipe, images, mesh_of(1), Layout(vmap_seeds=True)), five)
        single = [train_steps(Trainer(recipe, images, mesh_of(1)), (seed,)) for seed in five]
        pairs.append(Pair(name, vmapped, lambda single=single: [run() for run in single]))
    return pairs
