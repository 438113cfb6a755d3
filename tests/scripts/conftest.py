"""What the tests of commands share."""

from functools import partial

import pytest

from jaxnorm import models


@pytest.fixture(scope="module", autouse=True)
def small_mlp():
    """The recipes' mlp has three hidden layers in place of eleven: they are a third of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "MLP", partial(models.MLP, widths=(24, 16, 8)))
        yield
