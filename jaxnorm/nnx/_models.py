"""Functions that select the parameters of a model's norms and record the outputs of its layers."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from jaxnorm.nnx._surgery import batch_norms, check_module


def norm_parameters(model: nnx.Module) -> Callable[[tuple[Any, ...], Any], bool]:
    """An NNX filter that selects scale, bias and alpha of every batch norm in `model`.

    The filter finds batch norms of `jaxnorm` and Flax by their current paths. If you change the
    model, make a new filter. To train all other parameters, pass `nnx.All(nnx.Param,
    nnx.Not(norm_parameters(model)))` to `nnx.Optimizer` as `wrt` and to `nnx.DiffState`. To choose
    the norms of one part of the model, combine the filter with `nnx.PathContains("encoder")` in
    `nnx.All`. Running statistics are not parameters. To freeze running statistics, call
    `model.set_attributes(C, use_running_average=True)` after each `model.train()`, where C is the
    class of the model's batch norms.

    Args:
      model: Any module; if it has no batch norm, the filter selects nothing.

    Example:
      >>> from jaxnorm.models import MLP
      >>> model = MLP(inputs=4, widths=(3,), classes=2, rngs=nnx.Rngs(0))
      >>> frozen = nnx.state(model, norm_parameters(model))
      >>> print(nnx.to_flat_state(frozen).paths)
      (('norms', 0, 'bias'), ('norms', 0, 'scale'))
    """
    parameters = {
        id(variable)
        for norm in batch_norms(model)
        for variable in vars(norm).values()
        if isinstance(variable, nnx.Param)
    }
    paths = {path for path, node in nnx.iter_graph(model) if id(node) in parameters}
    return lambda path, _: tuple(path) in paths


def layer_outputs(
    model: nnx.Module, layers: Sequence[str], x: Float[Array, "n *sample"]
) -> dict[str, Float[Array, "n *features"]]:
    """The outputs of the submodules `layers`, by name, when `model` is called on `x`.

    A name is the path of attributes and indices, joined by dots, such as "norms.10". The model runs
    in its current mode; for inference pass `nnx.view(model, use_running_average=True)`. Under
    `jit`, only outputs that you use are computed.

    Args:
      model: Any module. `layer_outputs` does not change the model or its running statistics.
      layers: The names of submodules; the model must call each submodule exactly once.
      x: One batch.

    Raises:
      TypeError: `layers` is one string, or has an element that is not a string.
      ValueError: `layers` is empty. A name in `layers` is not the path of a submodule, or the model
        does not call the submodule exactly once.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxnorm.models import MLP
      >>> model = MLP(inputs=4, widths=(3, 2), classes=2, rngs=nnx.Rngs(0))
      >>> print(layer_outputs(model, ["norms.1"], jnp.ones((5, 4), "float32"))["norms.1"].shape)
      (5, 2)
    """
    check_module(model)
    if isinstance(layers, str):
        raise TypeError(f"layers must be a list of names; got the string {layers!r}")
    if not all(isinstance(name, str) for name in layers):
        raise TypeError(f"layers must be a list of names; got {type(layers).__name__}")
    if not layers:
        raise ValueError("layers must hold the name of at least one submodule; got none")
    # The model is copied, because `nnx.capture` would change the given model.
    model = nnx.merge(*nnx.split(model), copy=True)
    _, captured = nnx.capture(model, nnx.Intermediate, method_outputs=nnx.Intermediate)(x)
    calls = {
        ".".join(map(str, path[:-1])): leaf.get_value()
        for path, leaf in nnx.to_flat_state(captured)
        if path[-1] == "__call__"
    }
    outputs = {}
    for name in layers:
        times = len(calls.get(name, ()))
        if times != 1:
            known = ", ".join(sorted(filter(None, calls)))
            raise ValueError(
                f"{name!r} must be called once; it was called {times} times. Called layers: {known}"
            )
        (outputs[name],) = calls[name]
    return outputs


def changes(model: nnx.Module, before: nnx.State) -> nnx.State:
    """The variables of the state `before` that `model` has changed, with their new values.

    New variables and the values that `sow` records are left out.
    """
    old = dict(nnx.to_flat_state(before))
    new = nnx.to_flat_state(nnx.state(model, nnx.Not(nnx.Intermediate)))
    return nnx.from_flat_state(
        [(path, leaf) for path, leaf in new if path in old and not _is_same(leaf, old[path])]
    )


def _is_same(a: Any, b: Any) -> bool:
    """Whether two variables hold identical arrays; a copy with equal values does not count."""
    a, b = jax.tree.leaves(a), jax.tree.leaves(b)
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
