"""Train a small language model of bytes on Python's standard library, in Hugging Face's format.

    python scripts/train_lm.py                   # about an hour of a core that does nothing else
    python scripts/train_lm.py --steps 50 --batch-size 4

The model has the architecture of Qwen 3 and two million parameters. The tokens of the model are
bytes. The model is trained on the sources of this interpreter's standard library and the topics of
`help()`; every twentieth document is held out. `prune_lm.py`, `compare_lm.py` and unchanged
`transformers` can read OUT/model. OUT/results.json has the losses, and the perplexity per byte of
held-out text. An interrupted run resumes from its last checkpoint.
"""

if __name__ == "__main__":  # this block handles Ctrl-C during the imports
    from experiments import signals

    signals.before_imports()

from dataclasses import asdict, dataclass
from pathlib import Path

from experiments import cli, files
from experiments.options import Above, Flat, LocalPath, Natural, Positive, checked


@dataclass(frozen=True)
class Options:
    """How the language model is trained.

    Attributes:
      steps: The number of steps of AdamW.
      batch_size: The number of sequences per step.
      length: The number of bytes in a sequence.
      learning_rate: The highest learning rate.
      seed: The seed of the weights and the batches.
      every: The number of steps between checkpoints.
      out: The folder for the model, its checkpoints and results.json.
    """

    steps: Positive = 14_700
    batch_size: Positive = 8
    length: Positive = 128
    learning_rate: Above = 3e-3
    seed: Natural = 0
    every: Positive = 500
    out: LocalPath = Path("out/train_lm")


@checked
def main(options: Flat[Options]) -> None:
    """Train the model, and write OUT/model and OUT/results.json."""
    with files.in_use(options.out, __file__) as check_folder:
        from experiments.language import training_run

        settings = training_run.Settings(
            **{name: value for name, value in asdict(options).items() if name != "out"}
        )
        params, found = training_run.train(settings, options.out)
        check_folder()
        from experiments.language import export

        export.write(options.out / "model", params)
        files.write_results(options.out / "results.json", cli.provenance(__file__) | found)
    cli.say(f"perplexity of a held-out byte: {found['perplexity']:.3f}")


if __name__ == "__main__":
    cli.run(main, again="start again to resume from the last checkpoint, if there is one")
