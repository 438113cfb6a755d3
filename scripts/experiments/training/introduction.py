"""Print the first lines of a run: its devices, its cost, and settings that have an effect."""

import jax
from jax.sharding import Mesh

from experiments import cli
from experiments.compiled.step import operations, with_prefix
from experiments.recipes import Evaluation, Recipe
from experiments.training.optimizers import takes_momentum
from experiments.training.processes import is_main_process
from experiments.training.trainer import Seeds, Trainer, platform


def introduce(
    trainer: Trainer,
    mesh: Mesh,
    groups: list[Seeds],
    note: str,
    evaluations: tuple[Evaluation, ...] = (),
) -> None:
    """Print the devices, the cost and the settings of a run, and a note on its data."""
    if is_main_process():
        first = first_line(trainer, mesh, groups)
        said = settings(trainer.recipe, streamed=trainer.streams, evaluations=evaluations)
        cli.say(first, *lines(said), *filter(None, [note]))


def first_line(trainer: Trainer, mesh: Mesh, groups: list[Seeds]) -> str:
    """A line with the devices of a run and the amount of its computation."""
    batch = trainer.recipe.batch_size
    parts = [devices_of(mesh), f"{batch} images a step"]
    if mesh.size > 1:
        parts[-1] += f", {batch // mesh.size} on each device"
    parts += [f"{trainer.parameters:,} parameters", f"{trainer.steps:,} steps an epoch"]
    if flops := operations(trainer.lower(groups[0])) / len(groups[0]):
        parts.append(f"{with_prefix(flops)} floating-point operations a step".replace("  ", " "))
    if len(groups) * len(groups[0]) > 1:
        parts.append("seeds " + ("vmapped" if len(groups) == 1 else "one after the other"))
    return ", ".join(parts)


def devices_of(mesh: Mesh) -> str:
    """A text that names the devices of a run; for several devices, it also mentions sharding."""
    kind, kind_of = mesh.devices.flat[0].device_kind, platform(mesh)
    text = f"{mesh.size} x {kind}" + (f" ({kind_of})" if kind_of != kind else "")
    if mesh.size > 1:
        text += ", batches sharded over all"
    if jax.process_count() > 1:
        text += f", {jax.process_count()} processes"
    return text


# The fields of a recipe by subject; each subject is printed in one line.
SUBJECTS = {
    "network": ("dataset", "model", "normalization", "norm_groups", "norm_channels"),
    "statistics": ("running_momentum", "statistics_groups", "precision"),
    "steps": ("epochs", "batch_size", "accumulate"),
    "rate": ("learning_rate", "schedule", "warmup", "drops", "drop_factor"),
    "optimizer": ("optimizer", "momentum", "weight_decay", "label_smoothing"),
    "images": ("augment", "crop", "scales", "test_scales"),
}


def lines(settings: dict[str, str]) -> list[str]:
    """A line for each subject, with the subject's settings and values as on the command line."""
    width = max(map(len, SUBJECTS))
    said = []
    for subject, names in SUBJECTS.items():
        texts = [
            settings[name] if name == "augment" else f"{name.replace('_', '-')} {settings[name]}"
            for name in names
            if name in settings
        ]
        said += [f"{subject:{width}}  {', '.join(texts)}"] if texts else []
    return said


def settings(
    recipe: Recipe, *, streamed: bool, evaluations: tuple[Evaluation, ...] = ()
) -> dict[str, str]:
    """The fields of a recipe on which a run's results depend, with their values.

    Args:
      recipe: Recipe of the run.
      streamed: Whether images are cropped while they are read.
      evaluations: The views of the test images on which the last state is evaluated.
    """
    unused = _unused_fields(recipe, streamed, evaluations)
    said = {name: _text(value) for name, value in vars(recipe).items() if name not in unused}
    return said | {"augment": augmentation(recipe, streamed=streamed)}


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def augmentation(recipe: Recipe, *, streamed: bool) -> str:
    """A text that describes how training images are augmented."""
    if streamed:
        low, high = recipe.scales
        return (
            f"images resized at random to a shorter side from {low} to {high}, cropped at random "
            f"to {recipe.crop} and flipped at random"
        )
    if recipe.augment:
        return "images padded by 4, cropped at random and flipped at random"
    return "images neither cropped nor flipped"


def _unused_fields(recipe: Recipe, streamed: bool, evaluations: tuple[Evaluation, ...]) -> set[str]:
    """The names of the recipe's fields that the first lines do not show.

    A field is not shown if the values of other fields make the field ineffective. The fields `crop`
    and `scales` are left out too, because the text of `augmentation` names them.
    """
    unused = {"crop", "scales"}
    if not streamed or not {"crops", "whole"} & set(evaluations):
        unused |= {"test_scales"}
    if recipe.schedule != "drops" or not recipe.drops:
        unused |= {"drops", "drop_factor"}
    if recipe.normalization not in ("batch_norm", "unitized", "bounded"):
        unused |= {"running_momentum", "statistics_groups"}
    grouped = recipe.normalization == "group_norm"
    unused |= {"norm_channels"} if grouped and recipe.norm_groups else {"norm_groups"}
    if not grouped:
        unused |= {"norm_channels"}
    if not takes_momentum(recipe.optimizer):
        unused |= {"momentum"}
    return unused
