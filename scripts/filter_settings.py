"""Find which settings in Table 3 of the pruning paper make trained filters non-Gaussian.

    python scripts/filter_settings.py            # 10 to 30 minutes of a core

Each setting changes one part of the training: initialization, optimizer, regularization, learning
rate, depth, width or length of training. Networks are trained on scikit-learn's digits. All
networks of a setting are trained at once, by one compiled function. OUT/index.html has tests and
distances to Gaussian filters, before and after training, and OUT/results.json has all values. An
interrupted run resumes after the last setting that was finished. Before training, filters from
Kaiming's or Xavier's normal initialization should pass all tests.
"""

if __name__ == "__main__":  # this block handles Ctrl-C during the imports
    from experiments import signals

    signals.before_imports()

from pathlib import Path

from experiments import cli, files
from experiments.options import LocalPath, SeveralSeeds, checked
from experiments.progress import progress_bar


@checked
def main(seeds: SeveralSeeds = 3, out: LocalPath = Path("out/filter_settings")) -> None:
    """Train small networks with every setting, test their filters and write OUT/index.html.

    Args:
      seeds: The number of networks of each setting.
      out: The folder for the page and its results.
    """
    from experiments.data import datasets
    from experiments.measures import filter_settings, filter_tests, filter_training
    from experiments.pages import filter_settings as settings_page, page

    images, settings = datasets.load("digits", None), filter_settings.settings()
    with files.in_use(out, __file__), progress_bar() as progress:
        task = progress.add_task("starting", total=len(settings))
        done = iter(range(len(settings)))

        def log(name: str) -> None:
            progress.update(task, description=name, completed=next(done))

        path = out / "settings.json"
        found = filter_tests.measure(settings, images, seeds, path=path, log=log)
        progress.update(task, completed=len(settings))
        measured = cli.provenance(__file__) | {
            "seeds": seeds,
            "data": images.name,
            "base": filter_training.BASE,
            "settings": found,
            "seconds": sum(setting["seconds"] for setting in found.values()),
        }
        results = page.write(measured, settings_page.render, out)
    cli.say(*settings_page.findings(results), f"Open {(out / 'index.html').resolve()}")


if __name__ == "__main__":
    cli.run(main, again="start again to resume after the last finished setting")
