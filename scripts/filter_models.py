"""Compare how l1 and l2 rank trained filters with what three probability models predict.

    python scripts/filter_models.py WEIGHTS...      # about a minute a network

WEIGHTS are weight files that scripts/analyze.py can read. For each layer, the script fits the
shape of the weights' distribution, the spread of the filters' scales and the effective dimension.
From shape, spread and dimension, closed forms predict Spearman's correlation, Kendall's correlation
and the overlap of the rankings by l1 and l2. For pairs of criteria, the page compares expected
overlaps with differences between the accuracies after pruning. The accuracies come from Table 4 of
the pruning paper and from results of scripts/prune.py. OUT/index.html is the page, and
OUT/results.json has every value. For the ResNet-20, the model of Gaussian filters predicts
Spearman's correlation with an error of 0.068.
"""

if __name__ == "__main__":  # this block handles Ctrl-C during the imports
    from experiments import signals

    signals.before_imports()

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from experiments import cli, files
from experiments.options import LocalPath, checked
from experiments.texts import printable

if TYPE_CHECKING:
    import numpy as np


@checked
def main(
    paths: tyro.conf.Positional[tuple[LocalPath, ...]],
    prune: tuple[LocalPath, ...] = (),
    out: LocalPath = Path("out/filter_models"),
) -> None:
    """Fit models to layers, predict rankings, and write OUT/index.html and OUT/results.json.

    Args:
      paths: The files of weights, one for each network.
      prune: Folders that scripts/prune.py has written. The page also compares their accuracies with
        expected overlaps.
      out: The folder for the page and its results.
    """
    from experiments.measures import filter_models
    from experiments.pages import filter_models as models_page, page

    if not paths:
        raise cli.InputError("at least one weight file must be given; got none")
    with files.in_use(out, __file__):
        others = {name: pruned(folder) for name, folder in by_name(prune).items()}
        found = {n: filter_models.network(kernels(path)) for n, path in by_name(paths).items()}
        measured = cli.provenance(__file__) | {
            "networks": found,
            "accuracies": filter_models.table_4(others),
            "seeds": 0,
            "seconds": cli.seconds(),
        }
        results = page.write(measured, models_page.render, out)
    cli.say(*models_page.findings(results), f"Open {(out / 'index.html').resolve()}")


def by_name(paths: Sequence[Path]) -> dict[str, Path]:
    """The paths by their last parts, which name them on the page.

    Raises:
      InputError: Two paths have the same last part.
    """
    found: dict[str, Path] = {}
    for path in paths:
        name = printable(path.absolute().name)
        if name in found:
            raise cli.InputError(
                f"files and folders must have different names; {found[name]} and {path} are both "
                f"named {name}: rename one of them"
            )
        found[name] = path
    return found


def pruned(folder: Path) -> dict:
    """The results of scripts/prune.py in a folder."""
    found = files.read_json(folder / "results.json", dict)
    if found is None or "by criterion" not in (found.get("accuracy") or {}):
        raise cli.InputError(
            f"--prune must name folders with results of scripts/prune.py; {folder} has none: give "
            "the --out of a finished run"
        )
    return found


def kernels(path: Path) -> Mapping[str, "np.ndarray"]:
    """The kernels of a weight file's layers that have enough filters for a ranking.

    The layers are the convolutions. If the network has no convolutions, the layers are its dense
    layers.
    """
    import jax.numpy as jnp
    import numpy as np

    import pruning
    from experiments.measures import analysis, filter_models

    try:
        parameters = pruning.weights.load(path, dense=True)
    except pruning.weights.WeightsError as error:
        raise cli.InputError(str(error)) from error
    _, found = analysis.kernels_of(parameters)
    chosen = {
        printable(name): w
        for name, w in found.items()
        if not analysis.unfit(
            np.asarray(pruning.filter_matrix(jnp.asarray(w, jnp.float32))), filter_models.RATIO
        )
    }
    if len(chosen) < 2:
        raise cli.InputError(
            f"{path.name} must have at least two layers with at least 4 filters; it has "
            f"{len(chosen)}"
        )
    return chosen


if __name__ == "__main__":
    cli.run(main)
