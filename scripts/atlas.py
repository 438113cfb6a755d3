"""Train networks with eight normalizers, and relate the shift of their layers to their test losses.

    python scripts/atlas.py --data-dir DIR            # 72 runs, about 20 minutes of one core

The eight normalizers are batch norm, unitized batch norm by Equations 10 and 9 of the unitization
paper, layer norm, RMS norm, DyT, Derf and batch renormalization. The tasks are a dense network on
MNIST, a small convolutional network on Fashion-MNIST, and a small transformer on the characters of
Python's manual. OUT/index.html shows whether networks with less shift train better or faster, and
OUT/results.json has all numbers. OUT/runs has a file for each finished run. If an interrupted
script is started again, the script skips the finished runs.
"""

if __name__ == "__main__":  # this block handles Ctrl-C during the imports
    from experiments import signals

    signals.before_imports()

import json
from pathlib import Path
from typing import Any

from experiments import cli, files, storage
from experiments.options import AtLeastTwo, Location, SeveralSeeds, checked
from experiments.progress import progress_bar


@checked
def main(
    data_dir: Location | None = None,
    seeds: SeveralSeeds = 3,
    size: AtLeastTwo = 6000,
    traffic: Location | None = None,
    out: Location = Path("out/atlas"),
) -> None:
    """Train and measure all networks, and write a page that compares them.

    Args:
      data_dir: The folder that holds MNIST and Fashion-MNIST in tensorflow-datasets' format.
      seeds: The number of networks for each normalizer and task.
      size: The number of training images of a task. A task with texts has size / 4 texts.
      traffic: A file that `scripts/atlas_traffic.py` has written. The page also shows its numbers.
      out: The folder for the page, its results and finished runs.
    """
    from experiments.measures import atlas, atlas_findings
    from experiments.pages import atlas as atlas_page, page

    measured_traffic = None if traffic is None else files.read_json(traffic, dict)
    if traffic is not None and "targets" not in (measured_traffic or {}):
        raise cli.InputError(f"--traffic must be a file of scripts/atlas_traffic.py; got {traffic}")
    with files.in_use(out, __file__), progress_bar() as progress:
        storage.make_folder(out / "runs")
        cli.compiled_in(out / "compiled")
        planned = list(atlas.runs(seeds))
        task = progress.add_task("training", total=len(planned))
        runs = []
        for name, normalizer, seed in planned:
            progress.update(task, description=f"{name}, {normalizer}, seed {seed + 1} of {seeds}")
            runs.append(read_or_measure(out, name, normalizer, seed, data_dir, size))
            progress.update(task, advance=1)
    results = cli.provenance(__file__) | {
        "settings": atlas.settings(seeds, size),
        "seeds": seeds,
        "seconds": cli.seconds(),
        "runs": runs,
        "findings": atlas_findings.findings(runs),
        "traffic": measured_traffic,
    }
    results = page.write(results, atlas_page.render, out)
    cli.say(*atlas_page.sentences(results))
    cli.say(f"Open {storage.absolute(out / 'index.html')}")


def read_or_measure(
    out: Path, name: str, normalizer: str, seed: int, data_dir: Path | None, size: int
) -> dict[str, Any]:
    """The results of training one network, which are measured or read from a file.

    If the run was finished earlier with the same code, its results are only read from a file.
    """
    from experiments.measures import atlas

    run = f"{name} {normalizer} {seed}".replace(",", "").replace(" ", "_")
    path = out / "runs" / f"{atlas.fingerprint(size, data_dir)}-{run}.json"
    finished = files.read_json(path, dict)
    if finished is None:
        finished = files.plain(atlas.measure(name, normalizer, seed, data_dir, size))
        files.write(path, json.dumps(finished))
    return finished


if __name__ == "__main__":
    cli.run(main, again="start again to resume after the last finished run")
