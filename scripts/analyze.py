"""Show which filters of a trained network each criterion would prune, and test their normality.

    python scripts/analyze.py WEIGHTS                 # about 20 seconds for a ResNet-20
    python scripts/analyze.py WEIGHTS --layers layer1 layer2 --ratio 0.3 --out out/analysis
    python scripts/analyze.py RUN --seed 1

WEIGHTS is a file of safetensors, npz, Flax msgpack, PyTorch or Keras, or a folder of Orbax
checkpoints. Code in a file is never run. RUN is the folder of a run of scripts/train.py, from which
the newest checkpoint of one seed is read. If a network has no convolutions, its dense layers are
analyzed. The incoming weights of one neuron are then treated as a filter. The script prints a
table with a row for each layer. OUT/index.html shows the figures of the pruning paper, drawn for
this network, and OUT/results.json has every value.
"""

if __name__ == "__main__":  # this block handles Ctrl-C during the imports
    from experiments import signals

    signals.before_imports()

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from experiments import cli, files, storage
from experiments.cli import InputError
from experiments.options import LocalPath, Location, Natural, Share, at_least, checked
from experiments.texts import printable

if TYPE_CHECKING:
    import numpy as np


@checked
def main(
    path: tyro.conf.Positional[LocalPath],
    layers: tuple[str, ...] = (),
    ratio: Share = 0.5,
    out: Location = Path("out/analysis"),
    gaussian_layers: Annotated[int, at_least(20)] = 200,
    seed: Natural = 0,
) -> None:
    """Analyze the layers of a network and write OUT/index.html and OUT/results.json.

    Args:
      path: A weight file, a checkpoint folder, or the folder of a run of scripts/train.py.
      layers: Analyze only layers whose name begins with one of these texts.
      ratio: The fraction of the filters that each criterion would prune.
      out: The folder for the page and its results.
      gaussian_layers: For each layer shape, the number of layers drawn with Gaussian weights. The
        figures show their range of values as a band.
      seed: The seed of the network, if `path` is a run.
    """
    from experiments.measures import analysis
    from experiments.pages import analysis as analysis_page, page

    with files.in_use(out, __file__):
        parameters = load(path, layers, seed)
        measured = analysis.measure(parameters, ratio=ratio, gaussian_layers=gaussian_layers)
        measured |= cli.provenance(__file__) | {
            "file": printable(path.name),
            "settings": {
                "ratio": ratio,
                "gaussian layers": gaussian_layers,
                "level": analysis.LEVEL,
            },
            "seeds": None,
            "seconds": {"analysis": cli.seconds()},
        }
        results = page.write(measured, analysis_page.render, out)
    summarize(results)
    cli.say(f"Open {storage.absolute(out / 'index.html')}")


def load(path: Path, layers: tuple[str, ...], seed: int) -> Mapping[str, "np.ndarray"]:
    """The parameters of the chosen layers; at least one must be a convolution or a dense layer."""
    from experiments.measures import analysis
    from experiments.training import run_folder
    from pruning import weights

    source = path
    if run_folder.is_run(source):
        from experiments.training.trained import load_network

        source = load_network(source, seed)
    elif any(run_folder.is_run(folder) for folder in source.resolve().parents):
        raise InputError(
            f"path must be the folder of a run, which holds recipe.json; got {source}, which is "
            "inside a folder of a run"
        )
    try:
        parameters = weights.load(source, dense=True, vectors=True)
    except weights.WeightsError as error:
        raise InputError(str(error)) from error
    kind, kernels = analysis.kernels_of(parameters)
    if not kernels:
        raise InputError(f"{path.name} must have convolutions or dense layers; it has neither")
    chosen = {n: w for n, w in parameters.items() if n.startswith(layers or "")}
    if not kernels.keys() & chosen.keys():
        raise InputError(
            f"--layers must be the beginning of a name among the {kind}; in {path.name}, no such "
            f"name begins with {layers}"
        )
    return {printable(name): w for name, w in chosen.items()}


def summarize(results: dict) -> None:
    """Print a table with a row for each layer, and then the conclusions of the analysis."""
    from experiments.measures import analysis
    from experiments.pages import analysis as analysis_page
    from experiments.pages.series import pair_label

    title = f"{results['file']}: {len(results['layers'])} {results['kind']}"
    columns = analysis_page.layer_columns(results["layers"])
    head = [name for name in columns if name != "dead"]
    rows = zip(*(columns[name] for name in head), strict=True)
    cli.show_table(title, head, rows, min_width=140, left=("layer", "fails"))
    cli.say(analysis_page.LEGEND, *analysis_page.conclusion(results))
    cli.say(*(f"{name} {why}" for name, why in results["left_out"].items()))
    for pair, (count, total) in analysis.above(results).items():
        cli.say(f"Spearman of {pair_label(pair)} above 0.9 in {count} of {total} layers")


if __name__ == "__main__":
    cli.run(main)
