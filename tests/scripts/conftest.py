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
    """Run first the tests of the fixture `smallest`, which takes a minute in its own process.

    If the tests of `smallest` ran last, all other workers would wait for them.
    """
    items.sort(key=lambda item: "smallest" not in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="module", autouse=True)
def small_mlp():
    """Give the recipes' mlp two hidden layers instead of eleven, to save two thirds of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "MLP", partial(models.MLP, widths=(24, 8)))
        yield


@pytest.fixture(autouse=True)
def bars_end_full(monkeypatch):
    """Assert that every bar of a command that succeeds ends exactly at its total.

    The bars of tests in which nothing is trained or measured remain at 0, and are not compared.
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
    """A figure that is drawn only once, with matplotlib's default margins."""

    def __init__(self, *, figsize, layout):
        assert layout == "constrained"
        super().__init__(figsize=figsize)

    def savefig(self, fname, *, transparent=None, **options):
        assert options.pop("format") == "svg"
        FigureCanvasSVG(self).print_svg(fname, **options)


@pytest.fixture(scope="module", autouse=True)
def unfitted_figures(request):
    """Fit margins only in browser tests, because fitting takes half of the time of drawing."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("fitted_figures") is None:
            patch.setattr(plots, "Figure", UnfittedFigure)
        yield


@pytest.fixture(scope="module")
def users_jax():
    """Use JAX's default settings, because Optax mixes dtypes, and scripts run in float32."""
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
    """The trainer of one seed, which all modules share, so that it is compiled only once."""
    return trainer_of_one()
