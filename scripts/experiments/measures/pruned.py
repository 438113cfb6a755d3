"""Prune trained networks by each criterion, and measure them before and after fine-tuning.

All criteria start from the same trained network, as in Table 4 of the pruning paper.
"""

import dataclasses
import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy.stats
from flax import nnx

import pruning
from experiments import files
from experiments.cli import InputError
from experiments.data.datasets import Images
from experiments.measures import provenance
from experiments.measures.networks import mean
from experiments.measures.plan import Plan
from experiments.measures.tuning import Network, trained_networks
from experiments.progress import Stages
from experiments.recipes import Recipe
from experiments.training import networks as training_networks
from pruning.channels import coupled_channels, excluding, select_within

CURVES = {
    "linear": pruning.schedules.linear,
    "cubic": pruning.schedules.cubic,
    "geometric": pruning.schedules.geometric,
}
SCOPES = {
    "layerwise": pruning.channels.select_layerwise,
    "globally": pruning.channels.select_globally,
}
REPAIRS = {
    "none": None,
    "scale": pruning.channels.rescale,
    "least_squares": pruning.channels.least_squares,
}
REPAIR_BATCH = 125  # The largest number of images in a batch for the repair.
# The shares of channels that are removed from one group at a time, to measure the sensitivity.
SCANNED = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
STAGES = ("pruned", "recalibrated", "fine-tuned")

Row = dict[str, float]  # the accuracy of a network after each of `STAGES` in one pruning step


def ratios(plan: Plan) -> tuple[float, ...]:
    """For each step, the fraction of channels that is removed in total; empty with a budget."""
    if plan.budget is not None:
        return ()
    return pruning.schedules.iterative(plan.ratio, steps=plan.steps, curve=CURVES[plan.curve])


def units(recipe: Recipe, seeds: int, plan: Plan) -> int:
    """The expected work of training and fine-tuning, as a number of training epochs."""
    return seeds * (recipe.epochs + len(pruning.CRITERIA) * plan.steps * plan.fine_tune)


def measure(
    images: Images,
    recipe: Recipe,
    plan: Plan,
    *,
    seeds: int,
    batch_sizes: tuple[int, ...],
    run: Path,
    out: Path,
    stages: Stages,
    sensitivity: bool = False,
) -> dict[str, Any]:
    """Prune all seeds' networks by all criteria, and measure the costs of the first network.

    Args:
      images: Training and test images.
      recipe: Recipe of the trained networks.
      plan: How the networks are pruned.
      seeds: Number of networks.
      batch_sizes: The batch sizes at which networks are timed.
      run: The folder of the training run, with its checkpoints; or a weight file of the only
        network.
      out: The folder for the pruned networks.
      stages: A display of the progress of the experiment.
      sensitivity: Whether the layers of the first network are also pruned one at a time.
    """
    start = time.perf_counter()
    settings = dataclasses.asdict(recipe) | {"seeds": seeds, "training images": len(images.x_train)}
    folder = out / "networks" / digest(settings, plan, run, images.pixels)
    if not run.is_file():
        # The options are checked here, because the training takes hours.
        check_names(images, recipe, plan.exclude)
    networks = trained_networks(images, recipe, plan.fine_tune, seeds, run, stages)
    rows: list[dict[str, list[Row]]] = [{} for _ in networks]
    for network, criterion in ((n, c) for n in networks for c in pruning.CRITERIA):
        stages.describe(f"pruning by {criterion}, seed {network.seed + 1} of {seeds}")
        checkpoint_dir = folder / f"{criterion}-{network.seed}"
        rows[network.seed][criterion] = prune_by(network, criterion, plan, checkpoint_dir)
        stages.advance(plan.steps * plan.fine_tune)
    return dict(
        settings=settings,
        options=dataclasses.asdict(plan),
        ratios=ratios(plan),
        data=provenance.describe(images, len(images.x_test)),
        accuracy=accuracies([network.accuracy(network.tree) for network in networks], rows),
        **costs(networks[0], folder / "l2-0", batch_sizes),
        **({"sensitivity": layer_by_layer(networks[0], plan)} if sensitivity else {}),
        seconds=time.perf_counter() - start,
    )


def digest(settings: dict[str, Any], plan: Plan, run: Path, pixels: str) -> str:
    """A hash of settings, plan, pixels, versions, the processor type and the weight file.

    The argument `pixels` is the checksum of the images. The hash names the folder of the pruned
    networks, so a run resumes only an earlier run with the same hash. The hash does not depend on
    the code.
    """
    decisive = [settings, dataclasses.asdict(plan), pixels]
    return provenance.digest(decisive, [run] if run.is_file() else [])[:12]


def layer_by_layer(network: Network, plan: Plan) -> dict[str, Any]:
    """For each group alone, the accuracies after the group's lowest-scored channels are removed.

    In the result, the key of a group is the group's first layer, and the value has an accuracy for
    each ratio.
    """
    image = network.images.x_test[:1]
    found = coupled_channels(network.apply, network.tree, image)
    groups = excluding(found, plan.exclude)
    options = {"measure": network.accuracy, "ratios": SCANNED}
    table = pruning.channels.sensitivity(network.tree, groups, **options)
    layers = [group.positions[0].path for group in groups]
    return {"ratios": SCANNED, "accuracy": dict(zip(layers, table.tolist(), strict=True))}


