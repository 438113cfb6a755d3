"""Prunes a network in steps.

Each step scores and removes channels, and then recalibrates and fine-tunes the network.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnorm.internal import check_call, check_flags, check_function, check_numeric, check_on_host
from pruning._arguments import check_names
from pruning.channels._cost.cost import Cost
from pruning.channels._cost.cost_at import cost_at
from pruning.channels._coupling.coupling import coupled_channels, fixed_channels
from pruning.channels._coupling.groups import ChannelGroup, FixedChannels, describe
from pruning.channels._program.calls import Apply, Tree
from pruning.channels._program.interpret import check_apply
from pruning.channels._program.lines import at
from pruning.channels._removal.checkpoint import Pruned, resume, write
from pruning.channels._removal.comparison import check_program
from pruning.channels._removal.removal import Keep, check_keep, remaining_groups, remove_channels
from pruning.channels._removal.resizing import resized
from pruning.channels._repair.constants import fold_constants
from pruning.channels._selection.budget import select_within
from pruning.channels._selection.choice import (
    Masks,
    Scores,
    Select,
    channel_scores,
    check_scores,
    excluding,
    match_names,
    multiples_by_name,
    select_globally,
    select_layerwise,
)
from pruning.channels._selection.repeats import repeating, select_equally
from pruning.channels._training_mode import check_evaluation

NOTHING = "apply must have channels that can be removed"
CURES = {
    "input": "only channels that a layer of the model makes can be removed",
    "output": "give a function that returns no hidden activations or running statistics",
    "random_bits": "give the evaluation, without dropout",
    "shard_map": (
        "give the function without shard_map, and round_to=n for n devices on the mesh axis; "
        "the smaller parameters then also run under shard_map"
    ),
}
UNREAD = "it multiplies no inputs by arrays of params: use the params that apply gets"
RESIZE = (
    "pruning.prune with resize=True also removes channels that a norm reads, as in a unitized layer"
)


def prune(
    apply: Apply,
    params: Tree,
    *inputs: Tree,
    ratios: Sequence[int | float] = (),
    budget: int | float | Sequence[int | float] = (),
    cost: Callable[[Cost], int | float] | None = None,
    batch_sizes: Sequence[int] = (),
    score: Callable[[Tree, Sequence[ChannelGroup]], Scores] = channel_scores,
    select: Select | None = None,
    round_to: int | Mapping[str, int] = 1,
    equal_repeats: bool = False,
    exclude: Sequence[str] = (),
    refine: Callable[[Apply, Tree, Sequence[ChannelGroup], Keep], Keep] | None = None,
    fold: bool = True,
    repair: Callable[[Apply, Tree, Sequence[ChannelGroup], Keep], Tree] | None = None,
    resize: bool = False,
    recalibrate: Callable[..., Tree] = lambda params, *_: params,
    fine_tune: Callable[..., Tree] = lambda params, *_: params,
    callback: Callable[[int, Pruned], object] = lambda step, pruned: None,
    checkpoint_dir: Path | str | None = None,
) -> Pruned:
    """Make a network smaller in steps that score and remove channels, recalibrate and fine-tune.

    `prune` runs on the host, because a removal changes the shapes of arrays. Each step scores the
    channels of the network that the previous step returned. The arrays of `params` are not changed.
    With `resize`, channels that a norm reads, such as a transformer's residual stream, are also
    removed. To run the smaller network, call `pruned.apply(pruned.params, *inputs)`.

    Args:
      apply: A function that JAX can trace and that takes its widths from `params`, such as the
        evaluation of a module; see `coupled_channels`.
      params: Any tree of arrays, running statistics included.
      inputs: The other arguments of `apply`, such as a few images.
      ratios: Ascending fractions, one for each step. A fraction is the share of the original
        channels that the step and all earlier steps remove together. For example, `[0.5]` removes
        half of the channels in one step, and `iterative(0.5, steps=4)` removes half of the channels
        in four steps.
      budget: The largest allowed cost of the result, instead of `ratios`. A number below 1 is a
        share of the cost of the whole network. A number of 1 or more is the cost itself. For
        several steps, pass a list of descending budgets.
      cost: A function from a `Cost` to the number that `budget` limits, such as `lambda cost:
        cost.parameters`. By default, `budget` limits the multiply-accumulates of the network on
        `inputs`.
      batch_sizes: Batch sizes at which the network is timed. For example, give `[32]` for
        `cost=lambda cost: cost.timings[32].milliseconds`. With `batch_sizes`, each step compiles
        and times a few networks.
      score: A function that scores the channels of each group, such as `partial(channel_scores,
        criterion=fermat, reduce=jnp.max)`. Channels of score ∞ are kept.
      select: A function that chooses the channels to keep by their scores. The default is
        `select_layerwise` for ratios and `select_within` for a budget. Another choice is
        `partial(select_globally, min_channels=8)`. If `select` is a `partial` that sets `cost`,
        `price` or `round_to`, `prune` does not replace these values.
      round_to: The number of kept channels of a group is a multiple of `round_to`, or the group
        keeps all channels. Pass one number, or a dictionary from names of layers to numbers, such
        as `{"mlp": 128, "attention": 8}`.
      equal_repeats: Whether repeated groups keep the same number of channels, for checkpoint
        formats with one width for all layers. Groups are repeated if their sizes are equal and the
        names of their arrays differ only in numbers. `select` gets each set of repeated groups as
        one group. The scores of the one group are the mean of the sorted scores of the repeated
        groups.
      exclude: Names of layers that keep all filters. The name of a layer is one or more consecutive
        whole names of a path, such as `"stem"` or `"blocks/0"`.
      refine: A function that improves the choice of channels after `select`. The function gets
        `(apply, params, groups, keep)` and returns a better `keep` that keeps the same number of
        channels of each group. For example, pass
        `partial(swap_channels, batches=[(images,), ...])`.
      fold: Whether `prune` adds the constant outputs of removed channels to the biases of the next
        layers.
      repair: A function that is called instead of the folding of constant outputs. `repair` gets
        `(apply, params, groups, keep)` and returns a tree with the shapes of `params`. The channels
        are then removed from the returned tree. For example, pass
        `partial(least_squares, batches=[(images,), ...])`.
      resize: Whether `pruned.apply` is `resized(apply, pruned.groups, pruned.keep)`. Set `resize`
        if `apply` does not take its widths from `params`, or would compute a different function at
        the smaller widths.
      recalibrate: A function, called after each removal, that maps the smaller tree to a tree with
        new running statistics, for example by `jaxnorm.nnx.recalibrate`.
      fine_tune: A function, called after each removal, that trains the smaller tree. The arguments
        of `fine_tune` are the smaller tree and the number of the step, from 0. With `resize`,
        `recalibrate` and `fine_tune` get a `Pruned` as an additional argument `pruned`. From a
        training step `train` of the large tree, `resized(train, pruned.groups, pruned.keep)` makes
        a training step of the smaller tree.
      callback: A function that is called after each step with the number of the step, from 0, and
        the current `Pruned`.
      checkpoint_dir: The folder for a checkpoint of the latest step. An interrupted run resumes
        from the checkpoint, and `load_pruned` reads the checkpoint.

    Raises:
      TypeError: `ratios` is not a sequence of numbers, `budget` is neither a number nor a sequence
        of numbers, or a given function does not take the arguments that it would get.
      ValueError: `apply` runs the network in training mode: it computes new running statistics but
        does not return them. Neither `ratios` nor `budget` is given, or both are. The `ratios` are
        not ascending or do not lie in (0, 1). The budgets are not descending, are not positive, or
        are less than the cost of the network with the fewest channels. `cost` or `batch_sizes` is
        given with `ratios`. No channel can be removed, or the last ratio or budget removes no
        channel. A name of `exclude` or `round_to` matches no layer with filters. A score is NaN, or
        a group does not have one score for each channel. `apply` cannot be traced. Without
        `resize`, `apply` does not take its widths from `params`, or computes a different function
        at the smaller widths. `repair`, `recalibrate` or `fine_tune` returns a tree of other
        shapes. `checkpoint_dir` contains a checkpoint of a different network, or of different
        ratios, budgets, `exclude` or `resize`.

    Example:
      >>> import jax
      >>> from pruning.schedules import iterative
      >>> def mlp(params, x):
      ...     return jax.nn.relu(x @ params["a"]) @ params["b"]
      >>> params, x = {"a": np.ones((2, 8)), "b": np.ones((8, 3))}, np.ones((1, 2))
      >>> pruned = prune(mlp, params, x, ratios=iterative(0.75, steps=2))
      >>> print(pruned.params["a"].shape, pruned.apply(pruned.params, x).shape)
      (2, 2) (1, 3)
      >>> print(prune(mlp, params, x, budget=0.5).params["a"].shape)
      (2, 4)
    """
    check_on_host("prune", params, instead="prune first, and compile the smaller network")
    check_apply(apply)
    check_names(exclude, "exclude")
    check_flags(equal_repeats=equal_repeats, resize=resize, fold=fold)
    _check_functions(params, score, refine, repair, recalibrate, fine_tune, callback, resize)
    option, targets = _targets(ratios, budget, cost, batch_sizes)
    check_evaluation(apply, params, inputs)
    groups = _groups(apply, params, inputs, exclude, resize)
    keep = tuple(np.ones(g.size, bool) for g in groups)
    pruned, done, original = _result(apply, params, groups, keep, resize), 0, None
    costs = {}
    if option == "budget":
        costs = _costs(apply, params, groups, inputs, cost, batch_sizes, select)
    selector = _selector(select, option, groups, round_to, equal_repeats, costs)
    goals = _goals(targets, groups, costs)
    if checkpoint_dir is not None:
        pruned, done, original = resume(checkpoint_dir, pruned, apply, targets)
    for step, goal in list(enumerate(goals))[done:]:
        current = remaining_groups(groups, pruned.keep)
        scores = score(pruned.params, current)
        check_scores(scores, current)
        selected = selector(_scatter_scores(scores, pruned.keep), **{option: goal})
        _check_removed(groups, selected, {option: goal}, goals)
        some = [new[old] for new, old in zip(selected, pruned.keep, strict=True)]
        if refine is not None:
            some = refine(pruned.apply, pruned.params, current, some)
            check_keep(current, some, "the result of refine")
        mended = _repair_or_fold(pruned, current, some, inputs, fold, repair)
        params, keep = remove_channels(mended, current, some), _combine_keep(pruned.keep, some)
        if not resize:
            check_program(apply, params, groups, keep, *inputs)
        pruned = _result(apply, params, groups, keep, resize)
        so_far = [pruned] if resize else []
        params = _same_shapes("recalibrate", recalibrate(params, *so_far), params)
        params = _same_shapes("fine_tune", fine_tune(params, step, *so_far), params)
        pruned = pruned._replace(params=params)
        if checkpoint_dir is not None:
            write(checkpoint_dir, pruned, step + 1, targets, original)
        callback(step, pruned)
    return pruned


def _repair_or_fold(
    pruned: Pruned,
    groups: Sequence[ChannelGroup],
    keep: Keep,
    inputs: Sequence[Tree],
    fold: bool,
    repair: Callable[..., Tree] | None,
) -> Tree:
    """The tree after `repair` or the folding of constants, before channels are removed."""
    if repair is not None:
        repaired = repair(pruned.apply, pruned.params, groups, keep)
        return _same_shapes("repair", repaired, pruned.params)
    if not fold:
        return pruned.params
    return fold_constants(pruned.apply, pruned.params, groups, keep, *inputs)


def _result(
    apply: Apply,
    params: Tree,
    groups: tuple[ChannelGroup, ...],
    keep: tuple[np.ndarray, ...],
    resize: bool,
) -> Pruned:
    return Pruned(params, groups, keep, resized(apply, groups, keep) if resize else apply)


def _combine_keep(keep: Sequence[np.ndarray], some: Keep) -> tuple[np.ndarray, ...]:
    """Masks of the channels of the large network that remain after all steps so far.

    `keep` has the masks of earlier steps. The masks `some` of this step have one element for each
    channel that `keep` keeps.
    """
    both = tuple(np.copy(mask) for mask in keep)
    for mask, new in zip(both, some, strict=True):
        mask[mask] = new
    return both


def _check_functions(
    params: Tree,
    score: Callable[..., Scores],
    refine: Callable[..., Keep] | None,
    repair: Callable[..., Tree] | None,
    recalibrate: Callable[..., Tree],
    fine_tune: Callable[..., Tree],
    callback: Callable[[int, Pruned], object],
    resize: bool,
) -> None:
    """Raise if a function does not accept the arguments that `prune` will give to it."""
    pruned = (None,) if resize else ()
    example = "partial(channel_scores, criterion=pruning.CRITERIA['l1'])"
    like = "a tree and groups, as partial(channel_scores, criterion=...) is"
    check_call(score, "score", example, like, params, ())
    own = ("refine", refine, "swap_channels"), ("repair", repair, "least_squares")
    for name, function, example in own:
        if function is not None:
            example = f"partial({example}, batches=...)"
            like = f"apply, a tree, groups and keep, as {example} is"
            check_call(function, name, example, like, None, params, (), ())
    like = "the smaller tree{}" + (" and a Pruned" if resize else "")
    example, own = "lambda params: ...", like.format("")
    check_call(recalibrate, "recalibrate", example, own, params, *pruned)
    example, own = "lambda params, step: ...", like.format(", the step")
    check_call(fine_tune, "fine_tune", example, own, params, 0, *pruned)
    example, own = "lambda step, pruned: ...", "the step and a Pruned"
    check_call(callback, "callback", example, own, 0, None)


def _groups(
    apply: Apply, params: Tree, inputs: Tree, exclude: Sequence[str], resize: bool
) -> tuple[ChannelGroup, ...]:
    """The groups of channels that can be pruned.

    If no group can be pruned, the function raises an error that gives the reasons.
    """
    groups = coupled_channels(apply, params, *inputs, resize=resize)
    names = exclude if groups else ()  # without groups, no name could match
    made = match_names(groups, names, "exclude")
    left = tuple(group for group, found in zip(groups, made, strict=True) if not found)
    if not left:
        reasons = ["exclude matches all layers that make such channels: exclude fewer layers"]
        if not groups:
            reasons = _reasons(fixed_channels(apply, params, *inputs, resize=resize)) or [UNREAD]
        if excluding(coupled_channels(apply, params, *inputs, resize=True), names):
            reasons.append(RESIZE)
        raise ValueError("; ".join([NOTHING, *reasons]))
    return left


def _reasons(reports: Sequence[FixedChannels]) -> list[str]:
    """The reasons why no channel can be removed, each with a line of the model's code."""
    inside = [report for report in reports if report.primitive not in ("input", "output")]
    outputs = [report for report in reports if report.primitive == "output"]
    found = dict.fromkeys(
        (report.primitive, report.line) for report in inside or outputs or reports
    )
    return [
        f"{primitive} needs all of them{at(line)}"
        + (f": {CURES[primitive]}" if primitive in CURES else "")
        for primitive, line in found
    ]


