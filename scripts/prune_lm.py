"""Prune a language model in a folder, without training; unchanged `transformers` loads the result.

    python scripts/prune_lm.py MODEL_DIR --keep 0.75 --text text.txt --out out/small
    python scripts/prune_lm.py MODEL_DIR --parameters 0.5B --units heads intermediate hidden \
        --text tokens.npy
    python scripts/prune_lm.py MODEL_DIR --intermediate 2304 --score magnitude --repair none

All layers lose the same numbers of key-value heads (with their query heads), of intermediate units,
of experts, and of channels of the residual stream. Therefore all layers of the smaller model have
equal widths, and the original model's class in `transformers` can load the smaller model from OUT.
Norms are adapted to the new width of the residual stream. The script reads a text to choose the
units that remain and to fit the remaining kernels. The last tenth of the text is held out. Without
--maxtext, the memory holds only one layer at a time, the embedding, the output kernel, and the
activations of the text. OUT/index.html shows what was removed, and the perplexity of held-out text
before and after each stage. A model with 0.6 billion parameters takes some minutes on two cores.
"""

if __name__ == "__main__":  # this block handles Ctrl-C during the imports
    from experiments import signals

    signals.before_imports()

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import tyro

from experiments import cli, files
from experiments.options import (
    Above,
    AtLeastTwo,
    Flat,
    LocalPath,
    Natural,
    Positive,
    Share,
    checked,
)

Unit = Literal["heads", "intermediate", "hidden", "experts"]


@dataclass(frozen=True)
class Amounts:
    """How many units of each kind remain in the pruned model.

    Attributes:
      keep: The largest share of the model's parameters that remains.
      parameters: The largest number of parameters that remain, such as 500M or 0.5B.
      gigabytes: The largest memory traffic, in gigabytes, that a forward pass over --length tokens
        in bfloat16 may have on the chip --target. Traffic counts reads and writes.
      target: The chip for which the model is compiled, to compute the memory traffic for
        --gigabytes.
      layers: The number of layers that remain.
      heads: The number of query heads that remain in each layer.
      intermediate: The number of hidden units that remain in each perceptron.
      hidden: The number of channels that remain in the residual stream.
      experts: The number of experts that remain in each mixture.
      units: The kinds of units that are removed to meet a budget; each kind loses approximately the
        same share.
      round_to: Widths that are chosen for a budget are multiples of this number.
    """

    keep: Share | None = None
    parameters: str | None = None
    gigabytes: Above | None = None
    target: Literal["v5e", "h100"] = "v5e"
    layers: Positive | None = None
    heads: Positive | None = None
    intermediate: Positive | None = None
    hidden: Positive | None = None
    experts: Positive | None = None
    units: tuple[Unit, ...] = ("heads", "intermediate", "experts")
    round_to: Positive = 32


@dataclass(frozen=True)
class Options:
    """The model that is pruned, and how it is pruned.

    Attributes:
      model: The folder of the model.
      amounts: How much of the model remains.
      text: A text file, or a .npy file of token numbers.
      score: The score by which the remaining units are selected. With --repair none, the scores
        magnitude and random need no text. With --layers, all scores except random need a text.
      repair: Whether the remaining kernels are fitted to the text by least squares.
      sequences: The number of text pieces used to score units and to repair kernels.
      length: The number of tokens in a piece.
      held_out: The number of pieces of the text's last tenth on which the perplexity is measured.
      seed: The seed for drawing the text pieces and the random scores.
      maxtext: Whether the model is also written to OUT/maxtext, an Orbax checkpoint for MaxText;
        this works only for Qwen 2 and 3.
      out: The folder for the smaller model, its page and results.json.
    """

    model: tyro.conf.Positional[LocalPath] = Path("out/train_lm/model")
    amounts: Amounts = field(default_factory=Amounts)
    text: LocalPath | None = None
    score: Literal["reconstruction", "wanda", "activation", "magnitude", "random"] = (
        "reconstruction"
    )
    repair: Literal["least_squares", "none"] = "least_squares"
    sequences: AtLeastTwo = 32
    length: Positive = 256
    held_out: Positive = 16
    seed: Natural = 0
    maxtext: bool = False
    out: LocalPath = Path("out/prune_lm")


@checked
def main(options: Flat[Options]) -> None:
    """Write the smaller model, its page and results.json to OUT."""
    amounts = options.amounts
    with files.in_use(options.out, __file__):
        files.check_model(options.model, options.out)
        import jax

        from experiments.language import folders, pruning_run
        from experiments.language.budget import Wanted
        from experiments.pages import language, page

        wanted = Wanted(
            layers=amounts.layers,
            heads=amounts.heads,
            intermediate=amounts.intermediate,
            hidden=amounts.hidden,
            experts=amounts.experts,
            budget=pruning_run.budget_of(
                options.model, amounts.keep, amounts.parameters, amounts.gigabytes
            ),
            gigabytes=amounts.gigabytes,
            target=amounts.target,
            units=amounts.units,
            round_to=amounts.round_to,
        )
        settings = pruning_run.Settings(
            options.score,
            options.repair,
            options.sequences,
            options.length,
            options.held_out,
            options.seed,
            options.maxtext,
        )
        with jax.default_matmul_precision("highest"), folders.staging(options.out) as new:
            results = pruning_run.prune(options.model, new, wanted, settings, options.text, cli.say)
            results = {**results, **cli.provenance(__file__)}
            page.write(results, language.render, new)
    for name, found in results["perplexity"].items():
        cli.say(f"perplexity of held-out text, {name}: {found['value']:.3f}")
    cli.say(f"Open {(options.out / 'index.html').resolve()}")


if __name__ == "__main__":
    cli.run(main)