def check_names(images: Images, recipe: Recipe, names: Sequence[str]) -> None:
    """Raise an error if a layer of `names` does not exist or has no removable channels.

    Raises:
      InputError: A name matches no layer with removable channels.
    """
    if not names:
        return
    shape = images.x_train.shape[1:]
    options = {"classes": images.classes, "shape": shape, "key": jax.random.key(0)}
    model = training_networks.network(recipe, **options)
    _, params, statistics = nnx.split(model, nnx.Param, nnx.BatchStat)
    inference = training_networks.inference_graph(model)

    def apply(tree: Any, x: Any) -> Any:
        merged: Any = nnx.merge(inference, tree["params"], tree["statistics"])
        return merged(x)

    tree = {"params": params, "statistics": statistics}
    try:
        excluding(coupled_channels(apply, tree, images.x_test[:1]), names)
    except ValueError as error:
        raise InputError(f"--exclude: {error}") from error


def prune_by(network: Network, criterion: str, plan: Plan, checkpoint_dir: Path) -> list[Row]:
    """Prune by a criterion in several steps, and return the accuracies after each step's stages.

    The folder `checkpoint_dir` stores the pruned network, and a JSON file beside the folder stores
    the accuracies. Therefore, a resumed run does not repeat finished steps.
    """
    path = checkpoint_dir.with_suffix(".json")
    rows: list[Row] = files.read_json(path, list) or []

    def fine_tune(tree: Any, step: int) -> Any:
        recalibrated = network.recalibrated(tree)
        fine_tuned = network.fine_tuned(recalibrated)
        values = map(network.accuracy, (tree, recalibrated, fine_tuned))
        # The new row replaces the row of an interrupted step.
        rows[step:] = [dict(zip(STAGES, values, strict=True))]
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, json.dumps(rows))
        return fine_tuned

    try:
        pruning.prune(
            network.apply,
            network.tree,
            network.images.x_test[:1],
            score=partial(pruning.channels.channel_scores, criterion=pruning.CRITERIA[criterion]),
            **removal_options(plan),
            exclude=plan.exclude,
            fold=plan.fold,
            repair=repair(plan, network.images),
            fine_tune=fine_tune,
            checkpoint_dir=checkpoint_dir,
        )
    except ValueError as error:
        raise InputError(str(error)) from error
    return rows


def removal_options(plan: Plan) -> dict[str, Any]:
    """The options of `prune` for how much is removed: ratios or a budget, and `select`."""
    limits = {"min_channels": plan.min_channels, "round_to": plan.round_to}
    if plan.budget is None:
        return {"ratios": ratios(plan), "select": partial(SCOPES[plan.scope], **limits)}
    within = {"budget": plan.budget, "select": partial(select_within, **limits)}
    if plan.unit == "milliseconds":
        read = {"cost": lambda cost: cost.timings[1].milliseconds, "batch_sizes": [1]}
        return within | read
    field = {"bytes": "size"}.get(plan.unit, plan.unit)
    return within | {"cost": lambda cost: getattr(cost, field)}


def repair(plan: Plan, images: Images) -> Any:
    """The function by which `prune` repairs the network; None if `plan.repair` is none.

    The repairs `scale` and `least_squares` use batches of equal size from the training images.
    """
    x = images.x_train
    if plan.repair == "merge":
        return partial(pruning.channels.merge_channels, inputs=(x[:1],))
    function = REPAIRS[plan.repair]
    count = min(len(x), plan.repair_images)
    size = min(REPAIR_BATCH, count // 2)
    batches = [(x[i : i + size],) for i in range(0, count - size + 1, size)]
    return None if function is None else partial(function, batches=batches)


def accuracies(trained: list[float], steps: list[dict[str, list[Row]]]) -> dict[str, Any]:
    """Mean accuracies over seeds after the last step, and the differences between criteria."""
    last = {
        stage: np.array([[rows[c][-1][stage] for c in pruning.CRITERIA] for rows in steps])
        for stage in STAGES
    }
    return {
        "trained": mean(trained),
        "by criterion": {
            criterion: {stage: mean(last[stage][:, i]) for stage in STAGES}
            for i, criterion in enumerate(pruning.CRITERIA)
        },
        "spread": {stage: mean(np.ptp(last[stage], axis=1)) for stage in STAGES},
        "friedman": {stage: friedman(last[stage]) for stage in STAGES},
        "steps": steps,
    }


def friedman(values: np.ndarray) -> dict[str, Any]:
    """Friedman's test of the hypothesis that the criteria do not differ.

    The columns of `values` are criteria, and the rows are networks, the blocks of the test.
    """
    if len(values) < 2 or not np.ptp(values, axis=1).any():
        return {"statistic": None, "p": None}
    test = scipy.stats.friedmanchisquare(*values.T)
    return {"statistic": float(test.statistic), "p": float(test.pvalue)}


def costs(network: Network, checkpoint_dir: Path, batch_sizes: tuple[int, ...]) -> dict[str, Any]:
    """The widths and the costs of a network before and after pruning.

    The pruned network is read from its checkpoint.
    """
    trees = {
        "trained": network.tree,
        "pruned": pruning.load_pruned(checkpoint_dir, like=network.tree).params,
    }
    image = network.images.x_test[:1]
    measured = {
        name: pruning.cost(network.apply, tree, image, batch_sizes=batch_sizes)
        for name, tree in trees.items()
    }
    return {
        "widths": {name: pruning.channels.widths(tree) for name, tree in trees.items()},
        "cost": {
            name: cost._asdict() | {"timings": {b: t._asdict() for b, t in cost.timings.items()}}
            for name, cost in measured.items()
        },
        "checkpoint": sum(f.stat().st_size for f in checkpoint_dir.rglob("*") if f.is_file()),
    }
