"""Recipes for training networks; the papers' experiments are presets.

This module does not import JAX, so that scripts can read their options without delay.
"""

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from experiments import options
from experiments.cli import InputError
from experiments.options import (
    Above,
    AtLeastTwo,
    BelowOne,
    Fraction,
    Natural,
    NonNegative,
    Positive,
    Unit,
)

IN_MEMORY = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100")
STREAMED = ("imagenet2012",)  # data sets that are too large for memory

MAX_DEPTH = 2000  # Deeper networks are refused, because tracing them would take minutes.
DENSE = ("mlp", "mlp_relu_first")  # Models whose names contain no depth.

Normalization = Literal["batch_norm", "unitized", "bounded", "group_norm", "none"]
Schedule = Literal["drops", "cosine", "linear"]
Precision = Literal["float32", "bfloat16"]
Evaluation = Literal["center", "crops", "whole"]


@dataclass(frozen=True)
class Recipe:
    """All settings on which the results of a training run depend, except seed and devices.

    Attributes:
      dataset: The name of the data set in `--data-dir`; digits need no folder.
      model: The network: mlp, mlp_relu_first (which normalizes after the ReLU), or a family and a
        depth, such as preact20, resnet56 or vgg16.
      normalization: The normalization of every layer. Networks with different normalizations start
        from the same weights. The value bounded is the unitized layer of Equation 9, with alpha
        kept in [0, 1]; the paper's bounds need a positive alpha.
      epochs: The number of passes over the training images.
      batch_size: The number of images per step, on all devices together.
      learning_rate: The learning rate between the end of the warm-up and the first decrease.
      schedule: How the learning rate decreases: at `drops`, or to 0 along a cosine or a line.
      warmup: The share of the run, at its start, in which the learning rate rises linearly from 0.
      drops: The shares of the run after which the learning rate is divided by `drop_factor`. For
        example, in a run of 200 epochs, the shares 0.3 0.6 0.8 are epochs 60, 120 and 160. If no
        numbers are given, the learning rate is constant.
      drop_factor: The number by which the learning rate is divided at each drop.
      optimizer: nesterov, as in the unitization paper's code, or the name of an optimizer in Optax,
        such as sgd, adamw or lion.
      momentum: The momentum of nesterov and of the optimizers of Optax that have a momentum. If
        the momentum is 0, nesterov and sgd are plain gradient descent.
      weight_decay: The weight decay of the kernels w. If the optimizer has no option for weight
        decay, weight_decay · w is added to the gradient.
      label_smoothing: The share of the target that is spread evenly over all classes.
      augment: Whether training images are padded by 4, cropped at random and flipped at random.
      precision: The precision of the computation; parameters, statistics and loss are always
        float32.
      running_momentum: The momentum of the running statistics at each step.
      statistics_groups: The number of groups into which a batch is split. Each group is normalized
        by its own statistics; one group is the whole batch.
      norm_groups: The number of channel groups in group norm; if 0, `norm_channels` is used
        instead.
      norm_channels: The number of channels in each group of group norm, if `norm_groups` is 0.
      accumulate: The number of parts of a batch; their gradients are averaged before a step.
      crop: The side of the training crops in pixels. The options `crop`, `scales` and `test_scales`
        are only for streamed data sets.
      scales: The range from which the length of an image's shorter side is drawn before a crop is
        cut.
      test_scales: The lengths of the shorter side to which a test image is resized, by
        --evaluations crops and whole.
    """

    dataset: str = "digits"
    model: str = "preact8"
    normalization: Normalization = "batch_norm"
    epochs: Positive = 15
    batch_size: AtLeastTwo = 64
    learning_rate: NonNegative = 0.05
    schedule: Schedule = "drops"
    warmup: BelowOne = 0.0
    drops: tuple[Fraction, ...] = (0.3, 0.6, 0.8)
    drop_factor: Above = 5.0
    optimizer: str = "nesterov"
    momentum: BelowOne = 0.9
    weight_decay: NonNegative = 5e-4
    label_smoothing: BelowOne = 0.0
    augment: bool = False
    precision: Precision = "float32"
    running_momentum: Unit = 0.9
    statistics_groups: Positive = 1
    norm_groups: Natural = 0
    norm_channels: Positive = 1
    accumulate: Positive = 1
    crop: Positive = 224
    scales: tuple[Positive, Positive] = (256, 480)
    test_scales: tuple[Positive, ...] = (224, 256, 384, 480, 640)


