"""All numbers of the presets, compared with the papers' printed numbers and with our choices."""

import dataclasses
import itertools
import re

import pytest

from experiments import recipes
from experiments.cli import InputError
from experiments.recipes import PRESETS, Recipe

# For each preset: the data set, the network, the number of epochs, the images per step, the
# learning rate, the epochs at which the rate drops, and the number that divides the rate.
RECIPES = {
    "digits-preact8": ("digits", "preact8", 15, 64, 0.05, (6, 10, 13), 5),
    "digits-mlp": ("digits", "mlp", 15, 32, 0.05, (6, 10, 13), 5),
    "mnist-moments": ("mnist", "mlp", 200, 128, 0.05, (61, 121, 161), 5),
    "cifar10-resnet20": ("cifar10", "preact20", 200, 128, 0.05, (61, 121, 161), 5),
    "cifar10-speed": ("cifar10", "preact20", 20, 512, 0.4, (), 5),
    "cifar10-resnet110": ("cifar10", "preact110", 200, 128, 0.05, (61, 121, 161), 5),
    "cifar10-resnet164": ("cifar10", "preact164", 200, 64, 0.05, (61, 121, 161), 5),
    "cifar100-resnet20": ("cifar100", "preact20", 200, 128, 0.05, (61, 121, 161), 5),
    "cifar100-resnet110": ("cifar100", "preact110", 200, 128, 0.05, (61, 121, 161), 5),
    "cifar100-resnet164": ("cifar100", "preact164", 200, 64, 0.05, (61, 121, 161), 5),
    "cifar10-resnet110-micro": ("cifar10", "preact110", 200, 2, 0.05, (61, 121, 161), 5),
    "imagenet-resnet101": ("imagenet2012", "preact101", 120, 64, 0.01, (31, 61, 91), 5),
    "imagenet-resnet50": ("imagenet2012", "resnet50", 90, 1024, 0.4, (), 10),
    "imagenet-resnet34": ("imagenet2012", "resnet34", 90, 256, 0.1, (31, 61), 10),
    "imagenet-vgg16": ("imagenet2012", "vgg16", 90, 256, 0.01, (31, 61), 10),
    "cifar10-resnet56": ("cifar10", "resnet56", 200, 128, 0.1, (101, 151), 10),
    "cifar10-vgg16": ("cifar10", "vgg16", 200, 128, 0.05, (101, 151), 10),
    "cifar100-vgg16": ("cifar100", "vgg16", 200, 128, 0.05, (101, 151), 10),
}
MICRO = "cifar10-resnet110-micro"
# Table 4 of the unitization paper: g4 has four groups of channels, c4 has groups of four channels.
for count in (1, 2, 4, 8, 16):
    RECIPES[f"{MICRO}-g{count}"] = RECIPES[f"{MICRO}-c{count}"] = RECIPES[MICRO]
