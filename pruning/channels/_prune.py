"""A network pruned: scored, cut, recalibrated and fine-tuned, in one step or in several."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnorm._numerics import check_on_host
from pruning.channels._checkpoint import Pruned, resumed, save_pruned
from pruning.channels._choice import Choose, Scores, channel_scores, excluding, layerwise
from pruning.channels._coupling import coupled_channels
from pruning.channels._folding import fold_constants
from pruning.channels._groups import ChannelGroup
from pruning.channels._removal import remaining, remove_channels


def prune(
    apply: Callable[..., Any],
    params: Any,
    *inputs: Any,
    ratios: Sequence[float],
    scores: Callable[[Any, Sequence[ChannelGroup]], Scores] = channel_scores,
    choose: Choose = layerwise,
    exclude: Sequence[str] = (),
    fold: bool = True,
    recalibrate: Callable[[Any], Any] = lambda params: params,
    fine_tune: Callable[[Any, int], Any] = lambda params, step: params,
    folder: Path | str | None = None,
) -> Pruned:
    """A smaller network: at each step scored, cut, recalibrated and fine-tuned.

    On the host, as shapes change. What remains is scored anew at each step, with the inputs that
    are left. Nothing of `params` is changed in place.

    Args:
      apply: A function that JAX can trace and that takes its widths from `params`; of a module,
        its evaluation, as in `coupled_channels`.
      params: Any tree of arrays; running statistics belong to it.
      inputs: What else `apply` is called with, such as a few images.
      ratios: Which fraction of the channels is gone after each step, rising, such as
        `[0.5]`, all in one step, or `iterative(0.5, 4)`.
      scores: Of the channels of each group, such as
        `partial(channel_scores, criterion=fermat, reduce=jnp.max)`.
      choose: Which channels are kept, such as `partial(globally, floor=8, multiple=8)`.
      exclude: Layers whose filters stay: whole parts of the paths of their arrays.
      fold: Whether the constants that removed channels leave behind move into the next biases.
      recalibrate: Maps the smaller tree to one with fresh running statistics, after each removal:
        with `jaxnorm.nnx.recalibrate`, say.
      fine_tune: Trains the smaller tree after each removal; called with it and the step from 0.
      folder: Keeps a checkpoint of the latest step, from which a run that was stopped goes on;
        `load_pruned` reads the last.

    Raises:
      ValueError: `ratios` do not rise within (0, 1); no channel can be removed, a name of
        `exclude` matches none; `apply` cannot be traced, or does not take its widths from
        `params`; `folder` holds a run of other ratios or of another network.

    Example:
      >>> from pruning.schedules import iterative
      >>> def mlp(params, x):
      ...     return jax.nn.relu(x @ params["a"]) @ params["b"]
      >>> params = {"a": np.ones((2, 8)), "b": np.ones((8, 3))}
      >>> small = prune(mlp, params, np.ones((1, 2)), ratios=iterative(0.75, 2)).params
      >>> print(small["a"].shape, small["b"].shape)
      (2, 2) (2, 3)
    """
    check_on_host("prune", params, instead="prune first, and compile the smaller network")
    _check_ratios(ratios)
    groups = excluding(coupled_channels(apply, params, *inputs), exclude)
    if not groups:
        raise ValueError("apply must have channels that can be removed; see fixed_channels")
    pruned, done = Pruned(params, groups, tuple(np.ones(g.size, bool) for g in groups)), 0
    if folder is not None:
        pruned, done = resumed(Path(folder), params, groups, ratios) or (pruned, done)
    for step, ratio in list(enumerate(ratios))[done:]:
        params, keep = pruned.params, pruned.keep
        current = remaining(groups, keep)
        chosen = choose(_scattered(scores(params, current), keep), ratio=ratio)
        stays = [new[old] for new, old in zip(chosen, keep, strict=True)]
        if fold:
            params = fold_constants(apply, params, current, stays, *inputs)
        params = remove_channels(params, current, stays)
        _check_widths(apply, params, inputs)
        params = fine_tune(recalibrate(params), step)
        both = tuple(old & new for old, new in zip(keep, chosen, strict=True))
        pruned = Pruned(params, groups, both)
        if folder is not None:
            save_pruned(folder, pruned, step=step + 1, ratios=ratios)
    return pruned


def _check_ratios(ratios: Sequence[float]) -> None:
    if not ratios or list(ratios) != sorted(set(ratios)) or not 0 < ratios[0] <= ratios[-1] < 1:
        raise ValueError(f"ratios must rise within (0, 1), one at least; got {list(ratios)}")


def _scattered(scores: Scores, keep: Sequence[np.ndarray]) -> Scores:
    """The scores of all channels, −∞ for those that are gone already."""
    return [
        jnp.full(stays.shape, -jnp.inf, vector.dtype).at[np.flatnonzero(stays)].set(vector)
        for vector, stays in zip(scores, keep, strict=True)
    ]


def _check_widths(apply: Callable[..., Any], params: Any, inputs: Sequence[Any]) -> None:
    try:
        jax.eval_shape(apply, params, *inputs)
    except Exception as error:
        raise ValueError(
            f"apply must take its widths from params; with fewer channels it raises "
            f"{type(error).__name__}: {error}"
        ) from error
