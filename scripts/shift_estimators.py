"""Measure the errors of four estimates of the earth mover distance where the distance is known.

    python scripts/shift_estimators.py           # about ten minutes on 2 cores

The distances are known for shifted Gaussians, for Gaussians of two scales, and for the example of
the unitization paper whose distance has no bound. The script also estimates how far one epoch of
training on the digits moves the outputs of a real layer. This distance is unknown, so the exact
distance between the test samples is used instead. All estimates use 500 test samples, and the two
critics are trained on 2,000 other samples. The samples differ for every seed. The script writes OUT
and prints a table of relative errors, (estimate − distance) / distance, as mean ± standard
deviation over seeds. For Algorithm 3, the table shows the ratio estimate / distance, because
Algorithm 3's estimates are orders of magnitude smaller than the distance.
"""

if __name__ == "__main__":  # this block handles Ctrl-C during the imports
    from experiments import signals

    signals.before_imports()

from pathlib import Path

from experiments import cli, files
from experiments.options import Location, Positive, SeveralSeeds, checked
from experiments.progress import progress_bar


@checked
def main(
    seeds: SeveralSeeds = 5,
    steps: Positive = 1500,
    out: Location = Path("out/shift_estimators/results.json"),
) -> None:
    """Measure the bias and spread of four estimates of the earth mover distance.

    Args:
      seeds: The number of repetitions, each with independent samples and critics' initial weights.
      steps: The number of training steps of both critics; the paper trains for 1,500 steps.
      out: The file for the results. Two runs cannot use the folder of this file at the same time.
    """
    from experiments.measures import shift_estimators

    with files.in_use(out.parent), progress_bar() as progress:
        cases = list(shift_estimators.cases())
        results = [
            shift_estimators.measure(case, seeds, steps)
            for case in progress.track(cases, description="measuring")
        ]
        samples = {"train": shift_estimators.TRAIN, "test": shift_estimators.TEST}
        written = cli.provenance(__file__) | {
            "settings": {"seeds": seeds, "steps": steps, **samples},
            "seconds": cli.seconds(),
            "pairs": results,
        }
        files.write_results(out, written)
    show(results, seeds)


def show(results: list[dict], seeds: int) -> None:
    """Print a table with a row for each pair of distributions."""
    head = ("pair", "W₁", "exact", "slices", "lower bound", "Algorithm 3")
    title = f"(estimate − W₁) / W₁: mean ± sd of {seeds} seeds"
    cli.show_table(title, head, list(map(row, results)), min_width=120, left=head[:1])


def row(result: dict) -> list[str]:
    """The table cells for one pair: its name, its distance and the errors of the estimates."""
    *estimates, critic = result["estimates"].values()
    cells = [f"{e['bias']:+.3f} ± {e['spread']:.3f}" for e in estimates]
    return [result["name"], f"{result['distance']:.3f}", *cells, f"{1 + critic['bias']:.1e} × W₁"]


if __name__ == "__main__":
    cli.run(main)
