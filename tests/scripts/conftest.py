"""Fixtures of the tests of scripts: JAX with its default settings, and small networks."""

from functools import cache, partial

import jax
import pytest
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from rich.progress import Progress

from experiments import progress
from experiments.pages import plots
from jaxnorm import models
from tests.support.small_runs import SMALL, compiled, random_images, with_steps_per_call


def pytest_collection_modifyitems(items):
    """Run the tests with the fixture `smallest` first, because this fixture takes a minute.

    If the tests with `smallest` ran last, all other pytest workers would wait.
    """
    items.sort(key=lambda item: "smallest" not in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="module", autouse=True)
def small_mlp():
    """Give the MLP of training recipes two hidden layers, not eleven, to save 2/3 of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "MLP", partial(models.MLP, widths=(24, 8)))
        yield


@pytest.fixture(autouse=True)
def bars_end_full(monkeypatch):
    """Assert that each progress bar of a successful command ends exactly at its total.

    If a test trains and measures nothing, its bars stay at 0 and are not compared.
    """
    ended = []

    def leave(bar, kind, *error):
        Progress.__exit__(bar, kind, *error)
        if kind is None:
            ended.extend((task.description, task.completed, task.total) for task in bar.tasks)

    monkeypatch.setattr(progress.Bar, "__exit__", leave, raising=False)
    yield
    for description, completed, total in ended:
        assert completed in (0, pytest.approx(total)), f"{description}: {completed} of {total}"


class UnfittedFigure(Figure):
    """A figure with matplotlib's default margins instead of the `constrained` layout."""

    def __init__(self, *, figsize, layout):
        assert layout == "constrained"
        super().__init__(figsize=figsize)

    def savefig(self, fname, *, transparent=None, **options):
        assert options.pop("format") == "svg"
        FigureCanvasSVG(self).print_svg(fname, **options)


@pytest.fixture(scope="module", autouse=True)
def unfitted_figures(request):
    """Fit margins of figures only in browser tests, as fitting takes half of the drawing time."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("fitted_figures") is None:
            patch.setattr(plots, "Figure", UnfittedFigure)
        yield


@pytest.fixture(scope="module")
def users_jax():
    """Use JAX's default settings: scripts run in float32, and Optax mixes dtypes."""
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(scope="module")
def images():
    return random_images()


@cache
def trainer_of_one():
    return with_steps_per_call(compiled(SMALL, random_images()), 1)


@pytest.fixture(scope="module")
def one(users_jax):
    """A trainer of one network; all test modules share the trainer to compile it only once."""
    return trainer_of_one()
