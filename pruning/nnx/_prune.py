"""Makes a function and arrays from a `flax.nnx` model, and a smaller model from smaller arrays."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flax import nnx

from jaxnorm.internal import check_call
from jaxnorm.nnx import fit_widths
from pruning import channels
from pruning.channels._removal.resizing import Resized


def evaluation(model: nnx.Module) -> tuple[Callable[..., Any], Any]:
    """A function `apply(params, *inputs)` that evaluates a model, and the tree `params`.

    Functions of `pruning` that take a network accept `apply` and `params`. The function `apply`
    runs the model in evaluation mode, and sets the widths of the model's layers to the widths of
    the arrays in `params`. The model itself is not changed, and may be in training mode.

    Example:
      >>> import jax.numpy as jnp
      >>> apply, params = evaluation(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
      >>> print(apply(params, jnp.ones((1, 3), "float32")).shape)
      (1, 2)
    """
    graph, params = _split(model)

    def apply(params: Any, *inputs: Any) -> Any:
        small: Any = _merge(graph, params)
        return small(*inputs)

    return apply, params


def prune(
    model: nnx.Module,
    *inputs: Any,
    recalibrate: Callable[[Any], object] = lambda model: None,
    fine_tune: Callable[[Any, int], object] = lambda model, step: None,
    callback: Callable[[int, Any], object] = lambda step, model: None,
    **options: Any,
) -> Any:
    """A smaller model of the class of `model`, in evaluation mode. `model` is not changed.

    In the layers of the smaller model, attributes such as `in_features` and `out_features` have the
    sizes of the smaller arrays. Call `model.train()` on the smaller model before you train it.

    Args:
      model: A model in training or evaluation mode.
      inputs: Inputs of the model, such as a few images. Booleans and strings are not traced, so
        that you can pass `False` for an argument `train`.
      recalibrate: A function that is called after each removal and changes the smaller model in
        place, such as `lambda model: jaxnorm.nnx.recalibrate(model, batches)`.
      fine_tune: A function that is called after each removal and trains the smaller model in place.
        The arguments of `fine_tune` are the smaller model and the number of the step, from 0.
      callback: A function that is called after each step with the number of the step and the
        smaller model.
      options: Any other options of `pruning.prune`, such as `ratios` or `budget`, except `resize`.
        If a module computes a different function at smaller widths, call `pruning.prune` on
        `evaluation(model)` with `resize=True`.

    Raises:
      TypeError: `pruning.prune` would raise a TypeError, `resize` was given, `inputs` is empty, or
        `recalibrate` or `fine_tune` returns a different model instead of changing its argument.
      ValueError: `pruning.prune` would raise a ValueError.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxnorm.models import MLP
      >>> model = MLP(inputs=4, widths=(16,), classes=2, rngs=nnx.Rngs(0))
      >>> small = prune(model, jnp.ones((1, 4), "float32"), ratios=[0.75])
      >>> print(small.layers[0].out_features, small(jnp.ones((1, 4), "float32")).shape)
      4 (1, 2)
    """
    if "resize" in options:
        raise TypeError(
            "resize must not be given, because a module cannot be resized: use "
            "pruning.prune(*pruning.nnx.evaluation(model), ..., resize=True)"
        )
    if not inputs:
        raise TypeError("inputs must hold one batch, as in prune(model, x, budget=0.5); got none")
    graph, _ = _split(model)
    check_call(model, "model", "a flax.nnx model", f"the inputs (here {len(inputs)})", *inputs)
    check_call(recalibrate, "recalibrate", "lambda model: ...", "the smaller model", model)
    like = "the smaller model and the step"
    check_call(fine_tune, "fine_tune", "lambda model, step: ...", like, model, 0)
    like = "the step and the smaller model"
    check_call(callback, "callback", "lambda step, model: ...", like, 0, model)
    evaluate, params = evaluation(model)
    flags = [isinstance(x, bool | str) for x in inputs]

    def apply(params: Any, *arrays: Any) -> Any:
        return evaluate(params, *_with_flags(inputs, flags, arrays))

    def in_place(name: str, change: Callable[..., object]) -> Callable[..., Any]:
        def changed(params: Any, *rest: Any) -> Any:
            small = _merge(graph, params)
            returned = change(small, *rest)
            if isinstance(returned, nnx.Module) and returned is not small:
                raise TypeError(
                    f"{name} must change the model that it gets; it returned another model: end "
                    "with nnx.update(model, nnx.state(other))"
                )
            return nnx.state(small)

        return changed

    def log(step: int, pruned: channels.Pruned) -> None:
        callback(step, _merge(graph, pruned.params))

    own = {"recalibrate": recalibrate, "fine_tune": fine_tune}
    own = {name: in_place(name, change) for name, change in own.items()} | {"callback": log}
    arrays = [x for x, flag in zip(inputs, flags, strict=True) if not flag]
    return _merge(graph, channels.prune(apply, params, *arrays, **own, **options).params)


def load_pruned(checkpoint_dir: Path | str, model: nnx.Module) -> Any:
    """Read a smaller model from the checkpoint that `prune(..., checkpoint_dir=...)` wrote.

    Args:
      checkpoint_dir: The folder of the checkpoint.
      model: The large model, or its shapes, such as `nnx.eval_shape(lambda:
        Net(rngs=nnx.Rngs(0)))`.

    Raises:
      ValueError: The folder has no checkpoint, or the checkpoint belongs to a different model or to
        a model that was pruned with `resize`.
    """
    graph, params = _split(model)
    pruned = channels.load_pruned(checkpoint_dir, like=params)
    if isinstance(pruned.apply, Resized):
        raise ValueError(
            "checkpoint_dir must have a model that was pruned without resize, because a module "
            f"cannot be resized; {checkpoint_dir} was pruned with resize=True: use apply, params = "
            "pruning.nnx.evaluation(model) and pruning.load_pruned(folder, apply, like=params)"
        )
    return _merge(graph, pruned.params)


def _split(model: nnx.Module) -> tuple[Any, Any]:
    """The graph definition and the state of a copy of the model in evaluation mode."""
    if not isinstance(model, nnx.Module):
        raise TypeError(
            f"model must be a flax.nnx.Module; got {type(model).__name__}: give a function and "
            "its arrays to pruning.prune(apply, params, ...)"
        )
    copy = nnx.merge(*nnx.split(model))
    copy.eval()
    return nnx.split(copy)


def _merge(graph: Any, params: Any) -> Any:
    return fit_widths(nnx.merge(graph, params, copy=True))


def _with_flags(inputs: Sequence[Any], flags: Sequence[bool], arrays: Sequence[Any]) -> list[Any]:
    """The `inputs` of the model, in which `arrays` replace all inputs that are not flags.

    Raises:
      TypeError: The number of `arrays` differs from the number of arrays among `inputs`.
    """
    if len(arrays) != flags.count(False):
        raise TypeError(
            f"each batch must hold as many arrays as the model reads, {flags.count(False)} "
            f"without labels; got {len(arrays)}"
        )
    left = iter(arrays)
    return [x if flag else next(left) for x, flag in zip(inputs, flags, strict=True)]
