"""Tests of the namespaces in which users find the names of the package."""

import importlib
import types
from typing import Any

import pytest

import pruning

NAMESPACES = {
    name
    for name, value in vars(pruning).items()
    if isinstance(value, types.ModuleType)
    and value.__name__.startswith("pruning.")
    and not name.startswith("_")
}


def names(module):
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, types.ModuleType)
        and getattr(value, "__module__", module.__name__).startswith(module.__name__)
    }


def test_the_top_level_is_short():
    assert len(names(pruning) | NAMESPACES) <= 40


@pytest.mark.parametrize("namespace", sorted(NAMESPACES))
def test_a_namespace_says_what_it_holds(namespace):
    assert getattr(pruning, namespace).__doc__
    assert f"`{namespace}`" in str(pruning.__doc__)


@pytest.mark.parametrize("name", sorted(names(pruning)))
def test_a_name_at_the_top_lives_in_one_namespace(name):
    value = getattr(pruning, name)
    homes = [n for n in NAMESPACES if vars(getattr(pruning, n)).get(name) is value]
    assert len(homes) == 1


@pytest.mark.parametrize("module", ["", *sorted(NAMESPACES)])
def test_a_module_lists_its_names(module):
    found = importlib.import_module(f"pruning.{module}".rstrip("."))
    own = names(found) if module else names(found) | NAMESPACES
    assert sorted(found.__all__) == found.__all__
    assert own <= set(found.__all__) <= set(vars(found))


def test_names_that_are_rarely_used_are_reached_from_the_top_and_not_shown():
    top: Any = pruning
    assert top.chi_moment is pruning.gaussian.chi_moment
    assert top.symmetry is pruning.weight_tests.symmetry
    assert "chi_moment" not in dir(pruning)
    with pytest.raises(AttributeError, match="module 'pruning' has no attribute 'pear'"):
        _ = top.pear
