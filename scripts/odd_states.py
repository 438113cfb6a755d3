"""Compute for which activations one sample's vector becomes much longer than all others.

Such a sample is called an odd point. The layers have infinite width, recentering, and one of eight
activations.

    python scripts/odd_states.py            # about 8 minutes of a busy core

For each activation, the script computes how a layer maps the angle between two samples, the fixed
point of the map, and the depth scale. For batches of 6, 7, 10 and 30 samples, the script computes
two Gram matrices that a layer does not change. The odd state has an odd point, and the symmetric
state has equal norms and angles. The script also computes how fast deviations from each state
grow. If the growth has a closed form or is a single integral, the script also computes the growth
with 50 digits, to confirm the result. The script also draws networks of finite width for batches
of 10 samples. OUT/index.html is the page, and OUT/results.json has every value. An interrupted run
resumes after the last activation that was finished. For ReLU and 10 samples, the odd state has norm
ratio 7.41 and spectral radius 0.927.
"""

if __name__ == "__main__":  # this block handles Ctrl-C during the imports
    from experiments import signals

    signals.before_imports()

import time
from pathlib import Path

from experiments import cli, files
from experiments.options import LocalPath, checked
from experiments.progress import progress_bar


@checked
def main(out: LocalPath = Path("out/odd_states")) -> None:
    """Compute the odd and symmetric states for all activations, and write OUT/index.html.

    Args:
      out: The folder for the page and its results.
    """
    from experiments.measures import activation_states, odd_certificate
    from experiments.measures.finished import Finished
    from experiments.pages import activation_states as states_page, page

    with files.in_use(out, __file__), progress_bar() as progress:
        names = activation_states.ACTIVATIONS
        task = progress.add_task("starting", total=len(names))
        code = [Path(activation_states.__file__), Path(odd_certificate.__file__)]
        finished = Finished(out / "activations.json", list(names), code)
        for name in names:
            progress.update(task, description=name)
            if name not in finished.parts:
                start = time.perf_counter()
                found = files.plain(activation_states.measure(name))
                finished.add(name, found | {"seconds": time.perf_counter() - start})
            progress.advance(task)
        parts = {name: finished.parts[name] for name in names}
        measured = cli.provenance(__file__) | {
            "activations": parts,
            "width": activation_states.WIDTH,
            "seeds": [0],
            "layers": activation_states.LAYERS,
            "networks": activation_states.DRAWS,
            "seconds": sum(found["seconds"] for found in parts.values()),
        }
        results = page.write(measured, states_page.render, out)
    cli.say(*states_page.findings(results), f"Open {(out / 'index.html').resolve()}")


if __name__ == "__main__":
    cli.run(main, again="start again to resume after the last finished activation")
