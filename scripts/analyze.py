"""Which filters of a trained network each criterion would prune, and whether they are Gaussian.

    python scripts/analyze.py WEIGHTS                 # about 20 seconds for a ResNet-20
    python scripts/analyze.py WEIGHTS --layers layer1 layer2 --ratio 0.3 --out out/analysis

WEIGHTS is a file of safetensors, npz, Flax msgpack, PyTorch or Keras, or a folder of Orbax
checkpoints; no file can run code. A table of all layers is printed; OUT/index.html has the
pictures of the pruning paper, OUT/results.json every number.
"""

import time
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from experiments import cli
from experiments.cli import InputError
from experiments.measures import analysis
from experiments.pages import analysis as analysis_page
from experiments.pages import page
from pruning import weights


def main(
    path: Annotated[Path, tyro.conf.Positional],
    /,
    layers: tuple[str, ...] = (),
    ratio: float = 0.5,
    out: Path = Path("out/analysis"),
    gaussian_layers: int = 200,
) -> None:
    """Analyze the convolutions of a network and write OUT/index.html and OUT/results.json.

    Args:
      path: File or checkpoint folder of weights.
      layers: Only layers whose name begins with one of these.
      ratio: The fraction of filters whose choice is compared, in (0, 1].
      out: Folder for the page and its numbers.
      gaussian_layers: Gaussian layers drawn for each shape, for the bands; at least 20.
    """
    start = time.perf_counter()
    if not 0 < ratio <= 1:
        raise InputError(f"--ratio must lie in (0, 1]; got {ratio}")
    cli.at_least(20, gaussian_layers=gaussian_layers)
    try:
        found = weights.load(path, dense=True, vectors=True)
    except weights.WeightsError as error:
        raise InputError(str(error)) from error
    if layers:
        found = {name: w for name, w in found.items() if name.startswith(layers)}
    kernels = {name: w for name, w in found.items() if w.ndim > 2}
    if not kernels:
        raise InputError(
            f"--layers must begin the names of convolutions; {path.name} has none such"
        )
    results = run(kernels, found, ratio=ratio, gaussian_layers=gaussian_layers)
    results |= cli.provenance(__file__) | {
        "file": path.name,
        "settings": {"ratio": ratio, "gaussian layers": gaussian_layers, "level": analysis.LEVEL},
        "seconds": {"analysis": time.perf_counter() - start},
    }
    results = {key: page.plain(part) for key, part in results.items()}
    page.write(results, analysis_page.render(results), out)
    summarize(results)
    print(f"Open {(out / 'index.html').resolve()}")


def run(kernels: dict, found: dict, *, ratio: float, gaussian_layers: int) -> dict[str, Any]:
    results = analysis.network(kernels, ratio=ratio, gaussian_layers=gaussian_layers)
    names = [layer["name"] for layer in results["layers"]]
    chosen = list(dict.fromkeys(names[i] for i in (0, len(names) // 2, -1))) if names else []
    others = {name: w for name, w in found.items() if w.ndim <= 2 and w.size >= 16}
    return results | {
        "chosen": chosen,
        "histograms": [analysis.histogram(name, kernels[name]) for name in chosen],
        "covariances": [analysis.correlations(name, kernels[name]) for name in chosen],
        "others": [analysis.histogram(name, w) for name, w in others.items()],
    }


def summarize(results: dict[str, Any]) -> None:
    """The table of all layers."""
    table = Table(title=f"{results['file']}: {len(results['layers'])} convolutions")
    columns = ["layer", "filters", "dims", *analysis_page.SHORT.values()]
    for column in (*columns, "overlap", "KS", "below", "σ spread", "fails"):
        table.add_column(column, justify="left" if column in ("layer", "fails") else "right")
    for layer in results["layers"]:
        table.add_row(
            layer["name"],
            str(layer["filters"]),
            str(layer["dims"]),
            *(f"{rho:.3f}" for rho in layer["spearman"].values()),
            f"{min(layer['overlap'].values()):.2f}",
            f"{layer['ks']:.3f}",
            f"{layer['ks_bound']:.3f}",
            f"{layer['std_spread'] * (2 * layer['dims']) ** 0.5:.1f}",
            " ".join(analysis_page.MARKS[test] for test in layer["fails"]),
        )
    console = Console(width=max(Console().width, 140))
    console.print(table)
    console.print(analysis_page.LEGEND, markup=False)
    for name, why in results["left_out"].items():
        console.print(f"{name} {why}", markup=False)
    for pair, (count, total) in analysis_page.above(results).items():
        print(
            f"Spearman of {analysis_page.pair_label(pair)} above 0.9 in {count} of {total} layers"
        )


if __name__ == "__main__":
    cli.run(main)
