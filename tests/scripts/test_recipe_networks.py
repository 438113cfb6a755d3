"""The constructors and options of the networks that recipes name."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxnorm
from experiments.cli import InputError
from experiments.recipes import Recipe
from experiments.training import networks
from jaxnorm import models

pytestmark = pytest.mark.usefixtures("users_jax")


@pytest.fixture
def built(monkeypatch):
    """A function that maps a model's name to the constructor and the options of its network."""

    def build(model, *, shape=(32, 32, 3), streamed=False):
        networks.network(
            Recipe(model=model), classes=7, shape=shape, streamed=streamed, key=jax.random.key(0)
        )
        options = calls.pop()
        assert options.pop("classes") == 7
        assert isinstance(options.pop("rngs"), nnx.Rngs)
        assert options.pop("norm").func is jaxnorm.nnx.BatchNorm
        return options

    def record(name, *depth, **options):
        calls.append({"network": name, "depth": depth, **options})

    calls: list[Any] = []
    for name in ("MLP", "PreActResNet", "CifarResNet", "ResNet", "VGG"):
        monkeypatch.setattr(models, name, partial(record, name))
    return build


def test_a_family_is_another_network_for_imagenet(built):
    def small(name, *depth, **options):
        return {"network": name, "depth": depth, **options}

    assert built("mlp", shape=(5, 4, 3)) == small("MLP", inputs=60)  # an image has 5 · 4 · 3 values
    digits = {"shape": (8, 8, 1)}
    assert built("preact20", **digits) == small("PreActResNet", 20, bottleneck=False, channels=1)
    assert built("preact110") == small("PreActResNet", 110, bottleneck=False, channels=3)
    assert built("preact164") == small("PreActResNet", 164, bottleneck=True, channels=3)
    assert built("resnet56", **digits) == small("CifarResNet", 56, channels=1)
    assert built("vgg16") == small("VGG", 16, hidden=())
    assert built("resnet50", streamed=True) == small("ResNet", 50)
    assert built("preact101", streamed=True) == small("ResNet", 101, pre_activation=True)
    assert built("vgg16", streamed=True) == small("VGG", 16, hidden=())
    paper = {"shape": (224, 224, 3), "streamed": True}
    assert built("vgg16", **paper) == small("VGG", 16, hidden=(4096, 4096))


@pytest.mark.parametrize("model", ["mlp3", "preact", "resnet", "pears", "20"])
def test_a_family_has_a_depth_and_the_mlp_none(model, built):
    with pytest.raises(InputError, match=f"mlp_relu_first, preactN, resnetN, vggN; got {model}$"):
        built(model)


def test_there_is_no_mlp_for_imagenet(built):
    with pytest.raises(InputError, match="one of preactN, resnetN, vggN; got mlp"):
        built("mlp", streamed=True)


def norms(**recipe) -> Any:
    """The normalization layer of a recipe, for 8 channels."""
    return networks._norm(Recipe(**recipe), {})(8, rngs=nnx.Rngs(0))


def test_layers_normalize_as_the_recipe_says():
    unitized = jaxnorm.nnx.UnitizedBatchNorm
    classes = {"batch_norm": jaxnorm.nnx.BatchNorm, "unitized": unitized, "bounded": unitized}
    for name, expected in classes.items():
        layer = norms(normalization=name, running_momentum=0.7, statistics_groups=4)
        assert type(layer) is expected
        assert (layer.momentum, layer.groups) == (0.7, 4)
    x = jnp.arange(16.0).reshape(2, 8)
    np.testing.assert_array_equal(norms(normalization="none")(x), x)
    given: Any = networks._norm(Recipe(statistics_groups=4), {"groups": 2})(8, rngs=nnx.Rngs(0))
    assert given.groups == 2  # the option `groups` replaces the recipe's 4


@pytest.mark.parametrize(
    ("changes", "groups"),
    [({"norm_groups": 1}, 1), ({"norm_groups": 2}, 2), ({"norm_channels": 2}, 4), ({}, 8)],
)
def test_group_norm_has_groups_or_channels_of_a_group(changes, groups, key):
    layer = norms(normalization="group_norm", **changes)
    x = 3e-3 * jax.random.normal(key, (2, 5, 8), jnp.float32)
    parts = np.asarray(x, float).reshape(2, 5, groups, 8 // groups)
    centered = parts - parts.mean((1, 3), keepdims=True)
    # PyTorch and the papers have an epsilon of 1e-5. It matters here, because the variance has
    # nearly the same size.
    expected = centered / np.sqrt(parts.var((1, 3), keepdims=True) + 1e-5)
    np.testing.assert_allclose(layer(x), expected.reshape(2, 5, 8), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("changes", [{"norm_groups": 3}, {"norm_channels": 9}])
def test_groups_that_do_not_divide_the_channels_are_refused(changes):
    with pytest.raises(
        InputError, match=r"must divide .* every layer; a layer has 8 channels and \d"
    ):
        norms(normalization="group_norm", **changes)
