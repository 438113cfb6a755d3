"""Prune a small language model in several ways, and measure its perplexity on held-out text."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from experiments.language import budget, choice, cutting, python_text, removal, training
from experiments.language.architecture import Architecture
from experiments.language.budget import Wanted
from experiments.language.choice import Model, Text
from experiments.language.scores import Score
from experiments.language.streams import Perplexity
from experiments.language.training import State

SCORES: tuple[Score, ...] = ("random", "magnitude", "activation", "wanda", "reconstruction")
FINE_TUNED: Score = "reconstruction"
RATE, BATCH = 1e-3, 4  # the learning rate of fine-tuning, and the sequences in a step


@dataclass(frozen=True)
class Settings:
    """How much text and training is used; the fields are the options of `compare_lm.py`."""

    keep: tuple[float, ...]
    seeds: int
    sequences: int
    length: int
    held_out: int
    epoch: float


def compare(folder: Path, settings: Settings, log: Callable[[str], None]) -> dict[str, Any]:
    """For each kept share, score and repair, the perplexity for each seed and the mean over seeds.

    Raises:
      InputError: The folder has no supported model, or no smaller model has the wanted size.
    """
    _, model = choice.read_model(folder)
    architecture = model.architecture
    texts = [draw_text(settings, seed) for seed in range(settings.seeds)]
    size = removal.parameters(architecture, model.tensors, removal.counts(architecture))
    found = {"model": architecture.family, "parameters": size, "whole": None, "rows": []}
    for keep in settings.keep:
        counts = budget.choose(
            architecture, model.tensors, Wanted(budget=int(keep * size), round_to=8)
        )
        rows: dict[tuple[str, str], list[float]] = {}
        for seed, text in enumerate(texts):
            for score, repair, perplexity in variants(model, counts, text, seed, settings):
                rows.setdefault((score, repair), []).append(perplexity.value)
                found["whole"] = found["whole"] or whole_perplexity(model, counts, text)
                log(
                    f"keep {keep:.0%}, seed {seed}, score {score}, repair {repair}: perplexity "
                    f"{perplexity.value:.3f}"
                )
        cut = {"keep": keep, "counts": counts._asdict()}
        cut["parameters"] = removal.parameters(architecture, model.tensors, counts)
        found["rows"] += [
            {**cut, "score": score, "repair": repair, **over_seeds(values)}
            for (score, repair), values in rows.items()
        ]
    return found


def whole_perplexity(model: Model, counts: removal.Counts, text: Text) -> dict[str, float]:
    """The perplexity of the whole model on held-out text, and the standard error.

    The standard error describes the random variation between sequences.
    """
    chosen = choice.choose(model, counts, "activation", text, 0, lambda _: None)
    assert chosen.perplexity is not None
    return chosen.perplexity._asdict()


def over_seeds(values: list[float]) -> dict[str, Any]:
    """The perplexities of all seeds, their mean and the standard error of the mean."""
    error = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
    return {"perplexity": values, "mean": float(np.mean(values)), "stderr": error}


def draw_text(settings: Settings, seed: int) -> Text:
    """Draw calibration bytes from the model's training documents, and held-out bytes."""
    train, held_out = python_text.load()
    whole = settings.length + 1
    drawn = python_text.windows(train, whole, settings.sequences, np.random.default_rng((seed, 1)))
    fixed = python_text.windows(held_out, whole, settings.held_out, np.random.default_rng(0))
    return Text(drawn.astype(np.int32), fixed.astype(np.int32))


def variants(
    model: Model, counts: removal.Counts, text: Text, seed: int, settings: Settings
) -> Iterator[tuple[str, str, Perplexity]]:
    """Yield the score, the repair and the perplexity of each smaller model.

    Each score has two repairs, "none" and "least squares". The score `FINE_TUNED` also has repairs
    with training.
    """
    batches = {
        "once on the text": batches_of(text.calibration, seed),
        f"{settings.epoch:.0%} of an epoch": batches_of(part_of_epoch(settings, seed), seed),
    }
    for score in SCORES:
        # One held-out sequence suffices, because the perplexity from `choose` is not used.
        scored = text._replace(held_out=text.held_out[:1])
        chosen = choice.choose(model, counts, score, scored, seed, lambda _: None)
        found: dict[str, Perplexity] = {}
        plan = cutting.plan(model, chosen.selection, text, repaired=True)
        solved = dict(cutting.arrays(plan, found, lambda _: None))
        yield score, "none", found["cut"]
        yield score, "least squares", found["repaired"]
        if score == FINE_TUNED:
            alone = plan._replace(repaired=False, text=None)
            cut = dict(cutting.arrays(alone, {}, lambda _: None))
            for name, steps in batches.items():
                for before, params in (("", cut), ("least squares, ", solved)):
                    yield score, before + name, fine_tune(plan.small, params, text, steps)


def part_of_epoch(settings: Settings, seed: int) -> Int[np.ndarray, "n t"]:
    """Divide the training text into pieces without overlap, and draw some of these pieces."""
    train, _ = python_text.load()
    whole = settings.length + 1
    pieces = train[: len(train) // whole * whole].reshape(-1, whole)
    count = max(1, round(settings.epoch * len(pieces)))
    return pieces[np.random.default_rng((seed, 2)).permutation(len(pieces))[:count]]


def batches_of(sequences: Int[np.ndarray, "n t"], seed: int) -> list[np.ndarray]:
    """Divide the sequences, in random order, into batches; leave out an incomplete last batch."""
    order = np.random.default_rng((seed, 3)).permutation(len(sequences))
    size = min(BATCH, len(sequences))
    return [sequences[order[i : i + size]] for i in range(0, len(sequences) - size + 1, size)]


def fine_tune(
    model: Architecture, arrays: dict[str, np.ndarray], text: Text, batches: list[np.ndarray]
) -> Perplexity:
    """Train a model by one step of AdamW on each batch, and return the held-out perplexity."""
    optimizer, step = make_training(model, len(batches))
    params = jax.tree.map(jnp.asarray, arrays)
    state = State(params, optimizer.init(params))
    for batch in batches:
        state, _ = step(state, jnp.asarray(batch, jnp.int32))
    return Perplexity(training.perplexity(model, state.params, text.held_out), float("nan"))


@cache
def make_training(model: Architecture, steps: int) -> tuple[Any, Any]:
    """AdamW, and a training step that is compiled only once for all models with equal widths."""
    optimizer = training.make_optimizer(RATE, steps)
    return optimizer, training.make_step(model, optimizer)
