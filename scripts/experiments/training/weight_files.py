"""Read weight files of residual networks for small images; arrays have PyTorch's names."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import safe_open

from experiments.cli import InputError
from experiments.data.datasets import Images
from jaxnorm.models import CifarResNet
from pruning import weights

NORM = {"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "var"}


def read(path: Path) -> CifarResNet:
    """Read a `CifarResNet` from a weight file; its arrays imply the depth and the classes.

    In the file, convolutions have the names `conv1`, `layer1.0.conv1`, .... Each convolution has a
    batch norm, and these have the names `bn1`, `layer1.0.bn1`, .... The last layer is `linear`, and
    shortcuts have no parameters.

    Args:
      path: File whose name ends in .safetensors.

    Raises:
      InputError: The file cannot be read, or its arrays have unexpected names or shapes, or are not
        finite.
    """
    try:
        if path.suffix != ".safetensors":
            raise ValueError(
                f"the name of the weight file must end in .safetensors; got {path.name}"
            )
        model = _untrained_network(weights.load(path, dense=True))
        variables = dict(_variables(model))
        with safe_open(path, "numpy") as file:
            names = list(file.keys())
        counts = [name for name in names if name.endswith(".num_batches_tracked")]
        like = dict.fromkeys([*variables, *counts], np.zeros(()))
        arrays = {name: _to_hwio(a) for name, a in weights.restore(path, like).items()}
        _check(arrays, variables)
    except ValueError as error:
        raise InputError(
            f"{path.name} must hold a residual network of depth 6k + 2 whose layers are named "
            f"conv1, bn1, layer1.0.conv1, ..., linear; {error}"
        ) from error
    for name, variable in variables.items():
        variable[...] = jnp.asarray(arrays[name], jnp.float32)
    return model


def name(path: Path) -> str:
    """The name, such as resnet20, by which a recipe names the network of a weight file."""
    return f"resnet{2 * len(read(path).blocks) + 2}"


def check_fits(model: CifarResNet, images: Images) -> None:
    """Raise an error if a data set and the network differ in their channels or classes."""
    given = model.stem.kernel.shape[-2], model.head.kernel.shape[-1]
    if given != (found := (images.x_train.shape[-1], images.classes)):
        raise InputError(
            f"the data set must have {given[0]} channels and {given[1]} classes, like the network "
            f"of the weight file; {images.name} has {found[0]} and {found[1]}"
        )


def _untrained_network(kernels: Mapping[str, np.ndarray]) -> CifarResNet:
    """An untrained network with the depth, channels and classes that `kernels` imply."""
    if not {"conv1", "linear"} <= set(kernels):
        raise ValueError(f"its kernels are {', '.join(list(kernels)[:3])}, ...")
    convolutions = sum(kernel.ndim == 4 for kernel in kernels.values())
    classes, channels = kernels["linear"].shape[-1], kernels["conv1"].shape[-2]
    return CifarResNet(convolutions + 1, classes=classes, channels=channels, rngs=nnx.Rngs(0))


def _variables(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield PyTorch's name and the variable for each parameter and running statistic."""
    layers = [("conv1", model.stem, "bn1", model.stem_norm)]
    per_stage = len(model.blocks) // 3
    for k, block in enumerate(model.blocks):
        name = f"layer{k // per_stage + 1}.{k % per_stage}"
        layers.append((f"{name}.conv1", block.conv1, f"{name}.bn1", block.norm1))
        layers.append((f"{name}.conv2", block.conv2, f"{name}.bn2", block.norm2))
    for conv_name, conv, norm_name, norm in layers:
        yield f"{conv_name}.weight", conv.kernel
        for theirs, ours in NORM.items():
            yield f"{norm_name}.{theirs}", getattr(norm, ours)
    yield "linear.weight", model.head.kernel
    yield "linear.bias", model.head.bias


def _to_hwio(array: np.ndarray) -> np.ndarray:
    """Transpose (out, in, *window) to (*window, in, out)."""
    return array.transpose(*range(2, array.ndim), 1, 0) if array.ndim > 1 else array


def _shape_in_file(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that an array had before `_to_hwio` gave it the shape `shape`."""
    return (shape[-1], shape[-2], *shape[:-2]) if len(shape) > 1 else shape


def _check(arrays: Mapping[str, np.ndarray], variables: Mapping[str, Any]) -> None:
    for name, variable in variables.items():
        expected, found = map(_shape_in_file, (variable.shape, arrays[name].shape))
        if found != expected:
            raise ValueError(f"{name} must have shape {expected}; it has {found}")
        if not np.isfinite(arrays[name]).all():
            raise ValueError(f"{name} must be finite; it has NaN or inf")
