"""Prune a language model in one folder, and write the pruned model to another folder."""

import json
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments import files
from experiments.cli import InputError
from experiments.language import budget, choice, cutting, folders, maxtext, naming, removal, tokens
from experiments.language.architecture import Architecture
from experiments.language.budget import Wanted
from experiments.language.choice import Chosen, Model, Text
from experiments.language.cutting import Plan
from experiments.language.removal import Counts
from experiments.language.scores import ON_TEXT, Score
from experiments.language.streams import Perplexity


@dataclass(frozen=True)
class Settings:
    """How units are selected and kernels repaired; the fields are options of `prune_lm.py`."""

    score: Score = "reconstruction"
    repair: str = "least_squares"
    sequences: int = 32
    length: int = 256
    held_out: int = 16
    seed: int = 0
    maxtext: bool = False


def prune(
    folder: Path,
    out: Path,
    wanted: Wanted,
    settings: Settings,
    text: Path | None,
    log: Callable[[str], None],
) -> dict[str, Any]:
    """Prune the model in `folder`, and write the smaller model to `out`.

    The function returns the units that remain, the perplexities and the cost.

    Raises:
      InputError: The folder, a number of units or the text is not valid.
    """
    begun = time.monotonic()
    if settings.maxtext:
        maxtext.check(folder)
    config, model = choice.read_model(folder)
    architecture = model.architecture
    counts = choose_counts(folder, model, wanted, settings.length)
    sequences = read_text(folder, model, text, settings)
    check_text(architecture, counts, sequences, settings)
    chosen = choice.choose(model, counts, settings.score, sequences, settings.seed, log)
    plan = cutting.plan(
        model, chosen.selection, sequences, repaired=settings.repair == "least_squares"
    )
    found: dict[str, Perplexity] = {}
    arrays = cutting.arrays(plan, found, log)
    elements = folders.write(out, naming.to_files(architecture.family, arrays))
    folders.copy_others(folder, out)
    new = removal.rewrite_config(config, plan.small, chosen.selection)
    files.write(out / "config.json", json.dumps(new, indent=2) + "\n")
    if settings.maxtext:
        maxtext.write(out, out / "maxtext")
    return {
        **describe(model, chosen, plan, found, elements),
        "settings": vars(settings),
        "seeds": 1,
        "seconds": time.monotonic() - begun,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def choose_counts(folder: Path, model: Model, wanted: Wanted, tokens: int) -> Counts:
    """The numbers of units of the smaller model.

    Raises:
      InputError: The options keep the whole model, or no smaller model satisfies the options.
    """
    if wanted.gigabytes is None:
        counts = budget.choose(model.architecture, model.tensors, wanted)
    else:
        # This module needs the compilers, so it is imported only for a budget in bytes.
        from experiments.language import compiled_budget

        counts = compiled_budget.choose(folder, wanted, tokens)
    if counts == removal.counts(model.architecture):
        raise InputError(
            "the command must remove a part of the model, but the options keep all of it; give a "
            "smaller --keep, --parameters, --gigabytes, --layers, --heads, --intermediate, "
            "--hidden or --experts"
        )
    return counts


def describe(
    model: Model, chosen: Chosen, plan: Plan, found: dict[str, Perplexity], elements: int
) -> dict[str, Any]:
    """The units that remain, the counts of units and parameters, and the perplexities."""
    architecture = model.architecture
    whole = removal.counts(architecture)
    size = removal.parameters(architecture, model.tensors, whole)
    stages = {"whole": chosen.perplexity, **found}
    return {
        "family": architecture.family,
        "counts": {"whole": whole._asdict(), "pruned": chosen.selection.counts._asdict()},
        "heads": {"whole": architecture.heads, "pruned": plan.small.heads},
        "parameters": {"whole": size, "pruned": elements},
        "perplexity": {name: p._asdict() for name, p in stages.items() if p is not None},
        "influences": chosen.influences,
        "remaining": {
            "layers": chosen.selection.layers.tolist(),
            "groups": [indices.tolist() for indices in chosen.selection.groups],
            "experts": [indices.tolist() for indices in chosen.selection.experts],
        },
    }


def budget_of(
    folder: Path, keep: float | None, parameters: str | None, gigabytes: float | None
) -> int | None:
    """The largest number of parameters allowed by the share `keep` or by `parameters`, or None.

    Raises:
      InputError: More than one budget is given, or a budget is not a number.
    """
    budgets = {"--keep": keep, "--parameters": parameters, "--gigabytes": gigabytes}
    given = [f"{name} {value}" for name, value in budgets.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"only one of {', '.join(budgets)} must be given; got {', '.join(given)}")
    if parameters is not None:
        return budget.number(parameters)
    if keep is None:
        return None
    _, model = choice.read_model(folder)
    whole = removal.counts(model.architecture)
    return int(keep * removal.parameters(model.architecture, model.tensors, whole))


def read_text(folder: Path, model: Model, text: Path | None, settings: Settings) -> Text | None:
    """The calibration and held-out sequences of a text; None if no text is given.

    Raises:
      InputError: The text cannot be read or is too short, or the settings need a text and no text
        is given.
    """
    if text is None:
        if settings.score in ON_TEXT or settings.repair != "none":
            raise InputError(
                f"--text must be given for --score {settings.score} and --repair "
                f"{settings.repair}; without a text, use --score magnitude --repair none"
            )
        return None
    vocabulary = model.tensors[removal.EMBEDDING].shape[0]
    numbers = tokens.read(folder, text, vocabulary)
    parts = settings.length, settings.sequences, settings.held_out, settings.seed
    return Text(*tokens.divide(numbers, *parts))


def check_text(model: Architecture, counts: Counts, text: Text | None, settings: Settings) -> None:
    """Raise an error if the largest fitted kernel has more inputs than the text has tokens.

    Raises:
      InputError: The text has too few tokens, or layers must be scored on a text and no text is
        given.
    """
    if text is None and counts.layers < model.layers and settings.score != "random":
        raise InputError(
            "--text must be given for --layers, because layers are chosen by their effect on the "
            "text; without a text use --score random"
        )
    if text is None or settings.repair == "none":
        return
    sizes = removal.axis_sizes(model, counts)
    inputs = max(sizes["queries"], sizes["intermediate"], sizes["hidden"])
    rows = int(np.prod(text.calibration[:, 1:].shape))
    if rows < inputs:
        raise InputError(
            "least squares needs at least as many tokens as the largest kernel has inputs, "
            f"{inputs}; --sequences and --length give {rows}"
        )
