"""Repair pruned networks without gradient steps, and measure accuracies for each criterion.

    python scripts/repair.py                     # about two minutes of a core
    python scripts/repair.py resnet20 --weights resnet20.safetensors --data-dir DIR
    python scripts/repair.py recalibration --weights resnet20.safetensors --data-dir DIR

The experiment digits repairs perceptrons and convolutional networks on scikit-learn's digits
(OUT/digits.json). The experiment resnet20 repairs a ResNet-20 that was trained on CIFAR-10
(OUT/resnet20.json). The weight file of the ResNet-20 has PyTorch's names. All repairs are repeated
with several sets of training images; the repairs with one set take 8 to 18 minutes of a core. The
experiment recalibration takes the unpruned network and recomputes its batch-norm statistics from
images that differ from the training images (OUT/recalibration.json). If OUT has digits.json and
resnet20.json, OUT/index.html shows the results of both files. A perceptron that loses half of its
channels and is repaired by least squares has an accuracy of 97 %. An interrupted run of resnet20
resumes after the last row that was saved.
"""

if __name__ == "__main__":  # this block handles Ctrl-C during the imports
    from experiments import signals

    signals.before_imports()

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import tyro

from experiments import cli, files
from experiments.cli import InputError
from experiments.options import AtLeastTwo, BelowOne, Flat, LocalPath, Positive, checked

IMAGES = ("weights", "data_dir", "images", "test")
# the options of each experiment, beside --out
OPTIONS = {"digits": (), "resnet20": (*IMAGES, "batch", "draws", "ratios"), "recalibration": IMAGES}


@dataclass(frozen=True)
class Options:
    """The networks to repair, and the number of images.

    Attributes:
      experiment: digits (networks on digits), resnet20, or recalibration (the unpruned ResNet-20 on
        other images).
      weights: The file with the ResNet-20's weights.
      data_dir: The folder with CIFAR-10 in tensorflow-datasets' format.
      images: The number of training images for the repair of the ResNet-20. For resnet20 a
        multiple of `batch` and of 25, and at least two batches.
      test: The number of CIFAR-10's test images; digits always uses all its test images.
      batch: The number of images in a batch for the repair.
      draws: The number of sets of training images that are drawn; each set has different images.
      ratios: The shares of the channels that are removed.
      out: The folder for the results and their page.
    """

    experiment: tyro.conf.Positional[Literal["digits", "resnet20", "recalibration"]] = "digits"
    weights: LocalPath | None = None
    data_dir: LocalPath | None = None
    images: Positive = 250
    test: AtLeastTwo = 2000
    batch: Positive = 125
    draws: Positive = 3
    ratios: tuple[BelowOne, ...] = (0.1, 0.2, 0.3, 0.5)
    out: LocalPath = Path("out/repair")


@checked
def main(options: Flat[Options]) -> None:
    """Repair networks, and write OUT/EXPERIMENT.json.

    If OUT has results of digits and of resnet20, write OUT/index.html too.
    """
    check_options(options)
    with files.in_use(options.out):
        measure(options)
        write_page(options.out)


def check_options(options: Options) -> None:
    """Raise InputError if the experiment lacks an option, has no use for one, or has few images."""
    given, used = (options.weights, options.data_dir), OPTIONS[options.experiment]
    if options.experiment != "digits" and None in given:
        raise InputError(f"{options.experiment} must have --weights and --data-dir; got {given}")
    for field in fields(options)[1:-1]:
        if field.name not in used and getattr(options, field.name) != field.default:
            raise InputError(
                f"--{field.name.replace('_', '-')} must not be given to {options.experiment}, "
                f"which does not use it; got {getattr(options, field.name)}"
            )
    if options.experiment == "resnet20":
        check_images(options)
    if options.experiment == "recalibration" and options.images < 4:
        raise InputError(f"--images must be at least 4, one for each batch; got {options.images}")


def check_images(options: Options) -> None:
    """Raise InputError if the training images do not fill all batches, or fill only one batch."""
    from experiments.measures.repair_images import STEP

    if options.images % options.batch or options.images % STEP:
        raise InputError(
            f"--images must be a multiple of --batch, {options.batch}, and of {STEP}; got "
            f"{options.images}"
        )
    if options.images < 2 * options.batch:
        raise InputError(
            f"--images must be at least twice --batch, {options.batch}, because least squares "
            f"needs two batches; got {options.images}"
        )


def measure(options: Options) -> None:
    """Run one experiment; each measurement is saved when it is finished."""
    path = options.out / f"{options.experiment}.json"
    before, start = files.read_json(path, dict) or {}, cli.provenance(__file__)

    def save(found: dict[str, Any]) -> None:
        spent = cli.seconds() + (before.get("seconds") or 0.0) * resumes
        whole = start | {"seconds": spent, "seeds": seeds} | found
        files.write_results(path, whole)

    resumes = options.experiment == "resnet20"
    seeds = 1 if options.experiment == "recalibration" else 3 if not resumes else options.draws
    weights, data_dir = Path(options.weights or ""), Path(options.data_dir or "")
    if options.experiment == "digits":
        from experiments.measures import repair_digits

        repair_digits.run(save)
    elif options.experiment == "resnet20":
        from experiments.measures import repair_images

        settings = repair_images.Settings(
            options.images, options.test, options.batch, options.draws, options.ratios
        )
        repair_images.run(weights, data_dir, settings, before, save)
    else:
        from experiments.measures import recalibration

        save(recalibration.run(weights, data_dir, options.images, options.test))
    cli.say(f"Wrote {path}")


def write_page(out: Path) -> None:
    """Write the page if the results of both experiments, digits and resnet20, exist."""
    digits, resnet = (
        files.read_json(out / f"{name}.json", dict) for name in ("digits", "resnet20")
    )
    if digits and resnet:
        from experiments.pages import repair

        files.write(out / "index.html", repair.render(digits, resnet))
        cli.say(f"Open {out / 'index.html'}")


if __name__ == "__main__":
    cli.run(main, again="start again to resume after the last finished row")
