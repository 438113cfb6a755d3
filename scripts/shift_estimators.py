"""Errors of four estimates of the earth mover distance, for pairs of known distance.

    python scripts/shift_estimators.py           # about ten minutes on 2 cores

Gaussians that are shifted, Gaussians of two scales and the unbounded example of the unitization
paper are distributions of known distances; for the outputs of a real layer (before and after an
epoch of training on the digits) the exact distance of the test samples stands in. Each estimate
sees 2,000 training and 500 test samples, new ones for every seed. Writes OUT and prints the table:
mean ± standard deviation over seeds of estimate minus distance, over the distance; for Algorithm 3,
which is too small by orders of magnitude, the part of the distance that it is.
"""

if __name__ == "__main__":  # imported here: these imports take seconds
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
    """Measure bias and spread of the critic, its certified successor, slices and exact distance.

    Args:
      seeds: Independent samples and initializations.
      steps: Training steps of both critics; the paper's are 1,500.
      out: File for the results; its folder is kept to one run at a time.
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
    """Print one row for each pair."""
    head = ("pair", "distance", "exact", "slices", "lower bound", "Algorithm 3")
    title = f"(estimate − distance) / distance: mean ± sd of {seeds} seeds"
    cli.show_table(title, head, list(map(row, results)), min_width=120, left=head[:1])


def row(result: dict) -> list[str]:
    """A pair's name, its distance and what the estimates are beside it."""
    *estimates, critic = result["estimates"].values()
    cells = [f"{e['bias']:+.3f} ± {e['spread']:.3f}" for e in estimates]
    return [
        result["name"],
        f"{result['distance']:.3f}",
        *cells,
        f"{1 + critic['bias']:.1e} of it",
    ]


if __name__ == "__main__":
    cli.run(main)
