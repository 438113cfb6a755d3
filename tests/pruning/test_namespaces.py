"""Where users find the names of the package."""

import types

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
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }


def test_the_top_level_is_short():
    assert len(names(pruning) | NAMESPACES) <= 40


@pytest.mark.parametrize("namespace", sorted(NAMESPACES))
def test_a_namespace_says_what_it_holds(namespace):
    assert getattr(pruning, namespace).__doc__
    assert f"`{namespace}`" in str(pruning.__doc__)


@pytest.mark.parametrize("name", sorted(names(pruning)))
def test_a_name_at_the_top_lives_in_one_namespace(name):
    homes = [n for n in NAMESPACES if name in names(getattr(pruning, n))]
    assert len(homes) == 1
    assert getattr(pruning, name) is getattr(getattr(pruning, homes[0]), name)
