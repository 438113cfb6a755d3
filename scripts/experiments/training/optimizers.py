"""Make the optimizers and learning-rate schedules that recipes name.

An optimizer is `nesterov`, from the unitization paper, or one of Optax's optimizers that require
only a learning rate as argument.
"""

import inspect
from collections import Counter
from functools import partial
from typing import Any

import jax
import numpy as np
import optax

from experiments.cli import InputError
from experiments.recipes import Recipe, drop_epochs


def known_optimizers() -> list[str]:
    """The names of Optax's optimizers that require only a learning rate as argument."""
    found = []
    for name, make in inspect.getmembers(optax, inspect.isfunction):
        required = [
            (p.name, p.annotation)
            for p in inspect.signature(make).parameters.values()
            if p.default is p.empty
        ]
        if required == [("learning_rate", optax.ScalarOrSchedule)]:
            found.append(name)
    return found


def check_optimizer(recipe: Recipe) -> None:
    """Raise an error if the name of the recipe's optimizer is unknown.

    Raises:
      InputError: The name is neither nesterov nor one of Optax's optimizers that require only a
        learning rate as argument.
    """
    known = known_optimizers()
    if recipe.optimizer not in ("nesterov", *known):
        names = ", ".join(known)
        raise InputError(
            f"--optimizer must be nesterov or one of Optax's {names}; got {recipe.optimizer}"
        )


def takes_momentum(optimizer: str) -> bool:
    """Whether an optimizer has the option `momentum`."""
    return optimizer == "nesterov" or "momentum" in _options(optimizer)


def make_schedule(recipe: Recipe, steps: int) -> optax.Schedule:
    """The learning rate as a function of the step, counted from 0.

    Args:
      recipe: Recipe with the schedule.
      steps: The number of steps in an epoch.
    """
    warmup = round(recipe.warmup * recipe.epochs * steps)
    if recipe.schedule == "cosine":
        falling = optax.cosine_decay_schedule(recipe.learning_rate, recipe.epochs * steps - warmup)
    elif recipe.schedule == "linear":
        falling = optax.linear_schedule(recipe.learning_rate, 0.0, recipe.epochs * steps - warmup)
    else:
        # In a short run, several drops can be at the same step.
        counts = Counter(sorted(drop_epochs(recipe)))
        drops = {
            (epoch - 1) * steps - warmup: recipe.drop_factor**-times
            for epoch, times in counts.items()
        }
        falling = optax.piecewise_constant_schedule(recipe.learning_rate, drops)
    if not warmup:
        return falling
    rising = optax.linear_schedule(0.0, recipe.learning_rate, warmup)
    return optax.join_schedules([rising, falling], [warmup])


def learning_rate(recipe: Recipe, steps: int, step: int) -> float:
    """The learning rate at step number `step`, counted from 0, with six significant digits.

    An epoch has `steps` steps.
    """
    return float(f"{np.asarray(make_schedule(recipe, steps)(step)).item():.6g}")


def make_optimizer(recipe: Recipe, steps: int) -> optax.GradientTransformation:
    """Make the optimizer of a recipe; an epoch has `steps` steps.

    With `nesterov`, the gradient is multiplied by the learning rate, and the product is added to
    the velocity, as in the unitization paper's code.
    """
    schedule = make_schedule(recipe, steps)
    kernels = partial(jax.tree.map, lambda p: p.ndim > 1)
    decay = optax.add_decayed_weights(recipe.weight_decay, mask=kernels)
    if recipe.optimizer == "nesterov":
        velocity = optax.trace(recipe.momentum, nesterov=recipe.momentum > 0)
        return optax.chain(decay, optax.scale_by_learning_rate(schedule), velocity)
    make, taken = getattr(optax, recipe.optimizer), _options(recipe.optimizer)
    arguments: dict[str, Any] = {"momentum": recipe.momentum} if "momentum" in taken else {}
    mask = next((name for name in ("mask", "weight_decay_mask") if name in taken), None)
    if mask is None or "weight_decay" not in taken:
        return optax.chain(decay, make(schedule, **arguments))
    return make(schedule, **arguments, weight_decay=recipe.weight_decay, **{mask: kernels})


def _options(optimizer: str) -> set[str]:
    """The names of the options that Optax's `optimizer` has."""
    return set(inspect.signature(getattr(optax, optimizer)).parameters)
