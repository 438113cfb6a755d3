"""Python numbers among the parameters give the same results as arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pruning
from pruning import channels


def apply(p, x):
    h = jax.nn.relu((x @ p["w"] - p["mean"]) * p["scale"] / jnp.sqrt(p["var"]) + p["bias"])
    return p["gain"] * h @ p["v"].astype(h.dtype) + jnp.asarray(p["steps"], h.dtype) + p["shift"]


def drawn(number):
    rng = np.random.default_rng(0)
    arrays = {"w": rng.normal(size=(3, 8)), "v": rng.normal(size=(8, 2))}
    vectors = {"mean": rng.normal(size=8), "scale": np.full(8, 1.5), "var": np.full(8, 2.5)}
    vectors = {name: vector[None] for name, vector in (vectors | {"bias": np.ones(8)}).items()}
    return arrays | vectors | {"gain": number(0.5), "steps": number(3), "shift": number(0.25)}


X = np.random.default_rng(1).normal(size=(6, 3))
BATCHES = [(X,), (X[::-1],)]


def saved(params, folder):
    pruned = pruning.prune(
        apply, params, X, ratios=[0.25, 0.5], checkpoint_dir=folder, recalibrate=lambda p: p
    )
    again = pruning.prune(apply, params, X, ratios=[0.25, 0.5], checkpoint_dir=folder)
    loaded = pruning.load_pruned(folder, apply)
    return [p.apply(p.params, X) for p in (pruned, again, loaded)]


def folded(params, groups, keep):
    run, arrays = channels.fold_batch_norms(apply, params, X)
    return run(arrays, X)


FUNCTIONS = {
    "budget": lambda p, g, k: pruning.prune(apply, p, X, budget=0.5).params,
    "cost": lambda p, g, k: channels.cost(apply, p, X)[:2],
    "cost_at": lambda p, g, k: channels.cost_at(apply, p, g, X)([4])[:2],
    "fold_batch_norms": folded,
    "fold_constants": lambda p, g, k: channels.fold_constants(apply, p, g, k, X),
    "least_squares": lambda p, g, k: channels.least_squares(apply, p, g, k, BATCHES),
    "mask_channels": channels.mask_channels,
    "merge_channels": lambda p, g, k: channels.merge_channels(apply, p, g, k, inputs=[X]),
    "reconstruction_scores": lambda p, g, k: channels.reconstruction_scores(
        p, g, apply=apply, batches=BATCHES
    ),
    "remove_channels": channels.remove_channels,
    "rescale": lambda p, g, k: channels.rescale(apply, p, g, k, BATCHES),
    "resized": lambda p, g, k: channels.resized(apply, g, k)(channels.remove_channels(p, g, k), X),
    "sensitivity": lambda p, g, k: channels.sensitivity(
        p, g, measure=channels.output_error(apply, p, X), ratios=[0.5]
    ),
    "swap_channels": lambda p, g, k: channels.swap_channels(apply, p, g, k, batches=BATCHES),
    "taylor_scores": lambda p, g, k: channels.taylor_scores(
        p, g, loss=lambda p, x: apply(p, x).sum(), batches=[X]
    ),
    "wanda_scores": lambda p, g, k: channels.wanda_scores(p, g, apply=apply, inputs=[X]),
    "widths_for": lambda p, g, k: channels.widths_for(
        apply, p, g[0], X, widths=[2, 4], measure=channels.compiled_flops
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_python_number_counts_as_an_array(name):
    def found(number):
        params = drawn(number)
        groups = pruning.coupled_channels(apply, params, X)
        return FUNCTIONS[name](params, groups, [np.arange(8) % 2 == 0])

    jax.tree.map(np.testing.assert_allclose, found(lambda x: x), found(jnp.asarray))


def test_a_run_with_python_numbers_resumes_and_is_read(tmp_path):
    first, again, loaded = saved(drawn(lambda x: x), tmp_path)
    np.testing.assert_allclose(again, first, rtol=1e-12)
    np.testing.assert_allclose(loaded, first, rtol=1e-12)


@pytest.mark.parametrize("repair", ["fold_constants", "least_squares", "merge_channels", "rescale"])
def test_a_repair_changes_neither_numbers_nor_integers_nor_dtypes(repair):
    other = {"v": jnp.ones((8, 2), jnp.bfloat16), "steps": jnp.array([[3, 4]])}
    params = drawn(lambda x: x) | other
    groups, keep = pruning.coupled_channels(apply, params, X), [np.arange(8) % 2 == 0]
    found = FUNCTIONS[repair](params, groups, keep)
    assert (found["gain"], found["shift"]) == (0.5, 0.25)
    np.testing.assert_array_equal(found["steps"], [[3, 4]])
    dtypes = ({name: x.dtype for name, x in p.items() if np.ndim(x)} for p in (found, params))
    assert next(dtypes) == next(dtypes)