def _same_shapes(name: str, params: Tree, given: Tree) -> Tree:
    """Return `params`, or raise an error if `params` and `given` have different shapes.

    The error names the function that returned `params`.
    """
    found, shapes = (list(describe(tree).shapes) for tree in (params, given))
    if found != shapes:
        got = "None" if params is None else f"{found}"
        raise ValueError(
            f"{name} must return a tree with the shapes of the tree it gets, {shapes}; got {got}"
        )
    return params


def _selector(
    select: Select | None,
    option: str,
    groups: Sequence[ChannelGroup],
    round_to: int | Mapping[str, int],
    equal_repeats: bool,
    costs: Mapping[str, Any],
) -> Callable[..., Masks]:
    """The function `select` with its options bound, except options of the user's `partial`."""
    default = select_within if option == "budget" else select_layerwise
    if select is not None:
        check_function(select, "select", "partial(select_globally, min_channels=8)")
    given = partial(default if select is None else select)
    if option == "budget" and given.func in (select_layerwise, select_globally):
        raise ValueError("select must take a budget, as select_within does")
    repeats = repeating(groups) if equal_repeats else [[i] for i in range(len(groups))]
    options = dict(costs)
    if round_to != 1:
        own = multiples_by_name(groups, round_to)
        options["round_to"] = [math.lcm(*(own[i] for i in alike)) for alike in repeats]
    options |= given.keywords
    named = options | {option: 0.5}
    like = f"scores with the options {', '.join(named)}, as {default.__name__} is"
    check_call(partial(given.func, *given.args), "select", "", like, (), **named)
    if equal_repeats:
        return partial(select_equally, partial(given.func, *given.args), repeats, **options)
    return partial(given.func, *given.args, **options)