_DIGITS = Recipe()
# These settings are from section 4.2 and appendix C of the unitization paper.
_CIFAR = Recipe(
    dataset="cifar10",
    model="preact20",
    epochs=200,
    batch_size=128,
    augment=True,
    running_momentum=0.99,
)
_CIFAR100 = replace(_CIFAR, dataset="cifar100")
# Published fast training runs have a learning rate that first rises and then falls, large batches,
# and smoothed labels.
_SPEED = replace(
    _CIFAR,
    epochs=20,
    batch_size=512,
    learning_rate=0.4,
    schedule="linear",
    warmup=0.2,
    drops=(),
    label_smoothing=0.1,
    running_momentum=0.9,
)
_MICRO = replace(_CIFAR, model="preact110", batch_size=2)
_DEEPEST = {"model": "preact164", "batch_size": 64}
# Section 4.1 of the unitization paper mentions neither momentum nor weight decay, so both are zero.
_MNIST = replace(
    _CIFAR, dataset="mnist", model="mlp", momentum=0.0, weight_decay=0.0, augment=False
)
# These networks are trained for pruning: VGG (Simonyan and Zisserman, 2015) with batch norm, and
# ResNet (He et al., 2016a).
_PLAIN = replace(_CIFAR, learning_rate=0.1, drop_factor=10.0, drops=(0.5, 0.75))
_VGG = replace(_PLAIN, model="vgg16", learning_rate=0.05)
# In Section 4.3 of the unitization paper, the only augmentation is scale augmentation, and blocks
# are pre-activation blocks.
_IMAGENET = replace(
    _CIFAR,
    dataset="imagenet2012",
    model="preact101",
    epochs=120,
    batch_size=64,
    learning_rate=0.01,
    drops=(0.25, 0.5, 0.75),
    weight_decay=1e-4,
    augment=False,
)
# For pruning on ImageNet, the learning rate falls tenfold every 30 epochs, as in PyTorch's code.
_LARGE = replace(
    _IMAGENET, epochs=90, batch_size=256, learning_rate=0.1, drops=(1 / 3, 2 / 3), drop_factor=10.0
)
# This common baseline for ResNet-50 has the learning rate and the warm-up of Goyal et al. (2017),
# with a cosine schedule and label smoothing.
_COMPARED = replace(
    _LARGE,
    model="resnet50",
    optimizer="sgd",
    batch_size=1024,
    learning_rate=0.4,
    schedule="cosine",
    warmup=5 / 90,
    label_smoothing=0.1,
)

PRESETS: dict[str, tuple[str, Recipe]] = {
    "digits-mlp": (
        "to try: the dense network on the embedded digits, seconds on a CPU",
        replace(_DIGITS, model="mlp", weight_decay=0.0, batch_size=32),
    ),
    "digits-preact8": (
        "to try: a residual network on the embedded digits, a minute on a CPU",
        _DIGITS,
    ),
    "mnist-moments": ("unitization: Figure 2", _MNIST),
    "cifar10-resnet20": ("unitization: Table 1, depth 20", _CIFAR),
    "cifar10-resnet110": ("unitization: Table 1, depth 110", replace(_CIFAR, model="preact110")),
    "cifar10-resnet164": ("unitization: Table 1, depth 164", replace(_CIFAR, **_DEEPEST)),
    "cifar100-resnet20": ("unitization: Table 2, depth 20", _CIFAR100),
    "cifar100-resnet110": (
        "unitization: Table 2, depth 110",
        replace(_CIFAR100, model="preact110"),
    ),
    "cifar100-resnet164": ("unitization: Table 2, depth 164", replace(_CIFAR100, **_DEEPEST)),
    "imagenet-resnet101": ("unitization: Table 3", _IMAGENET),
    "cifar10-resnet110-micro": ("unitization: Table 4, two images a step", _MICRO),
    **{
        f"cifar10-resnet110-micro-{short}{count}": (
            f"unitization: Table 4, group norm, {text}: {count}",
            replace(_MICRO, normalization="group_norm", **{field: count}),
        )
        for field, short, text in (
            ("norm_groups", "g", "groups"),
            ("norm_channels", "c", "channels a group"),
        )
        for count in (1, 2, 4, 8, 16)
    },
    "cifar10-resnet56": ("pruning criteria: ResNet-56", replace(_PLAIN, model="resnet56")),
    "cifar10-vgg16": ("pruning criteria: VGG-16", _VGG),
    "cifar100-vgg16": ("pruning criteria: VGG-16", replace(_VGG, dataset="cifar100")),
    "imagenet-resnet34": ("pruning criteria: ResNet-34", replace(_LARGE, model="resnet34")),
    "imagenet-vgg16": (
        "pruning criteria: VGG-16 with batch norm",
        replace(_LARGE, model="vgg16", learning_rate=0.01),
    ),
    "cifar10-speed": ("no paper: ResNet-20 of Table 1 in a tenth of the epochs", _SPEED),
    "imagenet-resnet50": ("no paper: warm-up, cosine, label smoothing, 90 epochs", _COMPARED),
}


