"""What tests of training share: JAX as users have it, and a tiny run."""

from functools import cache, partial

import jax
import pytest
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from experiments.pages import plots
from jaxnorm import models
from tests.support.small_runs import SMALL, compiled, random_images, with_steps_per_call


def pytest_collection_modifyitems(items):
    """The main job, in a process of its own, comes first: no worker ends with its minute."""
    items.sort(key=lambda item: "smallest" not in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="module", autouse=True)
def small_mlp():
    """The recipes' mlp has two hidden layers in place of eleven: they are a third of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "MLP", partial(models.MLP, widths=(24, 8)))
        yield


class UnfittedFigure(Figure):
    """A figure drawn once, with matplotlib's own margins."""

    def __init__(self, *, figsize, layout):
        assert layout == "constrained"
        super().__init__(figsize=figsize)

    def savefig(self, fname, *, transparent=None, **options):
        assert options.pop("format") == "svg"
        FigureCanvasSVG(self).print_svg(fname, **options)


@pytest.fixture(scope="module", autouse=True)
def unfitted_figures(request):
    """Figures have no fitted margins, half of their time, but where a browser shows them."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("fitted_figures") is None:
            patch.setattr(plots, "Figure", UnfittedFigure)
        yield


@pytest.fixture(scope="module")
def users_jax():
    """JAX as users have it: Optax mixes dtypes, and scripts run in float32."""
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
    """The trainer of one seed, the same in all modules: it is compiled once."""
    return trainer_of_one()