def _costs(
    apply: Apply,
    params: Tree,
    groups: Sequence[ChannelGroup],
    inputs: Sequence[Tree],
    cost: Callable[[Cost], int | float] | None,
    batch_sizes: Sequence[int],
    select: Select | None,
) -> dict[str, Any]:
    """The options `cost` and `price` of `select_within`, and options of the user's `partial`."""
    own, cost = getattr(select, "keywords", {}), cost or attrgetter("macs")
    at = cost_at(apply, params, groups, *inputs)
    if not batch_sizes:
        return {"cost": lambda widths: cost(at(widths))} | own
    timed = cost_at(apply, params, groups, *inputs, batch_sizes=batch_sizes)
    functions = {
        "cost": lambda widths: cost(timed(widths)),
        "price": lambda widths: at(widths).macs,
    }
    return functions | own


def _goals(
    targets: Sequence[int | float], groups: Sequence[ChannelGroup], costs: Mapping[str, Any]
) -> list[int | float]:
    """The targets of the steps: ratios, or budgets in the unit of the cost.

    Budgets below 1 are multiplied by the cost of the whole network.
    """
    if "cost" not in costs:
        return list(targets)
    whole = costs["cost"]([group.size for group in groups])
    check_numeric(whole, "the result of cost")
    return [target * whole if target < 1 else target for target in targets]