def check_preset(arguments: Sequence[str]) -> None:
    """Raise an error, which names similar presets, if the first word is not a preset.

    Raises:
      InputError: The preset does not exist.
    """
    name = arguments[0] if arguments else "--help"
    if name.startswith("-") or name in PRESETS:
        return
    like = [preset for preset in PRESETS if preset.startswith(name.partition("-")[0])]
    near = like or difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.4)
    such = f", such as {', '.join(near[:5])}" if near else ""
    raise InputError(f"the preset must be one of the presets that --help lists{such}; got {name}")


def drop_epochs(recipe: Recipe) -> list[int]:
    """The numbers, counted from 1, of the epochs before which the learning rate drops.

    Drops after the last epoch have no effect.
    """
    if recipe.schedule != "drops":
        return []
    return [math.ceil(round(share * recipe.epochs, 6)) + 1 for share in recipe.drops]


def is_constant(recipe: Recipe) -> bool:
    """Whether the learning rate is the same at every step, for any number of epochs."""
    return recipe.schedule == "drops" and not recipe.drops and not recipe.warmup


def residual_recipe(dataset: str, depth: int, epochs: int, batch_size: int) -> Recipe:
    """The recipe of a residual network for small images.

    The learning rate is divided by 5 at 30, 60 and 80 % of the epochs.

    Raises:
      InputError: No residual network for small images has this depth.
    """
    if not has_residual_depth(depth):
        raise InputError(f"--depth must be 6k + 2 with k at least 1; got {depth}")
    return Recipe(dataset=dataset, model=f"preact{depth}", epochs=epochs, batch_size=batch_size)


def has_residual_depth(depth: int) -> bool:
    """Whether a residual network for small images can have this depth: 6k + 2 with k at least 1."""
    return depth >= 8 and depth % 6 == 2


def family_and_depth(model: str) -> tuple[str, int]:
    """The family in a model's name, such as preact, and the depth; 0 if the name has no depth."""
    family = model.rstrip("0123456789")
    digits = model[len(family) :][:9]  # a number with more digits is never a valid depth
    return family, int(digits or 0)


def check_model(model: str, *, streamed: bool) -> None:
    """Raise an error if a model's name has an unknown family, or a depth that it does not have.

    Raises:
      InputError: The family is unknown or has no network of this depth, or the depth exceeds
        `MAX_DEPTH`.
    """
    dense, deep = () if streamed else DENSE, ("preact", "resnet", "vgg")
    family, depth = family_and_depth(model)
    if model not in dense and not (family in deep and depth):
        known = ", ".join((*dense, *(f"{name}N" for name in deep)))
        raise InputError(f"--model must be one of {known}; got {model}")
    if depth > MAX_DEPTH:
        raise InputError(f"--model must have at most {MAX_DEPTH} layers; got {model}")
    if not streamed and family in ("preact", "resnet") and not has_residual_depth(depth):
        raise InputError(f"--model {model}: depth must be 6k + 2 with k at least 1; got {depth}")


def check(recipe: Recipe) -> None:
    """Raise an error that names the option if a recipe cannot be trained.

    Raises:
      InputError: A field is out of its range.
    """
    options.check(recipe)
    if recipe.dataset not in (*IN_MEMORY, *STREAMED):
        names = ", ".join((*IN_MEMORY, *STREAMED))
        raise InputError(f"--dataset must be one of {names}; got {recipe.dataset}")
    check_model(recipe.model, streamed=recipe.dataset in STREAMED)
    if recipe.schedule == "drops" and min(recipe.drops, default=1.0) < recipe.warmup:
        raise InputError(
            f"--drops must come after --warmup, which takes the first {recipe.warmup} of the run; "
            f"got {recipe.drops}"
        )
    if not 1 <= recipe.crop <= recipe.scales[0] <= recipe.scales[1]:
        raise InputError(
            "--crop must be positive and at most the shorter of --scales, and --scales must rise; "
            f"got {recipe.crop} and {recipe.scales}"
        )
    if not recipe.test_scales or min(recipe.test_scales) < recipe.crop:
        raise InputError(
            f"--test-scales must be at least --crop, {recipe.crop}; got {recipe.test_scales}"
        )
    parts = recipe.accumulate * recipe.statistics_groups
    if recipe.batch_size % parts:
        raise InputError(
            "--batch-size must be a multiple of --accumulate times --statistics-groups; got batch "
            f"size {recipe.batch_size} and product {parts}"
        )
