"""Arrays of weak type, such as `jnp.full(8, 0.3)`, also have a weak type after pruning.

In a model of half precision, weakly typed float32 arrays do not turn results into float32.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pruning
from pruning import channels


def apply(p, x):
    def block(h, _):
        return h + p["gain"] * (jax.nn.relu(h @ p["up"] + p["bias"]) @ p["down"]), None

    h = jax.nn.relu(jax.lax.scan(block, x, None, length=2)[0] @ p["a"] + p["shift"])
    return h @ p["b"] + p["last"]


def add_to_cache(p, cache, x):
    return cache + x @ p["a"]


def drawn(shape, seed):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), "bfloat16")


KERNELS = {"up": (4, 8), "down": (8, 4), "a": (4, 6), "b": (6, 2)}
WEAK = {"gain": (1, 4), "bias": (1, 8), "shift": (1, 6), "last": (1, 2)}
PARAMS = {name: drawn(shape, seed) for seed, (name, shape) in enumerate(KERNELS.items())}
PARAMS |= {name: jnp.full(shape, 0.3) for name, shape in WEAK.items()}
X = drawn((5, 4), 9)


def folded(params, groups, keep):
    return channels.fold_constants(apply, params, groups, keep, X)


@pytest.mark.parametrize("function", [channels.remove_channels, channels.mask_channels, folded])
@pytest.mark.parametrize("traced", [False, True])
def test_weak_types_are_kept(function, traced):
    groups = pruning.coupled_channels(apply, PARAMS, X)
    keep = [np.arange(group.size) % 2 == 0 for group in groups]
    tree = function(PARAMS, groups, keep)
    if traced and function is not folded:
        tree = jax.eval_shape(lambda params: function(params, groups, keep), PARAMS)
    assert {name for name, leaf in tree.items() if jax.typeof(leaf).weak_type} == {*WEAK}


def test_constants_are_folded_into_a_bias_of_weak_type():
    groups = pruning.coupled_channels(apply, PARAMS, X)
    keep = [np.arange(group.size) % 2 == 0 for group in groups]
    constant = 0.3 * np.asarray(PARAMS["b"], float)[1::2].sum(0)
    np.testing.assert_allclose(folded(PARAMS, groups, keep)["last"][0], 0.3 + constant, atol=0.02)


@pytest.mark.parametrize("options", [{}, {"resize": True}, {"resize": True, "fold": False}])
def test_a_pruned_model_of_half_precision_with_weak_types_runs(options):
    pruned = pruning.prune(apply, PARAMS, X, ratios=[0.5], **options)
    assert pruned.apply(pruned.params, X).dtype == "bfloat16"
    cache = jnp.full((1, 6), 0.5)
    run = pruning.resized(add_to_cache, pruned.groups, pruned.keep, states=(cache,))
    assert run(pruned.params, cache, X).dtype == "bfloat16"
