"""Saves the arrays of a network to a safetensors file under their paths, and restores them."""

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy as library
from flax import nnx

from jaxnorm.internal import as_path, check_on_host
from pruning._arguments import check_values
from pruning.weights import _formats
from pruning.weights._limits import WeightsError, default_max_bytes
from pruning.weights._load import guard

ARRAYS = (jax.Array, np.ndarray, np.generic)
# Variables that a model fills while it runs, and random keys.
TRANSIENT = nnx.Any(nnx.RngState, nnx.Cache, nnx.Intermediate)
DTYPE_NAMES = {np.dtype(dtype).name for dtype in _formats.DTYPES.values()}


def save(path: str | Path, source: Any) -> None:
    """Write every array of `source` to a safetensors file, in the array's own layout and dtype.

    `save` runs on the host. The name of an array is its path in the framework, joined by dots:
    `blocks.0.conv.kernel` for NNX, `params.Dense_0.kernel` for Linen, `layers.0.weight` for
    Equinox. Running statistics are included. `load` reads the kernels of the file, and `restore`
    reads all arrays. Other libraries can read the file as a plain safetensors file. If the file
    exists, it is replaced only when the new file is complete.

    Args:
      path: The path of the file, which ends in .safetensors.
      source: A module of NNX, or any tree of arrays, such as `pruned.params`. For a module,
        all variables are saved, such as parameters and running statistics. The random keys, the
        caches and the intermediate values of a module or of its state are left out, and so are
        leaves that are not arrays.

    Raises:
      WeightsError: `path` does not end in .safetensors, or its folder does not exist. There is no
        array, or two arrays have the same name. A dtype is not one of float64, float32, float16,
        bfloat16, float8_e4m3fn, float8_e5m2, int64, int32, uint32, uint8 and bool.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     file = Path(folder) / "net.safetensors"
      ...     save(file, {"params": {"Dense_0": {"kernel": np.ones((2, 3)), "bias": np.ones(3)}}})
      ...     print(sorted(library.load_file(file)))
      ['params.Dense_0.bias', 'params.Dense_0.kernel']
    """
    path = _check(path)
    check_on_host("weights.save", source, instead="return the arrays, and save them outside jit")
    check_values("weights.save", source)
    named = [(name, leaf) for name, leaf in _by_name(source) if isinstance(leaf, ARRAYS)]
    # `ascontiguousarray` is not used, because it would add an axis to an array of shape ().
    tensors = {name: np.asarray(leaf, order="C") for name, leaf in named}
    if not tensors or len(tensors) < len(named):
        raise WeightsError(
            "source must hold at least one array, and arrays of different names; got the names "
            f"{[n for n, _ in named]}"
        )
    for name, array in tensors.items():
        if array.dtype.name not in DTYPE_NAMES:
            raise WeightsError(
                f"the dtype of {name} must be one of {sorted(DTYPE_NAMES)}; got {array.dtype}"
            )
    if not path.parent.is_dir():
        raise WeightsError(f"the folder of path must exist; {path.parent} does not: create it")
    unfinished = path.with_name(path.name + ".unfinished")
    library.save_file(tensors, unfinished)
    os.replace(unfinished, path)


def restore(path: str | Path, like: Any) -> Any:
    """A tree like `like`, with the arrays of a file that `save` wrote.

    For a module, call `nnx.update(model, restore(path, nnx.state(model)))`. The result has the
    widths of the file, so `like` may be the large network when you restore a pruned network. The
    result has no random keys, such as the keys of dropout layers, no caches and no intermediate
    values.

    Args:
      path: A safetensors file.
      like: A tree of arrays or shapes, such as the `source` of `save`, or the state of a module.

    Raises:
      WeightsError: The file does not exist, cannot be read, or has other names than `like`.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     save(folder + "/net.safetensors", {"a": [np.arange(3)]})
      ...     print(restore(folder + "/net.safetensors", {"a": [np.zeros(5)]}))
      {'a': [array([0, 1, 2])]}
    """
    path = _check(path)
    if not path.is_file():
        raise WeightsError(f"there must be a file of weights at {path}; there is none")
    arrays, like = guard(_formats.safetensors, path, default_max_bytes(path)), _lasting(like)
    names = [
        name for name, leaf in _by_name(like) if isinstance(leaf, (*ARRAYS, jax.ShapeDtypeStruct))
    ]
    file_only, like_only = sorted(set(arrays) - set(names)), sorted(set(names) - set(arrays))
    if file_only or like_only:
        raise WeightsError(
            "the file and like must have arrays of the same names; only in the file: "
            f"{_first(file_only)}; only in like: {_first(like_only)}"
        )
    leaves = [arrays.get(name, leaf) for name, leaf in _by_name(like)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _check(path: str | Path) -> Path:
    path = as_path(path, "path")
    if path.suffix != ".safetensors":
        raise WeightsError(f"path must end in .safetensors; got {path.name}")
    return path


def _by_name(tree: Any) -> list[tuple[str, Any]]:
    """The names and arrays of a tree's leaves. An NNX variable is replaced by its array."""
    if isinstance(tree, nnx.Module):
        tree = nnx.state(tree)
    value = jax.tree_util.GetAttrKey("value")
    leaves = jax.tree_util.tree_leaves_with_path(_lasting(tree))
    paths = [path[:-1] if path[-1:] == (value,) else path for path, _ in leaves]
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]
    return [(name, leaf) for name, (_, leaf) in zip(names, leaves, strict=True)]


def _lasting(tree: Any) -> Any:
    """The `tree`, without `TRANSIENT` variables if `tree` is the state of a module."""
    return nnx.filter_state(tree, nnx.Not(TRANSIENT)) if isinstance(tree, nnx.State) else tree


def _first(names: list[str]) -> str:
    """The first of several names, and the number of all other names."""
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{others}" if names else "none"
