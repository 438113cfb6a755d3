"""Published architectures: the smaller network equals the masked network."""

import re

import jax
import numpy as np
import pytest

from pruning import coupled_channels
from tests.support.architectures import ARCHITECTURES
from tools.architecture_table import HEADER, PAGE, compiled, cut, rows
from tools.tables import table_of

# No channel of these architectures can be removed, because a norm reads all channels.
UNCUT = {"ConvNeXt V2", "gMLP", "Progressive GAN, generator", "layer norm"}
QUICK = ("GPT", "GRU (flax.nnx)", "U-Net (flax.nnx)", "PReLU", "S4D")


pytestmark = pytest.mark.usefixtures("promotion")


@pytest.mark.parametrize("name", QUICK)
def test_removed_is_masked(name):
    assert cut(ARCHITECTURES[name](np.float64), 0.5).error <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.3, 0.5])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_removed_is_masked_in_float64(name, ratio):
    model = ARCHITECTURES[name](np.float64)
    found = cut(model, ratio)
    assert found.error <= 1e-12
    assert {leaf.dtype for leaf in jax.tree.leaves(found.params)} == {np.dtype(np.float64)}
    groups = coupled_channels(model.apply, model.params, *model.inputs)
    assert bool(groups) == (name not in UNCUT)


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.3, 0.5])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_removed_is_masked_in_float32_compiled(name, ratio):
    assert cut(ARCHITECTURES[name](np.float32), ratio, compiled).error <= 1e-5


@pytest.mark.slow
def test_the_page_has_the_table():
    """The table in the docs is current, except for its line numbers and rounding errors."""

    def plain(row):
        architecture, channels, parameters, _, how, stays, torch_pruning = row.split(" | ")
        return architecture, channels, parameters, how, re.sub(r":\d+", "", stays), torch_pruning

    table = table_of(PAGE, HEADER)
    assert list(map(plain, table)) == list(map(plain, rows()))
