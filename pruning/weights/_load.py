"""The function `load` reads the kernels of layers from a file, a directory, a module or a state."""

from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxnorm.internal import as_path, check_flags, check_on_host
from pruning.weights import _formats, _keras, _layout, _pytorch
from pruning.weights._limits import INDEX, WeightsError, default_max_bytes
from pruning.weights._tree import add, leaves, unwrap

READERS: dict[str, Callable[[Path, int], Mapping]] = {
    ".safetensors": _formats.safetensors,
    ".npz": _formats.npz,
    ".msgpack": _formats.msgpack,
    ".h5": _keras.h5,
    ".hdf5": _keras.h5,
    ".keras": _keras.keras,
    ".pt": _pytorch.read,
    ".pth": _pytorch.read,
    ".th": _pytorch.read,
}


def load(
    source: str | Path | Mapping | nnx.Module,
    *,
    dense: bool = False,
    vectors: bool = False,
    max_bytes: int | None = None,
) -> dict[str, np.ndarray]:
    """A dictionary of the kernels of convolutions, `(*window, cin, cout)`, by layer name.

    `load` runs on the host. `load` reads files of safetensors, npz, Flax msgpack, both formats of
    PyTorch's .pt, .pth and .th, and Keras's .h5 and .keras (with h5py). `load` also reads
    directories of Orbax checkpoints, models of Hugging Face by their folder or the index of their
    shards, and live states of NNX and Linen. Layers from files of PyTorch, Flax and NumPy are in
    the order of the file. Layers from a Keras file that lists the names of its layers, as older .h5
    files do, are in the order of the network. Layers from all other sources are sorted by name,
    with numbers in numerical order. The name of a layer is its path joined by dots.

    Arrays whose name ends in `weight` are assumed to have PyTorch's axes, (cout, cin, *window), and
    are transposed. Weight norm, spectral norm and recurrent layers divide a weight into several
    arrays, such as `weight_g`, `original1` and `weight_ih_l0`. These arrays are also transposed,
    and keep their full names. PyTorch's embeddings and the Conv1D layers of GPT-2 have the layout
    of Flax, so they are not transposed. Embeddings and Conv1D layers are recognized by their names
    (`word_embeddings`, `wte`, `c_attn`). An embedding with another name is transposed to the shape
    (features, entries). Kernels of PyTorch's transposed convolutions get the shape
    `(*window, cout, cin)`.

    The state of an optimizer is left out, because its moments have the shapes of weights. An
    optimizer's state is recognized by its name at the top of the tree (`opt_state`, `optimizer`). A
    list of arrays without names raises an error.

    No file can run code while it is read. Objects in a pickle other than tensors and plain data are
    left out with a warning. Orbax checkpoints are read by Orbax itself.

    Args:
      source: A file, a module, a state, or a checkpoint directory. If a checkpoint has several
        steps, the newest step is read.
      dense: Whether to include matrices, (cin, cout).
      vectors: Whether to include biases and parameters of normalizations, by their full name.
      max_bytes: The limit on the bytes of all arrays of a file, by default 32 MiB plus four times
        the size of the file. A compressed file of mostly zeros may need a higher limit, and then
        reading takes as much memory as the limit.

    Raises:
      WeightsError: The file does not exist, cannot be read, or has none of the requested weights.
        The dtype of an array is unknown, such as float8_e4m3fn in a file of NumPy.

    Example:
      >>> kernel = np.zeros((3, 3, 1, 8))
      >>> {name: k.shape for name, k in load({"params": {"Conv_0": {"kernel": kernel}}}).items()}
      {'Conv_0': (3, 3, 1, 8)}
    """
    check_flags(dense=dense, vectors=vectors)
    arrays = _flat(_read(source, max_bytes))
    transposed, statistics = _layout.transposed_names(arrays), _layout.statistics(arrays)
    chosen = {}
    for name, array in arrays.items():
        if array.size and (array.ndim >= 3 or (dense and array.ndim == 2)):
            # PyTorch's axes (out, in, *window) become (*window, in, out).
            order = (*range(2, array.ndim), 1, 0)
            kernel = array.transpose(order) if name in transposed else array
            add(chosen, _layout.layer(name), kernel)
        elif vectors and array.ndim == 1 and array.size and name not in statistics:
            add(chosen, name, array)
    if not chosen:
        kinds = ["convolutions", *["dense layers"] * dense, *["vectors"] * vectors]
        raise WeightsError(
            f"the weights must hold {' or '.join(kinds)}; none of the {len(arrays)} arrays is one"
        )
    return chosen


def _read(source: str | Path | Mapping | nnx.Module, max_bytes: int | None) -> Mapping:
    match source:
        case nnx.Module():
            return _read(nnx.state(source, nnx.Param), max_bytes)
        case nnx.State():
            return {".".join(map(str, path)): leaf[...] for path, leaf in nnx.to_flat_state(source)}
        case Mapping():
            return source
    path = as_path(source, "source")
    if path.is_dir() and (weights := _formats.hugging_face(path)):
        path = weights
    if path.is_dir():
        return guard(lambda path, _: _formats.orbax(path), path, 0)
    if not path.is_file():
        raise WeightsError(f"there must be a file or directory of weights at {path}; there is none")
    is_index = path.name.endswith(INDEX)
    if (reader := _formats.index if is_index else READERS.get(path.suffix.lower())) is None:
        raise WeightsError(
            f"source must be a directory or a file whose name ends in {', '.join(READERS)} or "
            f"{INDEX}; got {path.name}"
        )
    limit = default_max_bytes(path) if max_bytes is None else max_bytes
    return guard(reader, path, limit)


def guard(reader: Callable[[Path, int], Mapping], path: Path, max_bytes: int) -> Mapping:
    """The result of `reader`. Any error of the reader becomes a `WeightsError` of one sentence."""
    try:
        return reader(path, max_bytes)
    except WeightsError as error:
        message = " ".join(str(error).split())[:400]
        raise WeightsError(f"{path.name} cannot be read: {message}") from None
    except ImportError:
        raise
    except Exception as error:  # parsers raise many types of exceptions
        message = " ".join(str(error).split())[:200]
        raise WeightsError(
            f"{path.name} must be a whole {path.suffix or 'checkpoint'} of weights; reading it "
            f"raised {type(error).__name__}: {message}"
        ) from error


def _flat(tree: Mapping) -> dict[str, np.ndarray]:
    """The floating-point arrays of a tree of mappings and lists, by path.

    Levels of the tree that only wrap the arrays are left out.
    """
    arrays: dict[str, np.ndarray] = {}
    for name, leaf in leaves(unwrap(tree)):
        if isinstance(leaf, np.ndarray) and leaf.dtype == "V2":
            leaf = leaf.view(jnp.bfloat16)  # NumPy stores the dtype bfloat16 as V2
        if isinstance(leaf, np.ndarray) and leaf.dtype == "V1":
            raise WeightsError(
                f"{name} must have a dtype of NumPy or bfloat16; in a file of NumPy, {leaf.dtype} "
                "stands for several dtypes, such as float8_e4m3fn: write a .safetensors file"
            )
        match leaf:
            case np.ndarray() | jax.Array() if jnp.issubdtype(leaf.dtype, jnp.floating):
                check_on_host("weights.load", leaf, instead="load first, and pass the kernels in")
                name = name.removeprefix("module.").removesuffix(":0")
                # JAX accepts only the byte order of the machine.
                array = np.asarray(leaf)
                add(arrays, name, array.astype(array.dtype.newbyteorder("="), copy=False))
    return arrays
