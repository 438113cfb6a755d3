"""Build the network that a recipe describes."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array

import jaxnorm
from experiments import recipes
from experiments.cli import InputError
from experiments.data.datasets import Images
from experiments.recipes import Recipe
from jaxnorm import models


def network(
    recipe: Recipe,
    *,
    classes: int,
    shape: tuple[int, int, int],
    streamed: bool = False,
    statistics: Mapping[str, Any] | None = None,
    key: Array,
) -> nnx.Module:
    """Build the untrained network of a recipe.

    Args:
      recipe: Recipe that names the model and its normalization.
      classes: Number of outputs.
      shape: Height, width and channels of the images.
      streamed: Whether the network is for large images, such as ImageNet's, which are read from the
        disk during training; otherwise, the network is for small images.
      statistics: Options that tell batch norm and unitized layers over which devices to compute
        statistics.
      key: Key of the initial weights.

    Raises:
      InputError: The model is unknown, the model cannot have this depth, or the channels of a layer
        cannot be divided into the groups of group norm.
    """
    arguments = {"classes": classes, "norm": _norm(recipe, statistics or {}), "rngs": nnx.Rngs(key)}
    recipes.check_model(recipe.model, streamed=streamed)
    family, depth = recipes.family_and_depth(recipe.model)
    small = {
        "mlp": partial(models.MLP, inputs=math.prod(shape)),
        "mlp_relu_first": partial(models.MLP, inputs=math.prod(shape), activation_first=True),
        "preact": partial(models.PreActResNet, depth, bottleneck=depth == 164, channels=shape[-1]),
        "resnet": partial(models.CifarResNet, depth, channels=shape[-1]),
        "vgg": partial(models.VGG, depth, hidden=()),
    }
    large = {
        "preact": partial(models.ResNet, depth, pre_activation=True),
        "resnet": partial(models.ResNet, depth),
        # VGG's published dense layers need the 7×7 map that a 224×224 image gives.
        "vgg": partial(models.VGG, depth, hidden=(4096, 4096) if shape[0] == 224 else ()),
    }
    build: dict[str, Callable[..., nnx.Module]] = large if streamed else small
    try:
        return build[family](**arguments)
    except ValueError as error:
        raise InputError(f"--model {recipe.model}: {error}") from error


def graphs(recipe: Recipe, images: Images) -> tuple[nnx.GraphDef, nnx.GraphDef]:
    """The graphs (`nnx.GraphDef`) of a recipe's network for training and for inference."""
    shape = images.x_train.shape[1:]
    build = partial(network, recipe, classes=images.classes, shape=shape, key=jax.random.key(0))
    model = nnx.eval_shape(build)
    return nnx.graphdef(model), inference_graph(model)


def inference_graph(model: nnx.Module) -> nnx.GraphDef:
    """The graph of a network that normalizes by its running statistics."""
    return nnx.graphdef(nnx.view(model, raise_if_not_found=False, use_running_average=True))


def _norm(recipe: Recipe, statistics: Mapping[str, Any]) -> models.Norm:
    arguments = {"momentum": recipe.running_momentum, "groups": recipe.statistics_groups}
    arguments |= statistics
    if recipe.normalization == "batch_norm":
        return partial(jaxnorm.nnx.BatchNorm, **arguments)
    if recipe.normalization == "unitized":
        return partial(jaxnorm.nnx.UnitizedBatchNorm, **arguments)
    if recipe.normalization == "bounded":
        return partial(jaxnorm.nnx.UnitizedBatchNorm, factor=jaxnorm.bounded, **arguments)
    if recipe.normalization == "none":
        return lambda num_features, *, rngs: lambda x: x

    def group_norm(num_features: int, *, rngs: nnx.Rngs) -> nnx.GroupNorm:
        groups = recipe.norm_groups or num_features // recipe.norm_channels
        if groups < 1 or num_features % groups:
            raise InputError(
                "--norm-groups and --norm-channels must divide the channels of every layer; a "
                f"layer has {num_features} channels and {groups} groups"
            )
        return nnx.GroupNorm(num_features, num_groups=groups, epsilon=1e-5, rngs=rngs)

    return group_norm