def _targets(
    ratios: Any, budget: Any, cost: Any, batch_sizes: Sequence[int]
) -> tuple[str, list[int | float]]:
    """The name of the option of `select`, `ratio` or `budget`, and its value at each step."""
    is_array = isinstance(budget, np.generic | jax.Array)
    is_number = np.ndim(budget) == 0 if is_array else isinstance(budget, int | float)
    budgets = [budget] if is_number else budget
    kinds = {"ratios": "a list, such as [0.5]", "budget": "a number, such as 0.5, or a list"}
    for (name, kind), numbers in zip(kinds.items(), (ratios, budgets), strict=True):
        if not isinstance(numbers, Iterable) or isinstance(numbers, str):
            raise TypeError(f"{name} must be {kind}; got {numbers!r}")
    # A checkpoint can store Python's numbers, but not the numbers of NumPy or JAX.
    ratios, budgets = (np.asarray(list(numbers)).tolist() for numbers in (ratios, budgets))
    if not budgets:
        if not ratios:
            raise ValueError("ratios, such as [0.5], or a budget must be given; got neither")
        if ratios != sorted(set(ratios)) or not 0 < ratios[0] <= ratios[-1] < 1:
            raise ValueError(f"ratios must be ascending numbers in (0, 1); got {ratios}")
        if cost is not None or batch_sizes:
            given = "batch_sizes" if cost is None else "cost"
            raise ValueError(f"{given} must be omitted if ratios are given; only a budget needs it")
        return "ratio", ratios
    if ratios:
        raise ValueError(f"ratios must be empty if a budget is given; got {ratios}")
    if cost is not None:
        check_function(cost, "cost", "lambda cost: cost.parameters")
    if budgets != sorted(set(budgets), reverse=True) or not budgets[-1] > 0:
        raise ValueError(
            "budget must be a positive number or a list of descending positive numbers; got "
            f"{budgets}"
        )
    return "budget", budgets


def _check_removed(
    groups: Sequence[ChannelGroup],
    masks: Masks,
    goal: Mapping[str, int | float],
    goals: Sequence[int | float],
) -> None:
    """Raise if the masks are wrong, or if the last ratio or budget keeps all channels."""
    check_keep(groups, masks, "the result of select")
    if goals[-1] not in goal.values() or not all(map(np.all, masks)):
        return
    if "budget" in goal:
        raise ValueError(
            f"budget must be below the cost of the whole network; {goals[-1]:g} removes no channel"
        )
    raise ValueError(
        f"the last of ratios must remove a channel; {goals[-1]} removes none of at most "
        f"{max(map(len, masks))} channels in a group: give a larger ratio, or a smaller round_to "
        "or min_channels"
    )


def _scatter_scores(scores: Scores, keep: Sequence[np.ndarray]) -> Scores:
    """The scores of all channels of the large network.

    Channels that were removed earlier have the score −∞.
    """
    all_scores = []
    for vector, mask in zip(map(np.asarray, scores), keep, strict=True):
        scattered = np.full(mask.shape, -np.inf, np.promote_types(vector.dtype, np.float32))
        scattered[mask] = vector
        all_scores.append(jnp.asarray(scattered))
    return all_scores
