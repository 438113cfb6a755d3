"""`jax.export` writes a pruned model for any batch size, and reads the same model."""

from functools import partial

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import pruning
from pruning.channels import fold_batch_norms, resized
from tests.support.exported import FRAMEWORKS

pytestmark = pytest.mark.usefixtures("promotion")


def read_back_equal(call, x):
    """Export `call` for a symbolic batch size, read it, and compare results for two batch sizes."""
    pytest.importorskip("flatbuffers")
    (n,) = jax.export.symbolic_shape("n")
    image = jax.ShapeDtypeStruct((n, *x.shape[1:]), x.dtype)
    exported = jax.export.export(jax.jit(call))(image)
    read = jax.export.deserialize(exported.serialize())
    for size in (1, 3):
        found = read.call(x[:size])
        np.testing.assert_array_equal(found, exported.call(x[:size]))
        np.testing.assert_allclose(found, call(x[:size]), rtol=1e-5, atol=1e-6)


def half(apply, params, x, **options):
    def by_number(params, groups):
        return [jnp.arange(1.0, group.size + 1) for group in groups]

    return pruning.prune(apply, params, x[:1], ratios=[0.5], score=by_number, fold=False, **options)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_pruned_model_is_read_back_equal(framework):
    apply, params, x = FRAMEWORKS[framework]()
    small = half(apply, params, x).params
    read_back_equal(partial(apply, small), x)


@pytest.mark.slow
def test_a_folded_model_is_read_back_equal():
    apply, params, x = FRAMEWORKS["flax.linen"]()
    run, arrays = fold_batch_norms(apply, params, x[:1])
    read_back_equal(partial(run, arrays), x)


@pytest.mark.slow
def test_a_resized_model_is_read_back_equal_one_sample_at_a_time():
    apply, params, x = FRAMEWORKS["flax.linen"]()
    pruned = half(apply, params, x, resize=True)
    run = resized(apply, pruned.groups, pruned.keep)
    read_back_equal(jax.vmap(lambda image: run(pruned.params, image[None])[0]), x)
    with pytest.raises(ValueError, match=r"inputs must have known shapes; got \(n, 6, 6, 2\)"):
        read_back_equal(partial(run, pruned.params), x)
