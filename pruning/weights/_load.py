"""`load`: from a path or a live state to kernels by layer."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxnorm._numerics import check_on_host
from pruning.weights import _formats, _pytorch
from pruning.weights._limits import WeightsError

READERS: dict[str, Callable[[Path], Mapping]] = {
    ".safetensors": _formats.safetensors,
    ".npz": _formats.npz,
    ".msgpack": _formats.msgpack,
    ".h5": _formats.keras_h5,
    ".hdf5": _formats.keras_h5,
    ".keras": _formats.keras,
    ".pt": _pytorch.read,
    ".pth": _pytorch.read,
    ".th": _pytorch.read,
}
WRAPPERS = ("state_dict", "model_state_dict", "model", "params", "state")
SUFFIX = re.compile(r"\.?(weight|kernel|value|vars\.0)$")  # of the name of a layer
STATISTICS = ("running_mean", "running_var", "mean", "var", "moving_mean", "moving_variance")


def load(
    source: str | Path | Mapping | nnx.Module,
    *,
    dense: bool = False,
    vectors: bool = False,
) -> dict[str, np.ndarray]:
    """Kernels of the convolutions by layer, `(*window, cin, cout)`, in the network's order.

    On the host. Reads safetensors, npz, Flax msgpack, PyTorch's .pt, .pth and .th in both its
    formats, Keras's .h5 and .keras (these need h5py), directories of Orbax checkpoints, and live
    states of NNX and Linen. PyTorch, Flax and Keras keep the order of the layers; elsewhere it is
    that of the names, with numbers in them counted. Arrays whose name ends in `weight` are
    PyTorch's and are transposed; others are as Flax and Keras keep them. A name is that of the
    layer, joined by dots.

    Args:
      source: A file, a checkpoint directory (of several steps: the newest), a module or a state.
      dense: Also matrices, (cin, cout).
      vectors: Also biases and the parameters of normalizations, by their full name.

    Raises:
      WeightsError: If there is no such file, it cannot be read, or holds none of what was asked.

    Example:
      >>> kernel = np.zeros((3, 3, 1, 8))
      >>> {name: k.shape for name, k in load({"params": {"Conv_0": {"kernel": kernel}}}).items()}
      {'Conv_0': (3, 3, 1, 8)}
    """
    arrays = _flat(_read(source))
    chosen = {}
    for name, array in arrays.items():
        *_, last = name.split(".")
        wanted = array.ndim >= 3 or (dense and array.ndim == 2)
        if wanted and array.size:
            pytorch = last == "weight"
            layer = SUFFIX.sub("", name.removesuffix(":0")) or name
            order = (*range(2, array.ndim), 1, 0)  # (out, in, *window) as (*window, in, out)
            chosen[layer] = np.ascontiguousarray(array.transpose(order)) if pytorch else array
        elif vectors and array.ndim == 1 and array.size and last not in STATISTICS:
            chosen[name] = array
    if not chosen:
        kinds = ["convolutions", *["dense layers"] * dense, *["vectors"] * vectors]
        raise WeightsError(
            f"the weights must hold {' or '.join(kinds)}; {len(arrays)} arrays are there, of which "
            "none is one"
        )
    return chosen


def _read(source: str | Path | Mapping | nnx.Module) -> Mapping:
    match source:
        case nnx.Module():
            return _read(nnx.state(source, nnx.Param))
        case nnx.State():
            return {".".join(map(str, path)): leaf[...] for path, leaf in nnx.to_flat_state(source)}
        case Mapping():
            return source
    path = Path(source)
    if path.is_dir():
        return _guarded(_formats.orbax, path)
    if not path.is_file():
        raise WeightsError(f"there must be a file or directory of weights at {path}; there is none")
    if (reader := READERS.get(path.suffix.lower())) is None:
        raise WeightsError(
            f"the name must end in one of {', '.join(READERS)}, or be a directory; got {path.name}"
        )
    return _guarded(reader, path)


def _guarded(reader: Callable[[Path], Mapping], path: Path) -> Mapping:
    try:
        return reader(path)
    except WeightsError as error:
        raise WeightsError(f"{path.name} cannot be read: {error}") from None
    except ImportError:
        raise
    except Exception as error:  # parsers of six libraries raise many kinds
        message = " ".join(str(error).split())[:200]
        raise WeightsError(
            f"{path.name} must be a whole {path.suffix or 'checkpoint'} of weights; reading it "
            f"raised {type(error).__name__}: {message}"
        ) from error


def _flat(tree: Mapping) -> dict[str, np.ndarray]:
    """Floating arrays of a tree of mappings and lists by their path, without wrappers."""
    while inner := [key for key in WRAPPERS if isinstance(tree.get(key), Mapping)]:
        tree = tree[inner[0]]
    arrays: dict[str, np.ndarray] = {}
    visits, rest = 0, [((), tree)]
    while rest:
        path, node = rest.pop()
        visits += 1
        if visits > 10**6 or len(path) > 64:
            raise WeightsError("the weights must be a tree of at most a million nodes, 64 deep")
        match node:
            case Mapping():
                rest += [((*path, str(key)), child) for key, child in reversed(list(node.items()))]
            case list() | tuple():
                rest += [((*path, str(i)), child) for i, child in reversed(list(enumerate(node)))]
            case np.ndarray() | jax.Array() if jnp.issubdtype(node.dtype, jnp.floating):
                check_on_host("weights.load", node, instead="load first, and pass the kernels in")
                arrays[".".join(path).removeprefix("module.")] = np.asarray(node)
    return arrays
