"""Prune a small language model of bytes in several ways, to compare scores and repairs.

    python scripts/compare_lm.py                           # the model of scripts/train_lm.py
    python scripts/compare_lm.py out/train_lm/model --keep 0.75 --seeds 1

The script removes key-value heads with their queries, and intermediate units, until the given
share of the parameters remains. The units with the lowest scores are removed, for each kind of
score, such as random or magnitude. The perplexity is measured after pruning, and again after the
remaining kernels are fitted by least squares on a calibration text. If the score is reconstruction,
two models are also trained: the pruned model before the fit, and the pruned model after the fit.
They are trained on the calibration text or on a share of an epoch. OUT/results.json has the
perplexity of held-out bytes for each seed. The calibration text and the random scores depend on the
seed. By default, the run takes about half an hour on one core.
"""

if __name__ == "__main__":  # this block handles Ctrl-C during the imports
    from experiments import signals

    signals.before_imports()

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from experiments import cli, files
from experiments.options import AtLeastTwo, Flat, LocalPath, Positive, Seeds, Share, checked


@dataclass(frozen=True)
class Options:
    """The model that is pruned, and how it is pruned.

    Attributes:
      model: The folder of a model whose tokens are bytes.
      keep: The shares of the parameters that remain.
      seeds: The number of repetitions. Each repetition draws its own text and its own random
        scores.
      sequences: The number of text pieces used to score units and to repair kernels.
      length: The number of bytes in a piece.
      held_out: The number of held-out text pieces on which the perplexity is measured.
      epoch: The share of the training text that fine-tuning reads; each piece is read once.
      out: The folder for results.json.
    """

    model: tyro.conf.Positional[LocalPath] = Path("out/train_lm/model")
    keep: tuple[Share, ...] = (0.75, 0.5)
    seeds: Seeds = 3
    sequences: AtLeastTwo = 32
    length: Positive = 128
    held_out: AtLeastTwo = 128
    epoch: Share = 0.05
    out: LocalPath = Path("out/compare_lm")


@checked
def main(options: Flat[Options]) -> None:
    """Prune the model in several ways, and write OUT/results.json."""
    with files.in_use(options.out, __file__):
        files.check_model(options.model, options.out)
        import jax

        from experiments.language import comparison

        settings = comparison.Settings(
            options.keep,
            options.seeds,
            options.sequences,
            options.length,
            options.held_out,
            options.epoch,
        )
        with jax.default_matmul_precision("highest"):
            found = comparison.compare(options.model, settings, cli.say)
        header = cli.provenance(__file__) | {"seconds": cli.seconds(), "seeds": options.seeds}
        results: dict[str, Any] = files.plain({**header, "settings": vars(settings), **found})
        files.write_results(options.out / "results.json", results)
    cli.show_table(
        "Perplexity of held-out bytes",
        ["kept", "score", "repair", "perplexity"],
        [
            [f"{row['keep']:.0%}", row["score"], row["repair"], f"{row['mean']:.3f}"]
            for row in results["rows"]
        ],
        left=["score", "repair"],
    )


if __name__ == "__main__":
    cli.run(main)
