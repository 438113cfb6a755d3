"""Train a small language model, and save checkpoints from which an interrupted run resumes."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import cli, signals
from experiments.cli import InputError, StoppedError
from experiments.language import python_text, training
from experiments.language.training import CONFIG, MODEL, Params, State
from experiments.training.checkpoints import Checkpoints

HELD_OUT = 512  # The number of held-out sequences.
LOGGED = 20  # The number of steps between two lines of the log.


@dataclass(frozen=True)
class Settings:
    """The settings on which the trained weights and the checkpoints depend.

    The fields are options of `train_lm.py`.
    """

    steps: int
    batch_size: int
    length: int
    learning_rate: float
    seed: int
    every: int


def train(settings: Settings, out: Path) -> tuple[Params, dict[str, Any]]:
    """Train the model, or resume its training, and measure the perplexity of held-out bytes.

    Raises:
      InputError: The checkpoints in `out` were made with other settings.
      StoppedError: A signal asked the run to end; the state is saved.
    """
    text, held_out = python_text.load()
    optimizer = training.make_optimizer(settings.learning_rate, settings.steps)
    params = training.init(jax.random.key(settings.seed), MODEL, CONFIG["vocab_size"])
    state = State(params, optimizer.init(params))
    with Checkpoints(out / "checkpoints") as saved, signals.caught() as interrupted:
        state, notes = saved.restore(state, cli.say)
        notes = notes or {"step": 0, "seconds": 0.0, "losses": [], "settings": vars(settings)}
        check_settings(notes, settings, out)
        step = training.make_step(MODEL, optimizer)
        start = time.monotonic() - notes["seconds"]
        while notes["step"] < settings.steps:
            state, value = step(state, batch(text, settings, notes["step"]))
            notes["step"] += 1
            log(notes, float(value), settings, time.monotonic() - start)
            if notes["step"] % settings.every == 0 or interrupted.is_set():
                saved.save(notes["step"], state, notes)
            if interrupted.received is not None:
                raise StoppedError(interrupted.received)
        saved.save(notes["step"], state, notes)
    return state.params, {
        "model": CONFIG,
        "parameters": sum(p.size for p in state.params.values()),
        "bytes": {"train": len(text), "held out": len(held_out)},
        "settings": vars(settings),
        "seeds": 1,
        "seconds": notes["seconds"],
        "losses": notes["losses"],
        "perplexity": training.perplexity(
            MODEL, state.params, held_out_sequences(held_out, settings.length)
        ),
    }


def check_settings(notes: dict[str, Any], settings: Settings, out: Path) -> None:
    """Raise InputError if the checkpoints in `out` were made with different settings.

    The setting `every` is not compared, because it does not change weights. Checkpoints of earlier
    versions have no settings and are accepted.
    """
    for name, new in vars(settings).items():
        old = notes.get("settings", {}).get(name, new)
        if old != new and name != "every":
            raise InputError(
                f"--out must be a folder without checkpoints of other settings; {out} has {name} "
                f"{old}, not {new}: give another --out"
            )


def batch(text: np.ndarray, settings: Settings, step: int) -> jax.Array:
    """The sequences for a training step; a resumed run draws the same sequences."""
    rng = np.random.default_rng((settings.seed, step))
    drawn = python_text.windows(text, settings.length + 1, settings.batch_size, rng)
    return jnp.asarray(drawn, jnp.int32)


def held_out_sequences(text: np.ndarray, length: int) -> np.ndarray:
    """The held-out sequences, which are the same in every measurement."""
    return python_text.windows(text, length + 1, HELD_OUT, np.random.default_rng(0))


def log(notes: dict[str, Any], value: float, settings: Settings, seconds: float) -> None:
    """Record the time; after every `LOGGED` steps, also record and print the loss."""
    notes["seconds"] = seconds
    if notes["step"] % LOGGED == 0:
        notes["losses"].append([notes["step"], value])
        cli.say(f"step {notes['step']} of {settings.steps}: loss {value:.4f}, {seconds:.0f} s")
