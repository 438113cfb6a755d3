"""A network pruned: scored, cut, recalibrated and fine-tuned, in one step or in several."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnorm._numerics import check_function, check_on_host
from pruning._arguments import check_takes
from pruning.channels._coupling.coupling import coupled_channels, fixed_channels
from pruning.channels._coupling.groups import ChannelGroup, FixedChannels
from pruning.channels._program.lines import at
from pruning.channels._removal.checkpoint import Pruned, resumed, save_pruned
from pruning.channels._removal.comparison import check_program
from pruning.channels._removal.removal import Keep, producers, remaining_groups, remove_channels
from pruning.channels._removal.resizing import resized
from pruning.channels._repair.constants import fold_constants
from pruning.channels._selection.choice import (
    Scores,
    Select,
    channel_scores,
    excluding,
    select_layerwise,
)
from pruning.channels._training_mode import check_evaluation

NOTHING = "apply must have channels that can be removed and are not excluded"
CURES = {
    "output": "give the evaluation, which returns no channels",
    "random_bits": "give the evaluation, without dropout",
    "shard_map": "give the function without shard_map",
}
RESIZE = "with resize=True channels under a norm are removed, too, as in a unitized layer"


def prune(
    apply: Callable[..., Any],
    params: Any,
    *inputs: Any,
    ratios: Sequence[float] = (),
    budgets: Sequence[int | float] = (),
    score: Callable[[Any, Sequence[ChannelGroup]], Scores] = channel_scores,
    select: Select = select_layerwise,
    exclude: Sequence[str] = (),
    fold: bool = True,
    repair: Callable[[Callable[..., Any], Any, Sequence[ChannelGroup], Keep], Any] | None = None,
    resize: bool = False,
    recalibrate: Callable[..., Any] = lambda params, *_: params,
    fine_tune: Callable[..., Any] = lambda params, *_: params,
    checkpoint_dir: Path | str | None = None,
) -> Pruned:
    """A smaller network: at each step scored, cut, recalibrated and fine-tuned.

    On the host, as shapes change. The smaller network is scored anew at each step. Nothing of
    `params` is changed in place. With `resize` channels under a norm over them, such as a
    transformer's residual stream, are removed too.

    Args:
      apply: A function that JAX can trace and that takes its widths from `params`; of a module,
        its evaluation, as in `coupled_channels`.
      params: Any tree of arrays, running statistics included.
      inputs: What else `apply` is called with, such as a few images.
      ratios: The fraction of the channels that is removed after each step, rising, such as
        `[0.5]`, all in one step, or `iterative(0.5, steps=4)`.
      budgets: In place of ratios, the cost that is left after each step, falling, for a `select`
        that takes a budget: `partial(select_within, cost=cost, round_to=8)`, its cost that of
        the groups which `exclude` leaves, `excluding(coupled_channels(...), exclude)`.
      score: Scores the channels of each group, such as
        `partial(channel_scores, criterion=fermat, reduce=jnp.max)`.
      select: Selects the channels that are kept by their scores, such as
        `partial(select_globally, min_channels=8, round_to=8)`.
      exclude: Layers whose filters are all kept: whole parts of the paths of their arrays.
      fold: Whether the constants that removed channels leave behind move into the next biases.
      repair: In place of folding, maps `(apply, params, groups, keep)` to a tree of the same shapes
        whose channels are then removed: `partial(least_squares, batches=[(images,), ...])`.
      resize: Whether the smaller tree is run by `resized(apply, pruned.groups, pruned.keep)`: for
        an `apply` that does not take its widths from `params`, or computes something else there.
      recalibrate: Maps the smaller tree to one with fresh running statistics, after each removal:
        with `jaxnorm.nnx.recalibrate`, say.
      fine_tune: Trains the smaller tree after each removal; called with it and the step from 0.
        With `resize` both are also called with a `Pruned`, whose `groups` and `keep` are those for
        `resized(train, groups, keep)`.
      checkpoint_dir: Holds a checkpoint of the latest step, from which an interrupted run resumes;
        `load_pruned` reads the last.

    Raises:
      TypeError: `ratios` or `budgets` are no list, or a function takes other arguments.
      ValueError: `apply` is a network in training mode, which computes statistics from the batch
        and leaves its running ones; `ratios` do not rise within (0, 1), `budgets` do not fall above
        0, or `select` takes none; no channel can be removed, a name of `exclude` matches none, a
        score is NaN or not one a channel; `apply` cannot be traced, or without `resize` does not
        take its widths from `params` or computes something else there; `recalibrate` or `fine_tune`
        returns a tree of other shapes; `checkpoint_dir` holds a run of other ratios or of another
        network.

    Example:
      >>> import jax
      >>> from pruning.schedules import iterative
      >>> def mlp(params, x):
      ...     return jax.nn.relu(x @ params["a"]) @ params["b"]
      >>> params = {"a": np.ones((2, 8)), "b": np.ones((8, 3))}
      >>> small = prune(mlp, params, np.ones((1, 2)), ratios=iterative(0.75, steps=2)).params
      >>> print(small["a"].shape, small["b"].shape)
      (2, 2) (2, 3)
    """
    check_on_host("prune", params, instead="prune first, and compile the smaller network")
    check_function(score, "score", "partial(channel_scores, criterion=pruning.CRITERIA['l1'])")
    _check_functions(params, score, repair, recalibrate, fine_tune, resize)
    option, targets = _targets(_listed(ratios, "ratios"), _listed(budgets, "budgets"))
    if option == "budget" and select is select_layerwise:
        raise ValueError("select must take a budget, as partial(select_within, cost=cost) does")
    check_evaluation(apply, params, inputs)
    groups = _groups(apply, params, inputs, exclude, resize)
    pruned, done = Pruned(params, groups, tuple(np.ones(g.size, bool) for g in groups)), 0
    if checkpoint_dir is not None:
        pruned, done = resumed(Path(checkpoint_dir), params, groups, targets) or (pruned, done)
    for step, target in list(enumerate(targets))[done:]:
        params, keep = pruned.params, pruned.keep
        current = remaining_groups(groups, keep)
        scores = score(params, current)
        _check_scores(scores, current)
        selected = select(_scattered(scores, keep), **{option: target})
        current_keep = [new[old] for new, old in zip(selected, keep, strict=True)]
        both = tuple(old & new for old, new in zip(keep, selected, strict=True))
        run = resized(apply, groups, keep) if resize else apply
        if repair is not None:
            params = repair(run, params, current, current_keep)
        elif fold:
            params = fold_constants(run, params, current, current_keep, *inputs)
        params = remove_channels(params, current, current_keep)
        if not resize:
            check_program(apply, params, groups, both, *inputs)
        so_far = [Pruned(params, groups, both)] if resize else []
        shapes = _shapes(params)
        params = recalibrate(params, *so_far)
        _check_shapes("recalibrate", params, shapes)
        params = fine_tune(params, step, *so_far)
        _check_shapes("fine_tune", params, shapes)
        pruned = Pruned(params, groups, both)
        if checkpoint_dir is not None:
            save_pruned(checkpoint_dir, pruned, step=step + 1, ratios=targets)
    return pruned


def _check_functions(
    params: Any,
    score: Callable[..., Any],
    repair: Callable[..., Any] | None,
    recalibrate: Callable[..., Any],
    fine_tune: Callable[..., Any],
    resize: bool,
) -> None:
    """Raise unless they take what they will be called with, before anything is computed."""
    pruned = (None,) if resize else ()
    like = "a tree and groups, as partial(channel_scores, criterion=...) is"
    check_takes(score, "score", like, params, ())
    if repair is not None:
        like = "apply, a tree, groups and keep, as partial(least_squares, batches=...) is"
        check_takes(repair, "repair", like, None, params, (), ())
    like = "the smaller tree{}" + (" and a Pruned" if resize else "")
    check_takes(recalibrate, "recalibrate", like.format(""), params, *pruned)
    check_takes(fine_tune, "fine_tune", like.format(", the step"), params, 0, *pruned)


def _groups(
    apply: Callable[..., Any], params: Any, inputs: Any, exclude: Sequence[str], resize: bool
) -> tuple[ChannelGroup, ...]:
    """The groups to prune, or why there are none."""
    groups = excluding(coupled_channels(apply, params, *inputs, resize=resize), exclude)
    if not groups:
        reasons = _reasons(fixed_channels(apply, params, *inputs, resize=resize))
        if not resize and excluding(coupled_channels(apply, params, *inputs, resize=True), exclude):
            reasons.append(RESIZE)
        raise ValueError("; ".join([NOTHING, *reasons]))
    return groups


def _reasons(reports: Sequence[FixedChannels]) -> list[str]:
    """What stands in the way, one line of the model each; outputs where there is nothing else."""
    inside = [report for report in reports if report.primitive not in ("input", "output")]
    outputs = [report for report in reports if report.primitive == "output"]
    found = dict.fromkeys((report.primitive, report.line) for report in inside or outputs)
    return [
        f"{primitive} needs all of them{at(line)}"
        + (f": {CURES[primitive]}" if primitive in CURES else "")
        for primitive, line in found
    ]


def _shapes(params: Any) -> list[tuple[int, ...]]:
    return [np.shape(leaf) for leaf in jax.tree.leaves(params)]


def _check_shapes(name: str, params: Any, shapes: list[tuple[int, ...]]) -> None:
    """A tree has the shapes that it was given with."""
    if (found := _shapes(params)) != shapes:
        got = "None" if params is None else f"{found}"
        raise ValueError(
            f"{name} must return the smaller tree that it is given, of shapes {shapes}; got {got}"
        )


def _listed(numbers: Any, name: str) -> list[int | float]:
    if not isinstance(numbers, Iterable):
        raise TypeError(f"{name} must be a list, such as [{numbers}]; got {numbers}")
    return list(numbers)


def _targets(
    ratios: list[int | float], budgets: list[int | float]
) -> tuple[str, list[int | float]]:
    """What `select` is told after each step, and the name of its option."""
    if not budgets:
        if not ratios or ratios != sorted(set(ratios)) or not 0 < ratios[0] <= ratios[-1] < 1:
            raise ValueError(f"ratios must rise within (0, 1), one at least; got {ratios}")
        return "ratio", ratios
    if ratios:
        raise ValueError(f"ratios must be empty beside budgets; got {ratios}")
    if budgets != sorted(set(budgets), reverse=True) or not budgets[-1] > 0:
        raise ValueError(f"budgets must fall and be positive; got {budgets}")
    return "budget", budgets


def _check_scores(scores: Scores, groups: Sequence[ChannelGroup]) -> None:
    for vector, group in zip(scores, groups, strict=True):
        paths = ", ".join(p.path for p in producers(group))
        if np.shape(vector) != (group.size,):
            raise ValueError(
                f"score must give one number for each of the {group.size} channels of {paths}; it "
                f"gives shape {np.shape(vector)}"
            )
        if bad := int(np.isnan(np.asarray(vector)).sum()):
            raise ValueError(
                f"score must give no NaN; it gives {bad} for the {group.size} channels of {paths}"
            )


def _scattered(scores: Scores, keep: Sequence[np.ndarray]) -> Scores:
    """The scores of all channels, −∞ for those that are removed already."""
    all_scores = []
    for vector, mask in zip(scores, keep, strict=True):
        scattered = np.full(mask.shape, -np.inf, vector.dtype)
        scattered[mask] = np.asarray(vector)
        all_scores.append(jnp.asarray(scattered))
    return all_scores
