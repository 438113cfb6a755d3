"""Outputs of a network's named layers."""

from collections.abc import Sequence

from flax import nnx
from jaxtyping import Array, Float


def layer_outputs(
    model: nnx.Module, layers: Sequence[str], x: Float[Array, "n *sample"]
) -> dict[str, Float[Array, "n *features"]]:
    """Outputs of the submodules `layers` while `model` is called on `x`, by name.

    A name is the path of attributes and indices, joined by dots, as "norms.10". `x` goes through
    the model as it is: hand over `nnx.view(model, use_running_average=True)` for inference, and
    call under `jit`, where what nobody reads is not computed.

    Args:
      model: Any module; it is left as it is, running statistics too.
      layers: Names of submodules that the call reaches once.
      x: One batch.

    Raises:
      TypeError: `layers` is one string.
      ValueError: The model has no such submodule, or calls it never or more than once.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxnorm.models import MLP
      >>> model = MLP(inputs=4, widths=(3, 2), classes=2, rngs=nnx.Rngs(0))
      >>> print(layer_outputs(model, ["norms.1"], jnp.ones((5, 4), "float32"))["norms.1"].shape)
      (5, 2)
    """
    if isinstance(layers, str):
        raise TypeError(f"layers must be a list of names; got the string {layers!r}")
    model = nnx.merge(*nnx.split(model), copy=True)  # capturing leaves marks on it
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
            raise ValueError(f"{name!r} must be called once; it was {times} times. Called: {known}")
        (outputs[name],) = calls[name]
    return outputs