FIELDS = ("dataset", "model", "epochs", "batch_size", "learning_rate", "drops", "drop_factor")
# For each other field: the presets in which this field differs from the paper's first experiment.
OTHERWISE = {
    "augment": {"digits-preact8": False, "digits-mlp": False, "mnist-moments": False}
    | {name: False for name in RECIPES if name.startswith("imagenet")},
    "momentum": {"mnist-moments": 0.0},
    "weight_decay": {"digits-mlp": 0.0, "mnist-moments": 0.0}
    | {name: 1e-4 for name in RECIPES if name.startswith("imagenet")},
    "running_momentum": dict.fromkeys(("digits-preact8", "digits-mlp", "cifar10-speed"), 0.9),
    "optimizer": {"imagenet-resnet50": "sgd"},
    "schedule": {"imagenet-resnet50": "cosine", "cifar10-speed": "linear"},
    "warmup": {"imagenet-resnet50": 5 / 90, "cifar10-speed": 4 / 20},
    "label_smoothing": {"imagenet-resnet50": 0.1, "cifar10-speed": 0.1},
    "normalization": {name: "group_norm" for name in RECIPES if name.startswith(f"{MICRO}-")},
    "norm_groups": {f"{MICRO}-g{count}": count for count in (1, 2, 4, 8, 16)},
    "norm_channels": {f"{MICRO}-c{count}": count for count in (1, 2, 4, 8, 16)},
}
FIRST = {
    "augment": True,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "running_momentum": 0.99,
    "optimizer": "nesterov",
    "schedule": "drops",
    "warmup": 0.0,
    "label_smoothing": 0.0,
    "normalization": "batch_norm",
    "norm_groups": 0,
    "norm_channels": 1,
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_preset_has_its_numbers(name):
    _, recipe = PRESETS[name]
    found = {field: getattr(recipe, field) for field in FIELDS}
    found["drops"] = tuple(recipes.drop_epochs(recipe))
    assert tuple(found.values()) == RECIPES[name]
    found = {field: getattr(recipe, field) for field in FIRST}
    assert found == {field: OTHERWISE[field].get(name, FIRST[field]) for field in FIRST}
    rest = [f.name for f in dataclasses.fields(Recipe) if f.name not in {*FIELDS, *FIRST}]
    assert [getattr(recipe, field) for field in rest] == [
        getattr(Recipe(), field) for field in rest
    ]


def test_images_have_the_sizes_of_section_4_3():
    recipe = Recipe()
    assert (recipe.crop, recipe.scales) == (224, (256, 480))
    assert recipe.test_scales == (224, 256, 384, 480, 640)
    assert (recipe.precision, recipe.accumulate, recipe.statistics_groups) == ("float32", 1, 1)


@pytest.mark.parametrize(
    ("epochs", "at"), [(200, (61, 121, 161)), (15, (6, 10, 13)), (10, (4, 7, 9)), (6, (3, 5, 6))]
)
def test_rates_drop_after_30_60_and_80_percent(epochs, at):
    assert tuple(recipes.drop_epochs(Recipe(epochs=epochs))) == at


@pytest.mark.parametrize("epochs", [1, 3, 30, 90, 100, 200])
def test_the_rate_drops_at_every_percent_of_the_epochs(epochs):
    """The products are exact here; in floating point, 0.07 times 100 is above 7."""
    drops = tuple(percent / 100 for percent in range(1, 100))
    found = recipes.drop_epochs(Recipe(epochs=epochs, drops=drops))
    assert found == [-(-percent * epochs // 100) + 1 for percent in range(1, 100)]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_can_be_trained(name):
    says, recipe = PRESETS[name]
    assert says
    recipes.check(recipe)


@pytest.mark.parametrize("name", [*PRESETS, "--help", "-h"])
def test_a_preset_or_an_option_begins_a_command_line(name):
    recipes.check_preset([name, "--epochs", "2"])
    recipes.check_preset([])


def test_presets_of_the_same_data_are_named_first():
    with pytest.raises(InputError, match=r"such as (cifar10\S+, ){4}cifar10\S+; got cifar10-x$"):
        recipes.check_preset(["cifar10-x"])


@pytest.mark.parametrize("name", ["cifar10", "cifr10-resnet20", "digits", "imagenet-resnet"])
def test_an_unknown_preset_is_refused_in_a_line_that_names_some_like_it(name):
    with pytest.raises(InputError, match=rf"such as \S+.*; got {name}$") as error:
        recipes.check_preset([name])
    assert len(str(error.value)) < 200
    assert all(
        word in PRESETS for word in re.findall(r"[a-z]+\d*-[a-z]+\d+", str(error.value))[:-1]
    )


def test_the_help_groups_presets_by_paper():
    groups = [text.partition(":")[0] for text, _ in recipes.PRESETS.values()]
    papers = [group for group, _ in itertools.groupby(groups)]
    assert papers == ["to try", "unitization", "pruning criteria", "no paper"]
